# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the torch.compile kernels: inputs, and the comparison with plain torch and the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.reference import doubled, outputs_and_gradients, relative_error, truth
from xlstm_hip.reference import mlstm_chunkwise__native_autograd

SIZES = (2, 3, 37, 5, 6)  # B, NH, S, DHQK, DHHV: a last chunk of 5, and a last band of one head
SCHEDULE = {"heads_per_band": 2, "workers": 2}
Inputs = dict[str, Tensor]


def make(
    batch: int,
    heads: int,
    length: int,
    dqk: int,
    dhv: int,
    dtype: torch.dtype = torch.float32,
    states: bool = True,
) -> tuple[Inputs, list[Tensor]]:
    """Inputs by name and cotangents of h, c, n, m.

    Positive k, and q of one sign per token: where the normaliser cancels, any kernel's error is luck.
    """
    rng = torch.Generator().manual_seed(length)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    q, k = random(batch, heads, length, dqk), random(batch, heads, length, dqk)
    inputs = {"q": q.abs() * q[..., :1].sign(), "k": k.abs()}
    inputs |= {"v": random(batch, heads, length, dhv)}
    inputs |= {"i": 3 * random(batch, heads, length), "f": 3 * random(batch, heads, length) + 2}
    shapes = [(batch, heads, dqk, dhv), (batch, heads, dqk), (batch, heads, 1)]
    if states:
        inputs |= {f"{name}_initial": random(*s) for name, s in zip("cnm", shapes, strict=True)}
        inputs["n_initial"] = inputs["n_initial"].abs()
    return inputs, [random(batch, heads, length, dhv), *(random(*s) for s in shapes)]


def check(function: Callable[..., Any], inputs: Inputs, cotangents: list[Tensor], **options: Any) -> None:
    """Everything within twice the error of plain torch in the same dtype, or a few roundings."""

    def run(kernel: Callable[..., Any], inputs: Inputs, **options: Any) -> Inputs:
        outputs, gradients = outputs_and_gradients(kernel, inputs, cotangents, **options)
        return outputs | {f"d{name}": x for name, x in gradients.items()}

    expected = run(truth, doubled(inputs))
    actual = run(function, inputs, return_last_states=True, **options)
    plain = run(mlstm_chunkwise__native_autograd, inputs, return_last_states=True, chunk_size=8)
    for name, true in expected.items():
        floor = torch.finfo(plain[name].dtype).eps * (1 if plain[name].dtype.itemsize == 2 else 8)
        assert actual[name].dtype == plain[name].dtype, name
        assert relative_error(actual[name], true) <= max(2 * relative_error(plain[name], true), floor), name
