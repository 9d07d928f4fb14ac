# SPDX-License-Identifier: Apache-2.0
"""gradcheck in float64: every input, every initial state, every output and last state, both gates."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from xlstm_hip import kernel_info, mlstm_interface, mlstm_step_interface

NH, DQK, DHV = 2, 3, 2
SEQUENCE = ("chunkwise--fused", "chunkwise--fused_siging", "fused", "fused_siging")


def leaf(*shape: int, seed: int, shift: float = 0.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, dtype=torch.float64, generator=rng) + shift).requires_grad_()


def inputs(batch: int, length: int, sequences: int | None, layout: str = "bhsd") -> list[Tensor]:
    """q, k, v, i, f and, unless sequences is None, c, n, m."""
    tokens = (batch, NH, length) if layout == "bhsd" else (batch, length, NH)
    tensors = [leaf(*tokens, DQK, seed=1), leaf(*tokens, DQK, seed=2), leaf(*tokens, DHV, seed=3)]
    tensors += [leaf(*tokens, seed=4), leaf(*tokens, seed=5, shift=1.0)]
    if sequences is not None:
        tensors += [
            leaf(sequences, NH, DQK, DHV, seed=6),
            leaf(sequences, NH, DQK, seed=7),
            leaf(sequences, NH, 1, seed=8),
        ]
    return tensors


def all_results(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
    h, states = mlstm_interface(*tensors, return_last_states=True, **options)
    return h, *states


def options_of(kernel: str, normalize: bool) -> dict[str, Any]:
    return {"kernel": kernel} if normalize else {"kernel": kernel, "normalize": False}


def variants() -> list[tuple[str, bool]]:
    found = [(kernel, True) for kernel in SEQUENCE]
    return found + [
        (kernel, False) for kernel in SEQUENCE if kernel_info(kernel, ("chunkwise", "sequence")).gate == "sigmoid"
    ]


@pytest.mark.parametrize("kernel, normalize", variants())
@pytest.mark.parametrize("states", [True, False], ids=["states", "no states"])
def test_across_chunks(kernel: str, normalize: bool, states: bool) -> None:
    function = partial(all_results, chunk_size=3, **options_of(kernel, normalize))
    assert gradcheck(function, inputs(1, 7, 1 if states else None))


@pytest.mark.parametrize("kernel, normalize", variants())
def test_only_the_output(kernel: str, normalize: bool) -> None:
    function = partial(mlstm_interface, chunk_size=2, **options_of(kernel, normalize))
    assert gradcheck(function, inputs(1, 5, 1))


@pytest.mark.parametrize("kernel, normalize", variants())
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_eps(kernel: str, normalize: bool, eps: float) -> None:
    assert gradcheck(partial(all_results, chunk_size=2, eps=eps, **options_of(kernel, normalize)), inputs(1, 4, 1))


@pytest.mark.parametrize("kernel", SEQUENCE)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_packed(kernel: str, layout: str) -> None:
    ends = torch.tensor([0, 1, 5])
    function = partial(all_results, chunk_size=2, kernel=kernel, cu_seqlens=ends, layout=layout)
    assert gradcheck(function, inputs(1, 5, 2, layout))


@pytest.mark.parametrize("kernel", SEQUENCE)
def test_gates_at_their_ends(kernel: str) -> None:
    """Tokens that forget everything or nothing, enter wholly or not at all, all of them away from the kinks."""
    tensors = inputs(1, 6, 1)
    tensors[3] = (tensors[3].detach() * 0.1 + torch.tensor([0.0, 8.0, -8.0, 0.0, 8.0, -8.0])).requires_grad_()
    tensors[4] = (tensors[4].detach() * 0.1 + torch.tensor([9.0, -9.0, 9.0, 9.0, 9.0, -9.0])).requires_grad_()
    assert gradcheck(partial(all_results, chunk_size=4, kernel=kernel), tensors)


@pytest.mark.parametrize("kernel", ["fused", "fused_siging"])
@pytest.mark.parametrize("normalize", [True, False])
def test_step(kernel: str, normalize: bool) -> None:
    if not normalize and kernel == "fused":
        return  # the exp gate is always normalised
    tokens, gates = (2, NH), (2, NH, 1)
    tensors = [leaf(*tokens, DQK, seed=1), leaf(*tokens, DQK, seed=2), leaf(*tokens, DHV, seed=3)]
    tensors += [leaf(*gates, seed=4), leaf(*gates, seed=5)]
    tensors += [leaf(2, NH, DQK, DHV, seed=6), leaf(2, NH, DQK, seed=7), leaf(2, NH, 1, seed=8)]

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        h, states = mlstm_step_interface(*arguments, **options_of(kernel, normalize))
        return h, *states

    assert gradcheck(function, tensors)
