# SPDX-License-Identifier: Apache-2.0
"""States that go from a rank to the one behind it, and their gradients back.

Nobody waits for a state to arrive but who needs it: a rank sends and goes on. Every rank makes these calls in the same
order, and its backward pass, too.

inputs, as an argument: those of the whole call. They have no use and get no gradient here, but whichever of them a
gradient is asked for, autograd comes here on every rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._core.ops import OpFunction, first_order
from .collectives import sum_of
from .context import ContextParallel

States = tuple[Tensor, ...]


def from_rank_before(context: ContextParallel, like: States, inputs: tuple[Tensor | None, ...]) -> States:
    """States of these shapes, from the rank before."""
    states: States = _FromRankBefore.apply(context, [x.shape for x in like], *like, *inputs)
    return states


def to_rank_behind(context: ContextParallel, states: States) -> Tensor:
    """Sends states. What it returns has no values: with_edges takes it, which makes autograd receive gradients."""
    edge: Tensor = _ToRankBehind.apply(context, *states)
    return edge


def with_edges(x: Tensor, edges: list[Tensor]) -> Tensor:
    """x, whose backward pass begins with those of the edges."""
    tied: Tensor = _WithEdges.apply(x, *edges) if edges else x
    return tied


class _FromRankBefore(OpFunction):
    @staticmethod
    def forward(ctx: Any, context: ContextParallel, shapes: list[torch.Size], first: Tensor, *rest: Any) -> States:
        ctx.context, ctx.inputs = context, 1 + len(rest)
        return _received(context, context.rank - 1, shapes, first)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        _send(ctx.context, ctx.context.rank - 1, gradients)
        return None, None, *(None,) * ctx.inputs


class _ToRankBehind(OpFunction):
    @staticmethod
    def forward(ctx: Any, context: ContextParallel, *states: Tensor) -> Tensor:
        ctx.context, ctx.shapes = context, [x.shape for x in states]
        _send(context, context.rank + 1, states)
        return states[0].new_empty(0)

    @staticmethod
    @first_order
    def backward(ctx: Any, edge: Tensor) -> Any:
        return None, *_received(ctx.context, ctx.context.rank + 1, ctx.shapes, edge)


class _WithEdges(OpFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *edges: Tensor) -> Tensor:
        ctx.edges = edges
        return x.view_as(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, *ctx.edges


_ON_THEIR_WAY: list[tuple[Any, Tensor]] = []  # sends, and what they send


def _send(context: ContextParallel, to: int, states: States) -> None:
    """On a GPU in the background; what is on its way keeps its memory until it has arrived. A CPU's rank goes on when
    the other takes it."""
    flat = torch.cat([x.flatten() for x in states])
    if not flat.is_cuda:
        dist.send(flat, group=context.group, group_dst=to)
        return
    _ON_THEIR_WAY[:] = [sent for sent in _ON_THEIR_WAY if not sent[0].is_completed()]
    _ON_THEIR_WAY.append((dist.isend(flat, group=context.group, group_dst=to), flat))


def _received(context: ContextParallel, source: int, shapes: list[torch.Size], like: Tensor) -> States:
    flat = like.new_empty(sum(shape.numel() for shape in shapes))
    dist.recv(flat, group=context.group, group_src=source)
    parts = flat.split([shape.numel() for shape in shapes])
    return tuple(x.view(shape) for x, shape in zip(parts, shapes, strict=True))


class SumOverRanks(OpFunction):
    """inputs as above."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, x: Tensor, *inputs: Tensor | None) -> Tensor:
        ctx.group, ctx.inputs = group, len(inputs)
        return sum_of(x, group)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, sum_of(gradient, ctx.group), *(None,) * ctx.inputs
