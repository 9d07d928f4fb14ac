# SPDX-License-Identifier: Apache-2.0
"""Shared by tests of the decode engine: a model's steps by it, layer by layer, and in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from support.peer_models import relative, tokens
from xlstm_hip.models import decode_engine, xLSTMLarge


@contextlib.contextmanager
def layer_by_layer() -> Iterator[None]:
    original = xLSTMLarge._decoded
    xLSTMLarge._decoded = lambda *_: None
    try:
        yield
    finally:
        xLSTMLarge._decoded = original


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Collects the batch of every step that the engine made."""
    original, calls = decode_engine.DecodeEngine.step, []

    def step(self, rows, *options):
        calls.append(rows.shape[0])
        return original(self, rows, *options)

    decode_engine.DecodeEngine.step = step
    try:
        yield calls
    finally:
        decode_engine.DecodeEngine.step = original


def calls_for_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    """Has calls made again stand in for graphs, and returns what was captured so far."""
    results: list[Callable] = []

    def captured(call: Callable, errors: str = "global") -> Callable:
        results.append(call)
        return call

    monkeypatch.setattr(decode_engine, "captured", captured)
    return results


def state_after(model: xLSTMLarge, x: Tensor) -> dict:
    with torch.no_grad():
        return model.hidden(x, keep_state=True)[1]


def copied(state: dict, dtype: torch.dtype | None = None) -> dict:
    return {n: tuple(x.to(dtype or x.dtype, copy=True) for x in layer) for n, layer in state.items()}


def steps(model: xLSTMLarge, state: dict, x: Tensor) -> Tensor:
    return torch.stack([model.step(x[:, t], state) for t in range(x.shape[1])], dim=1)


def in_double(model: xLSTMLarge) -> xLSTMLarge:
    twin = xLSTMLarge(model.config)
    twin.load_state_dict(model.state_dict())
    return twin.double()


DRAWS = range(1, 8)  # seeds of tokens


def outcome(model: xLSTMLarge, state: dict, x: Tensor) -> list[Tensor]:
    """Logits, then states."""
    logits = steps(model, state, x)
    return [logits, *(tensor for layer in state.values() for tensor in layer)]


def no_worse_than_layers(
    model: xLSTMLarge,
    in_float64: xLSTMLarge,
    batch: int,
    length: int,
    vocab: int = 97,
    states: bool = False,
    beside: xLSTMLarge | None = None,
) -> None:
    """The engine is no further from float64 than the layers are, twice at the most, in logits and perhaps states: in
    the middle of seven draws, for of a single one either error may be small, or large, by luck. beside: whose layers,
    if not the model's."""
    shares = []  # of what may be off, by draw
    for seed in DRAWS:
        begun, x = state_after(model, tokens(batch, 5, vocab, seed)), tokens(batch, length, vocab, seed + 10)
        true = outcome(in_float64, copied(begun, torch.float64), x)
        with counted() as calls:
            actual = outcome(model, copied(begun), x)
        assert calls == [batch] * length and actual[0].dtype == torch.float32
        with layer_by_layer():
            layers = outcome(beside or model, copied(begun), x)
        draw = zip(actual, layers, true, strict=True)
        shares.append([relative(a, c) / (2 * relative(b, c) + 8 * 2**-24) for a, b, c in draw])
    middle = torch.tensor(shares).median(0).values
    assert (middle <= 1).all() if states else middle[0] <= 1, middle
