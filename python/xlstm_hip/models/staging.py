# SPDX-License-Identifier: Apache-2.0
"""Moves a tensor from its file to parameters on another device, of another dtype, or that hold parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .shards import Stored

BUFFER_BYTES = 16 << 20  # caches still hold what was read when it is copied on


class Target(NamedTuple):
    """Where rows of a stored tensor go, from `begin` on: all their columns, or some."""

    memory: Tensor
    begin: int
    columns: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        return self.begin + self.memory.shape[0]


def _rows_at_once(row_bytes: int) -> int:
    return max(BUFFER_BYTES // max(row_bytes, 1), 1)


def _pieces(targets: list[Target], most: int) -> Iterator[tuple[int, int]]:
    """The rows that the targets need, so many at once."""
    done = 0
    for target in sorted(targets, key=lambda target: target.begin):
        for begin in range(max(done, target.begin), target.end, most):
            yield begin, min(begin + most, target.end)
        done = max(done, target.end)


class Staging:
    """Two buffers used in turn: a GPU copies from one while the next rows are read into the other."""

    def __init__(self, device: torch.device, tensors: Iterable[Stored]) -> None:
        self._device = device
        self._async = device.type == "cuda"
        self._buffer_bytes = max(
            (min(x.bytes, _rows_at_once(x.row_bytes()) * x.row_bytes()) for x in tensors), default=0
        )
        self._buffers: list[Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self._turn = 0

    def bring(self, tensor: Stored, targets: list[Target], advance: Callable[[int], None]) -> None:
        """Fills the targets, which have the same columns. advance: called with the number of bytes read."""
        columns = targets[0].columns
        row_bytes = tensor.row_bytes(columns)
        width = tensor.shape[1:] if columns is None else (columns[1] - columns[0],)
        for begin, end in _pieces(targets, max(self._buffer_bytes // max(row_bytes, 1), 1)):
            size = (end - begin) * row_bytes
            host = self._free()[:size].view(tensor.dtype).view(end - begin, *width)
            tensor.read_into(host, begin, columns)
            for target in targets:
                first, last = max(begin, target.begin), min(end, target.end)
                if first < last:
                    to = target.memory[first - target.begin : last - target.begin]
                    self._copy(to, host[first - begin : last - begin])
            self._sent()
            advance(size)

    def finish(self) -> None:
        """Waits until all copies have finished."""
        for event in self._copied:
            event.synchronize()

    def _free(self) -> Tensor:
        """The next buffer, once its last copy has finished."""
        if self._turn == len(self._buffers):
            self._buffers.append(
                torch.empty(self._buffer_bytes, dtype=torch.uint8, device="cpu", pin_memory=self._async)
            )
            if self._async:
                self._copied.append(torch.cuda.Event())
        elif self._async:
            self._copied[self._turn].synchronize()
        return self._buffers[self._turn]

    def _copy(self, to: Tensor, rows: Tensor) -> None:
        if self._async and to.dtype != rows.dtype:  # converted by the GPU: the CPU would do it without threads
            rows = rows.to(self._device, non_blocking=True)
        to.copy_(rows, non_blocking=self._async)

    def _sent(self) -> None:
        if self._async:
            self._copied[self._turn].record(torch.cuda.current_stream(self._device))
            self._turn = 1 - self._turn
