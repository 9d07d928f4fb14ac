# SPDX-License-Identifier: Apache-2.0
"""Which tokens each rank has, and of which sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._core import checks
from .._version import __version__


class ContextParallel:
    """The tokens of one row over the ranks of a group, each rank's behind those of the rank before.

    group       a process group of torch.distributed; the ranks may have different numbers of tokens
    length      tokens of this rank
    cu_seqlens  offsets 0 .. S of the sequences of the whole row, the same on every rank; None: one sequence a row

    Every rank makes it at the same time: they exchange their lengths. Then it serves any number of calls, as of the
    layers of a model. cu_seqlens is read on the host.
    """

    def __init__(self, group: dist.ProcessGroup, length: int, cu_seqlens: Tensor | None = None) -> None:
        self.group = _checked_group(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        checks.positive_int("length", length)
        if cu_seqlens is not None and (not isinstance(cu_seqlens, Tensor) or cu_seqlens.dim() != 1):
            raise ValueError("cu_seqlens: expected a tensor (N + 1) of the offsets of all sequences of the row")
        offsets = None if cu_seqlens is None else [int(x) for x in cu_seqlens.tolist()]
        versions, self.lengths, every_offsets = zip(*self._of_all((__version__, length, offsets)), strict=True)
        _check_same("cp_group: expected the same xlstm_hip on every rank", versions)
        _check_same("cu_seqlens: expected the same cu_seqlens on every rank", every_offsets)
        self.begin = sum(self.lengths[: self.rank])
        self.length, total = length, sum(self.lengths)
        self.packed = offsets is not None
        every = [0, total] if offsets is None else checks.rising_ends(offsets, total)
        self.sequences = len(every) - 1
        end = self.begin + length
        of_part = [n for n in range(self.sequences) if every[n] < end and every[n + 1] > self.begin]
        # Of the whole row's sequences, those that have tokens here: [first, last].
        self.first, self.last = of_part[0], of_part[-1]
        self.is_continued = every[self.first] < self.begin  # its first tokens are on the ranks before
        self.ends_here = every[self.last + 1] == end
        self.ends = [max(every[n], self.begin) - self.begin for n in of_part] + [length]
        self._same: set[tuple[Any, ...]] = set()  # what all ranks have agreed on

    def rows_of_states(self, x: Tensor) -> int:
        """How many states a call of x (B, ...) has."""
        if self.packed and x.shape[0] != 1:
            raise ValueError(f"cu_seqlens: expected one row (B = 1) of packed sequences, got B = {x.shape[0]}")
        return self.sequences if self.packed else x.shape[0]

    def check_same(self, *signature: Any) -> None:
        """An error on every rank if this is not the same on all of them. They are asked once for each."""
        if signature in self._same:
            return
        expected = "cp_group: expected the same shapes but for S, dtypes and options on every rank"
        _check_same(expected, self._of_all(signature))
        self._same.add(signature)

    def _of_all(self, own: Any) -> list[Any]:
        """What each rank has here."""
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, own, group=self.group)
        return every


def context_of(cp_group: Any, length: int, cu_seqlens: Tensor | None) -> ContextParallel:
    """cp_group as a ContextParallel for these tokens."""
    if not isinstance(cp_group, ContextParallel):
        return ContextParallel(cp_group, length, cu_seqlens)
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens: expected None, since the ContextParallel in cp_group has its own")
    if cp_group.length != length:
        raise ValueError(f"cp_group: expected a ContextParallel of S = {length} tokens, got one of {cp_group.length}")
    return cp_group


def group_of(cp_group: Any) -> dist.ProcessGroup:
    return cp_group.group if isinstance(cp_group, ContextParallel) else _checked_group(cp_group)


def _check_same(expected: str, every: Sequence[Any]) -> None:
    for rank, other in enumerate(every):
        if other != every[0]:
            raise ValueError(f"{expected}, got {every[0]} on rank 0 and {other} on rank {rank}")


def _checked_group(group: Any) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("cp_group: torch.distributed has no process group yet; call init_process_group first")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"cp_group: expected a process group of torch.distributed or a ContextParallel, got {type(group).__name__}"
        )
    return group


def local_offsets(context: ContextParallel, device: torch.device) -> Tensor | None:
    """cu_seqlens of this rank's tokens; None where they are of one sequence."""
    if len(context.ends) == 2:
        return None
    return torch.tensor(context.ends, dtype=torch.int64, device=device)
