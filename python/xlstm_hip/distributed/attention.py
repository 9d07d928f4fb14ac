# SPDX-License-Identifier: Apache-2.0
"""Causal attention over a sequence of which each rank has a part: keys and values are gathered, queries stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import checks
from .._core.ops import OpFunction, first_order
from ..attention import flash_attn_func
from .collectives import gathered, own_of_sum
from .context import ContextParallel, context_of


def context_parallel_attention(
    q: Tensor,  # (B, S, H, D): this rank's tokens
    k: Tensor,  # (B, S, H_k, D)
    v: Tensor,  # (B, S, H_k, DV)
    cp_group: Any,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Tensor:
    """flash_attn_func over a sequence whose tokens lie on the ranks of cp_group, in their order.

    cp_group    a process group, or a ContextParallel of it
    causal      without it, and without a window, queries see the keys of all ranks
    options     of flash_attn_func, but dropout_p and return_attn_probs

    A rank sees the keys up to its own last token, so the last rank has the most to do. Keys and values of the whole
    sequence are in each rank's memory during the call and until its backward pass.
    """
    for name in ("dropout_p", "return_attn_probs"):
        if options.pop(name, None):
            raise ValueError(f"{name}: not over several ranks")
    if not causal and tuple(window_size) != (-1, -1):
        raise ValueError(f"window_size: expected (-1, -1) over several ranks unless causal, got {tuple(window_size)}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        checks.has_rank(name, x, 4, "(B, S, H, D)")
        if x.shape[1] != q.shape[1]:
            raise ValueError(f"{name}: expected S = {q.shape[1]}, this rank's tokens, got {x.shape[1]}")
    context = context_of(cp_group, q.shape[1], None)
    if context.packed:
        raise ValueError("cp_group: expected a ContextParallel without cu_seqlens: attention over ranks is not packed")
    needed = checks.gradient_needed(q, k, v)
    context.check_same("attention", q.shape[0], *k.shape[2:], v.shape[-1], str(q.dtype), causal, needed)
    end = context.begin + context.length if causal else sum(context.lengths)
    keys, values = (_Gathered.apply(context, x, end, q, k, v) for x in (k, v))
    out: Tensor = flash_attn_func(q, keys, values, causal=causal, window_size=window_size, **options)
    return out


class _Gathered(OpFunction):
    """Tokens [0, end) of all ranks. inputs as in state_scan.state_before."""

    @staticmethod
    def forward(ctx: Any, context: ContextParallel, x: Tensor, end: int, *inputs: Tensor) -> Tensor:
        ctx.context = context
        longest = max(context.lengths)
        padded = x.new_zeros(x.shape[0], longest, *x.shape[2:])
        padded[:, : x.shape[1]] = x
        every = gathered(padded, context.group)
        return torch.cat([part[:, :length] for part, length in zip(every, context.lengths, strict=True)], 1)[:, :end]

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        context, begin = ctx.context, 0
        sent = gradient.new_zeros(context.size, gradient.shape[0], max(context.lengths), *gradient.shape[2:])
        for rank, length in enumerate(context.lengths):
            some = gradient[:, begin : begin + length]
            sent[rank, :, : some.shape[1]] = some
            begin += length
        own = own_of_sum(sent, context.group)
        return None, own[:, : context.length], None, *(None,) * 3
