# SPDX-License-Identifier: Apache-2.0
"""The checks that far_tokens.py makes on a GPU, here with few tokens: right calls pass, and offsets that wrap are
seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import pytest
import torch
from torch import Tensor

from support.attention import far_tokens
from support.attention.far_tokens import SMALL, tokens_beyond_32_bits
from xlstm_hip import attention


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_calls_pass(dtype: torch.dtype, backward: bool) -> None:
    tokens_beyond_32_bits(replace(SMALL, dtype=dtype), "cpu", backward)


def wrapped(x: Tensor) -> Tensor:
    """The tokens that a kernel would read whose offsets wrap at `beyond` elements."""
    row_size = x.shape[-2] * x.shape[-1]
    reached = torch.arange(x.numel() // row_size) * row_size % SMALL.beyond // row_size
    return x.reshape(-1, *x.shape[-2:])[reached].view(x.shape)


class WrongGradient(torch.autograd.Function):
    """The tensor, whose gradient a kernel wrote at wrapped places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return wrapped(grad)


FUNCTIONS = {"one sequence": "flash_attn_func", "packed": "flash_attn_varlen_func", "pages": "flash_attn_with_kvcache"}


# Of pages q is a few queries, which lie nowhere far.
@pytest.mark.parametrize("way, where", [(way, j) for way in FUNCTIONS for j in range(3) if (way, j) != ("pages", 0)])
def test_offsets_that_wrap_are_seen(monkeypatch: pytest.MonkeyPatch, way: str, where: int) -> None:
    right = getattr(attention, FUNCTIONS[way])

    def planted(bend: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        def call(*tensors: Any, **options: Any) -> Any:
            return right(*(bend(x) if j == where else x for j, x in enumerate(tensors)), **options)

        return call

    monkeypatch.setattr(far_tokens.attention, FUNCTIONS[way], planted(wrapped))
    with pytest.raises(AssertionError, match="out, norm 2: error"):
        tokens_beyond_32_bits(SMALL, "cpu")
    if way != "pages":  # which have no gradient
        monkeypatch.setattr(far_tokens.attention, FUNCTIONS[way], planted(WrongGradient.apply))
        with pytest.raises(AssertionError, match=f"{way}: d{'qkv'[where]}, norm 2: error"):
            tokens_beyond_32_bits(SMALL, "cpu")


def test_too_little_memory_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_tokens, "free_bytes", lambda device: SMALL.bytes - 1)
    with pytest.raises(SkipTest, match="needs 0 GB free"):
        tokens_beyond_32_bits(SMALL, "cpu")


def test_the_gpus_own_sizes() -> None:
    """All that is compared lies beyond 2^31 elements, and it fits an H100."""
    far = far_tokens.Far()
    assert (far.tokens - far.length) * far.heads * far.dim > 2**31
    assert far.bytes < 60e9
