# SPDX-License-Identifier: Apache-2.0
"""Causal attention over a sequence of which each rank has a part: keys and values are gathered, queries stay, but for
some of the last ranks', which see the most keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._core import checks
from .._core.ops import OpFunction, first_order
from ..attention import flash_attn_func
from .collectives import Exchange, exchanged, gathered, own_of_sum
from .context import ContextParallel, context_of

BLOCK = 64  # queries are moved in multiples of so many


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

    Causal queries see the more keys the later they are: ranks of the end send some of theirs to those of the beginning,
    so that all have the same number of pairs. Keys and values of the whole sequence are in each rank's memory during
    the call and until its backward pass.
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
    context.check_same("attention", q.shape[0], *q.shape[2:], *k.shape[2:], v.shape[-1], str(q.dtype), causal, needed)
    options |= {"causal": causal, "window_size": window_size}
    moves = moves_for(context.lengths) if causal and tuple(window_size) == (-1, -1) else []
    end = context.begin + context.length if causal and not moves else sum(context.lengths)
    keys, values = (_Gathered.apply(context, x, end, q, k, v) for x in (k, v))
    if not moves:
        out: Tensor = flash_attn_func(q, keys, values, **options)
        return out
    sent, received = ([m for m in moves if m[side] == context.rank] for side in (0, 1))
    stay = context.length - sum(m.end - m.begin for m in sent)
    to, of = (
        [sum(m.end - m.begin for m in mine if m[other] == rank) for rank in range(context.size)]
        for mine, other in ((sent, 1), (received, 0))
    )
    moved = _Moved.apply(context, to, of, q[:, stay:], q, k, v)
    outs, begin = [moved[:, :0, :, :1].expand(-1, -1, -1, v.shape[-1])], 0
    for m in received:
        rows = moved[:, begin : begin + m.end - m.begin]
        outs.append(flash_attn_func(rows, keys[:, : m.end], values[:, : m.end], **options))
        begin += m.end - m.begin
    # Those who sent rows compute their own meanwhile, in the backward pass, too.
    exchange = Exchange(context.group)
    edge = _Sent.apply(exchange, of, to, torch.cat(outs, 1), q, k, v)
    last = context.begin + stay
    own = [flash_attn_func(q[:, :stay], keys[:, :last], values[:, :last], **options)] if stay else []
    return torch.cat([*own, _Received.apply(exchange, of, to, edge)], 1)


class Move(NamedTuple):
    """Queries begin to end of the whole sequence, from one rank's tokens to another rank."""

    sender: int
    receiver: int
    begin: int
    end: int


def moves_for(lengths: Sequence[int]) -> list[Move]:
    """Which causal queries move, so that each rank has as many pairs of a query and a key, up to BLOCK queries. Of a
    rank its last ones do: they are the fewest that make up a number of pairs. By sender, and of one by where they are.
    """
    ends = [sum(lengths[: rank + 1]) for rank in range(len(lengths))]

    def pairs(begin: int, end: int) -> int:
        return (end * (end + 1) - begin * (begin + 1)) // 2

    share = pairs(0, ends[-1]) / len(lengths)
    too_many = [pairs(end - length, end) - share for end, length in zip(ends, lengths, strict=True)]
    moves = []
    for sender in range(len(lengths)):
        end = ends[sender]
        for receiver in reversed(range(len(lengths))):  # so that rows lie in the order of receivers
            wanted = min(too_many[sender], -too_many[receiver])
            # The last n queries before `end` have n (2 end - n + 1) / 2 pairs.
            root = (end + 0.5) ** 2 - 2 * wanted
            rows = int(end + 0.5 - root**0.5) if wanted > 0 and root > 0 else 0
            rows = min(rows, end - (ends[sender] - lengths[sender])) // BLOCK * BLOCK
            if rows:
                moves.append(Move(sender, receiver, end - rows, end))
                moved = pairs(end - rows, end)
                too_many[sender] -= moved
                too_many[receiver] += moved
                end -= rows
    return sorted(moves, key=lambda m: (m.sender, m.begin))


class _Moved(OpFunction):
    """Tokens (B, S, ...) of each rank, some to and some from each other one. inputs as in state_scan.state_before."""

    @staticmethod
    def forward(ctx: Any, context: ContextParallel, to: list[int], of: list[int], x: Tensor, *inputs: Tensor) -> Tensor:
        ctx.context, ctx.to, ctx.of = context, to, of
        return exchanged(x.transpose(0, 1), to, of, context.group).transpose(0, 1)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        own = exchanged(gradient.transpose(0, 1), ctx.of, ctx.to, ctx.context.group).transpose(0, 1)
        return None, None, None, own, *(None,) * 3


class _Sent(OpFunction):
    """As _Moved, in the background until _Received. Backward starts there and ends here. What it returns has no values:
    it is autograd's edge to _Received."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, to: list[int], of: list[int], x: Tensor, *inputs: Tensor) -> Tensor:
        ctx.exchange = exchange
        exchange.start(x.transpose(0, 1), to, of)
        return x.new_empty(0)

    @staticmethod
    @first_order
    def backward(ctx: Any, edge: Tensor) -> Any:
        return None, None, None, ctx.exchange.wait().transpose(0, 1), *(None,) * 3


class _Received(OpFunction):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, to: list[int], of: list[int], edge: Tensor) -> Tensor:
        ctx.exchange, ctx.to, ctx.of = exchange, to, of
        return exchange.wait().transpose(0, 1)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.exchange.start(gradient.transpose(0, 1), ctx.of, ctx.to)
        return None, None, None, gradient.new_empty(0)


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
