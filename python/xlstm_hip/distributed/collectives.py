# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's collectives of whole tensors, by the names that this torch has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _named(new: str, old: str) -> Any:  # torch 2.13 renamed two
    return getattr(dist, new, None) or getattr(dist, old)


def gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(ranks, *x.shape)"""
    every = x.new_empty(dist.get_world_size(group), *x.shape)
    _named("all_gather_single", "all_gather_into_tensor")(every.flatten(0, 1), x.contiguous(), group=group)
    return every


def own_of_sum(every: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of what each has for this one. every: (ranks, ...)"""
    own = torch.empty_like(every[0])
    _named("reduce_scatter_single", "reduce_scatter_tensor")(own, every.contiguous().flatten(0, 1), group=group)
    return own


def exchanged(x: Tensor, to: list[int], of: list[int], group: dist.ProcessGroup) -> Tensor:
    """Sends the first to[0] rows of x to rank 0, the next to[1] to rank 1, and so on; returns what comes from each."""
    exchange = Exchange(group)
    exchange.start(x, to, of)
    return exchange.wait()


class Exchange:
    """exchanged(), while the rank goes on between `start` and `wait`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def start(self, x: Tensor, to: list[int], of: list[int]) -> None:
        self._sent, self._received = x.contiguous(), x.new_empty(sum(of), *x.shape[1:])
        self._work = dist.all_to_all_single(self._received, self._sent, of, to, group=self._group, async_op=True)

    def wait(self) -> Tensor:
        self._work.wait()
        received = self._received
        del self._sent, self._received, self._work
        return received


def sum_of(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    whole = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(whole, group=group)
    return whole


def from_last_rank(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.broadcast(x, group_src=dist.get_world_size(group) - 1, group=group)
    return x


def mean_over_ranks(total: Tensor, count: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The totals of all ranks over their counts, on each; a gradient goes to this rank's total alone."""
    sums = sum_of(torch.stack((total.detach(), count.to(total.dtype))), group)
    own = total / sums[1]
    return own + (sums[0] / sums[1] - own.detach())
