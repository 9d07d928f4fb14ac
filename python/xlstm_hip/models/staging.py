# SPDX-License-Identifier: Apache-2.0
"""Moves a tensor from its file to parameters on another device, of another dtype, or that hold parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .mapping import RowRange
from .shards import Stored

BUFFER_BYTES = 16 << 20  # caches still hold what was read when it is copied on


def _row_bytes(tensor: Stored) -> int:
    return tensor.bytes // max(tensor.shape[0], 1)


def _rows_at_once(tensor: Stored) -> int:
    return max(BUFFER_BYTES // max(_row_bytes(tensor), 1), 1)


class Staging:
    """Two buffers used in turn: a GPU copies from one while the next rows are read into the other."""

    def __init__(self, device: torch.device, tensors: Iterable[Stored]) -> None:
        self._device = device
        self._async = device.type == "cuda"
        self._buffer_bytes = max((min(x.bytes, _rows_at_once(x) * _row_bytes(x)) for x in tensors), default=0)
        self._buffers: list[Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self._turn = 0

    def bring(self, tensor: Stored, targets: list[tuple[Tensor, RowRange]], advance: Callable[[int], None]) -> None:
        """Fills each target with its rows of the tensor. advance: called with the number of bytes read."""
        rows, row_bytes = tensor.shape[0], _row_bytes(tensor)
        each = _rows_at_once(tensor)
        for begin in range(0, rows, each):
            end = min(begin + each, rows)
            size = (end - begin) * row_bytes
            host = self._free()[:size].view(tensor.dtype).view(end - begin, *tensor.shape[1:])
            tensor.read_into(host, begin * row_bytes)
            for target, part in targets:
                first, last = max(begin, part.begin), min(end, part.end)
                if first < last:
                    self._copy(target[first - part.begin : last - part.begin], host[first - begin : last - begin])
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
