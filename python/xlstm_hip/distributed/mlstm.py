# SPDX-License-Identifier: Apache-2.0
"""The mLSTM over a sequence of which each rank has a part: what mlstm_interface does with cp_group.

every rank   its part (state_scan.py)   gather   fold: the state before its tokens   the kernel, from that state
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._core import checks
from .context import ContextParallel, context_of, local_offsets
from .state_scan import Part, SumOverRanks, after, part_of, state_before

States = tuple[Tensor, Tensor, Tensor]


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
    q, k, v, i, f = heads_first
    context = context_of(cp_group, q.shape[2], cu_seqlens)
    sequences = context.rows_of_states(q)
    given = checks.check_states(
        q, *states, sequences, q.shape[1], q.shape[-1], v.shape[-1], ("c_initial", "n_initial", "m_initial")
    )
    needed = checks.gradient_needed(*heads_first, *states)
    sizes = (q.shape[0], q.shape[1], q.shape[-1], v.shape[-1], str(q.dtype).removeprefix("torch."))
    context.check_same(*sizes, gate, "gradients" if needed else "no gradients", "states" if return_last_states else "")
    starts = _starts(context, q, v, given)
    inputs = (*heads_first, *states)
    part = _given(context, k, v, i, f, gate, starts)
    first = _rows(starts, slice(0, q.shape[0]))
    before = state_before(context.group, context.is_continued, part, first, inputs)
    initial = tuple(torch.cat((x, rest[x.shape[0] :])) for x, rest in zip(before, starts, strict=True))
    offsets = local_offsets(context, q.device)
    out = kernel(*tensors, *initial, return_last_states=return_last_states, cu_seqlens=offsets)
    if not return_last_states:
        return out
    h, last = out
    return h, _last_of_all(context, last, sequences, inputs)


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


def _rows(states: States, some: slice) -> States:
    c, n, m = (x[some] for x in states)
    return c, n, m


def _given(context: ContextParallel, k: Tensor, v: Tensor, i: Tensor, f: Tensor, gate: str, starts: States) -> Part:
    """What this rank's tokens do to the state of the sequence that goes on behind them."""
    some, start = slice(context.ends[-2], None), _rows(starts, slice(-k.shape[0], None))
    if context.rank == context.size - 1:  # nobody is behind it
        c, n, m = (torch.zeros_like(x) for x in start)
        return Part(c, n, m, torch.zeros_like(m))
    part = part_of(k[:, :, some], v[:, :, some], i[:, :, some], f[:, :, some], gate)
    if context.is_continued and len(context.ends) == 2:
        return part
    # It began here: from its own start on, nothing before it counts.
    c, n, m = after(start, part)
    return Part(c, n, m, torch.full_like(m, -torch.inf))


def _last_of_all(context: ContextParallel, last: States, sequences: int, inputs: tuple[Tensor | None, ...]) -> States:
    """The last states of all sequences, each from the rank on which it ends."""
    flat = torch.cat([x.flatten(2) for x in last], -1)
    count = flat.shape[0] if context.ends_here else len(context.ends) - 2
    others = flat.new_zeros(sequences - count, *flat.shape[1:])
    own = torch.cat((others[: context.first], flat[:count], others[context.first :]))
    c, n, m = SumOverRanks.apply(context.group, own, *inputs).split([x[0, 0].numel() for x in last], -1)
    return c.unflatten(-1, last[0].shape[2:]), n, m
