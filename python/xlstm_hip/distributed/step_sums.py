# SPDX-License-Identifier: Apache-2.0
"""What ranks exchange in a decode step of a model that tensor_parallel has divided.

x (B, D), float32, is the same on every rank. Half a block adds W h to it, of which each rank has the sum over its own
heads or features. The first rank adds that to x itself and the others to zeros, so that one sum over ranks gives the
next x, and no kernel has to add or to zero in between.

All memory stays where it is, and a GPU graph can have the whole step. Ranks whose GPUs reach each other's memory sum by
one kernel that reads every rank's vector (torch's symmetric memory). Else the group's all-reduce does it; a graph that
has one must be gone before the group is destroyed, or that hangs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .._core.warn_once import log_once
from .collectives import gathered
from .divided import own_span

MOST_RANKS_OF_ONE_KERNEL = 8  # each reads the vectors of all


class StepSums:
    """x, and `sum`, to which a rank adds its part of the next half block; for so many halves of up to `rows` rows."""

    x: Tensor
    sum: Tensor

    def __init__(self, mesh: Any, halves: int, rows: int, features: int, vocabulary: int, device: torch.device) -> None:
        self._mesh, self._group = mesh, mesh.get_group()
        self._is_first = dist.get_rank(self._group) == 0
        self._features, self._vocabulary = features, vocabulary
        floats = (halves + 2) * rows * features  # and the sum of the embedding, and the last x
        shared = None
        if device.type == "cuda" and mesh.size() <= MOST_RANKS_OF_ONE_KERNEL:
            shared = _shared_memory(self._group, floats + rows * vocabulary, device)
        self._by_one_kernel = shared is not None
        memory = torch.zeros(floats, device=device) if shared is None else shared
        self._sums = memory[:floats].view(halves + 2, rows * features)
        self._logits = memory[floats:].view(-1, vocabulary)  # of this rank, zeros in the others' columns
        self._x = torch.zeros(rows * features, device=device)
        self._number = 0

    def begin(self, tokens: Tensor, table: Tensor) -> None:
        """x of tokens (B), of whose embedding a rank has some rows. NaN for a token that is not in the vocabulary."""
        first, _ = own_span(self._vocabulary, self._mesh)
        own = tokens - first
        here = (own >= 0) & (own < table.shape[0])
        x = torch.where(here.unsqueeze(1), table[torch.where(here, own, 0)].float(), 0.0)
        unknown = (tokens < 0) | (tokens >= self._vocabulary)
        if not self._is_first:
            self._sums.zero_()
        self._number, self._rows = 0, tokens.shape[0]
        self.sum = self._row(0).copy_(x.masked_fill_(unknown.unsqueeze(1), torch.nan))
        self.exchange()

    def exchange(self) -> None:
        """x = the ranks' sums."""
        self._number += 1
        following = self._row(self._number)
        if self._by_one_kernel:
            # Nobody reads `following` before all have come to the next exchange.
            self.x = following if self._is_first else self._x[: following.numel()].view_as(following)
            self._sum_by_one_kernel(self.sum, self.x)
            self.sum = following
        else:
            dist.all_reduce(self.sum, group=self._group)
            self.x = self.sum
            self.sum = self.x if self._is_first else following

    def whole_logits(self, own: Tensor, out: Tensor) -> None:
        """out (B, V), of whose columns each rank has some."""
        if self._by_one_kernel:
            mine, (first, last) = self._logits[: out.shape[0]], own_span(self._vocabulary, self._mesh)
            mine[:, first:last] = own
            self._sum_by_one_kernel(mine, out)
            return
        each = -(-out.shape[1] // self._mesh.size())
        every = gathered(F.pad(own, (0, each - own.shape[1])), self._group)
        out.copy_(every.movedim(0, 1).reshape(out.shape[0], -1)[:, : out.shape[1]])

    def _sum_by_one_kernel(self, own: Tensor, to: Tensor) -> None:
        torch.ops.symm_mem.one_shot_all_reduce_out(own, "sum", self._group.group_name, to)

    def _row(self, number: int) -> Tensor:
        return self._sums[number, : self._rows * self._features].view(self._rows, self._features)


def _shared_memory(group: dist.ProcessGroup, floats: int, device: torch.device) -> Tensor | None:
    """Zeros that all ranks' GPUs can read. None, on every rank, where one of them cannot have it."""
    memory, why = None, ""
    try:
        from torch.distributed import _symmetric_memory as symmetric

        memory = symmetric.empty(floats, dtype=torch.float32, device=device)
        symmetric.rendezvous(memory, group)
        memory.zero_()
    except Exception as error:  # of a torch, a driver or a GPU without it
        memory, why = None, f"{type(error).__name__}: {error}"
    have = torch.tensor(int(memory is not None), device=device)
    dist.all_reduce(have, dist.ReduceOp.MIN, group=group)
    if int(have) == 1:
        return memory
    log_once(
        f"decoding over ranks sums by the group's all-reduce, without memory that all GPUs read: {why or 'a rank'}"
    )
    return None
