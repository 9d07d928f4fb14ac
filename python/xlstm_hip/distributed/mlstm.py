# SPDX-License-Identifier: Apache-2.0
"""The mLSTM over a sequence of which each rank has a part: what mlstm_interface does with cp_group.

Heads do not depend on each other. So each rank walks its tokens by groups of heads, from the states that the rank
before has sent, and sends each group's last states on as soon as they are there (relay.py):

  rank 0   heads 0   heads 1   heads 2   heads 3
  rank 1             heads 0   heads 1   heads 2   heads 3
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._core import checks
from .context import ContextParallel, context_of, local_offsets
from .relay import SumOverRanks, from_rank_before, to_rank_behind, with_edges

States = tuple[Tensor, Tensor, Tensor]
# Tokens times heads of a group at least: on a GPU, whose host starts a group in the time of so many; on a CPU.
LEAST_WORK = {"cuda": 32768, "cpu": 1024}


def over_ranks(
    kernel: Callable[..., Any],  # of q, k, v, i, f, c, n, m, return_last_states, cu_seqlens: the call of one rank alone
    gate: str,
    cp_group: Any,
    tensors: tuple[Tensor, ...],  # q, k, v, i, f, as the kernel takes them
    heads_first: tuple[Tensor, ...],  # the same as (B, NH, S, ...)
    states: tuple[Tensor | None, Tensor | None, Tensor | None],
    return_last_states: bool,
    cu_seqlens: Tensor | None,
) -> Any:
    q, v = heads_first[0], heads_first[2]
    context = context_of(cp_group, q.shape[2], cu_seqlens)
    sequences = context.rows_of_states(q)
    given = checks.check_states(
        q, *states, sequences, q.shape[1], q.shape[-1], v.shape[-1], ("c_initial", "n_initial", "m_initial")
    )
    inputs = (*heads_first, *states)
    needed = "gradients" if checks.gradient_needed(*inputs) else "no gradients"
    sizes = (q.shape[0], q.shape[1], q.shape[-1], v.shape[-1], str(q.dtype).removeprefix("torch."))
    context.check_same(*sizes, gate, needed, "states" if return_last_states else "")
    starts, offsets = _starts(context, q, v, given), local_offsets(context, q.device)
    heads_dim = 1 if tensors[0] is q else 2
    groups = _groups(q.shape[1], max(context.lengths), q.device.type)
    outs, lasts, edges = [], [], []
    by_group = zip(*(x.split(groups, heads_dim) for x in tensors), strict=True)
    starts_by_group = zip(*(x.split(groups, 1) for x in starts), strict=True)
    for part, start in zip(by_group, starts_by_group, strict=True):
        initial = start
        if context.is_continued:
            rows = q.shape[0]  # of the sequences that go on: all, or the first of packed ones
            before = from_rank_before(context, tuple(x[:rows] for x in start), inputs)
            initial = tuple(torch.cat((x, rest[rows:])) for x, rest in zip(before, start, strict=True))
        h, last = kernel(*part, *initial, return_last_states=True, cu_seqlens=offsets)
        if not context.ends_here:
            edges.append(to_rank_behind(context, tuple(x[-q.shape[0] :] for x in last)))
        outs.append(h)
        lasts.append(last)
    h = with_edges(torch.cat(outs, heads_dim) if len(outs) > 1 else outs[0], edges)
    if not return_last_states:
        return h
    c, n, m = (torch.cat(parts, 1) for parts in zip(*lasts, strict=True))
    return h, _last_of_all(context, (c, n, m), sequences, inputs)


def _groups(heads: int, length: int, device: str) -> list[int]:
    """How many heads each group has; the same on all ranks."""
    each = min(heads, -(-LEAST_WORK.get(device, LEAST_WORK["cuda"]) // length))
    return [min(each, heads - begin) for begin in range(0, heads, each)]


def _starts(context: ContextParallel, q: Tensor, v: Tensor, given: dict[str, Tensor]) -> States:
    """What each of this rank's sequences begins with, had it no tokens before."""
    rows = slice(context.first, context.last + 1) if context.packed else slice(None)
    wide = checks.accumulate_dtype(q.dtype)
    if given:
        c, n, m = (x[rows].to(wide) for x in given.values())
        return c, n, m
    batch, heads, dqk = len(context.ends) - 1 if context.packed else q.shape[0], q.shape[1], q.shape[-1]
    c, n, m = (q.new_zeros(batch, heads, *dims, dtype=wide) for dims in ((dqk, v.shape[-1]), (dqk,), (1,)))
    return c, n, m


def _last_of_all(context: ContextParallel, last: States, sequences: int, inputs: tuple[Tensor | None, ...]) -> States:
    """The last states of all sequences, each from the rank on which it ends."""
    flat = torch.cat([x.flatten(2) for x in last], -1)
    count = flat.shape[0] if context.ends_here else len(context.ends) - 2
    others = flat.new_zeros(sequences - count, *flat.shape[1:])
    own = torch.cat((others[: context.first], flat[:count], others[context.first :]))
    c, n, m = SumOverRanks.apply(context.group, own, *inputs).split([x[0, 0].numel() for x in last], -1)
    return c.unflatten(-1, last[0].shape[2:]), n, m
