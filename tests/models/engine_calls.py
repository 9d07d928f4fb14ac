# SPDX-License-Identifier: Apache-2.0
"""What tests of the decode engine share: a model's steps by it, layer by layer, and in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from xlstm_hip import engine as engines
from xlstm_hip.models import xLSTMLarge


@contextlib.contextmanager
def layer_by_layer() -> Iterator[None]:
    own = xLSTMLarge._decoded
    xLSTMLarge._decoded = lambda *_: None
    try:
        yield
    finally:
        xLSTMLarge._decoded = own


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Collects the batch of every step that the engine made."""
    own, calls = engines.DecodeEngine.step, []

    def step(self, rows, *rest):
        calls.append(rows.shape[0])
        return own(self, rows, *rest)

    engines.DecodeEngine.step = step
    try:
        yield calls
    finally:
        engines.DecodeEngine.step = own


def state_after(model: xLSTMLarge, x: Tensor) -> dict:
    with torch.no_grad():
        return model.hidden(x, keep_state=True)[1]


def copied(state: dict, dtype: torch.dtype | None = None) -> dict:
    return {n: tuple(x.to(dtype or x.dtype, copy=True) for x in own) for n, own in state.items()}


def steps(model: xLSTMLarge, state: dict, x: Tensor) -> Tensor:
    return torch.stack([model.step(x[:, t], state) for t in range(x.shape[1])], dim=1)


def in_double(model: xLSTMLarge) -> xLSTMLarge:
    twin = xLSTMLarge(model.config)
    twin.load_state_dict(model.state_dict())
    return twin.double()
