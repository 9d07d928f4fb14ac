# SPDX-License-Identifier: Apache-2.0
"""Copies between the host and a GPU that the host does not wait for. On a CPU they are the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host, by way of pinned memory: a copy from other memory waits for the GPU."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def pinned_copy(x: Tensor) -> Tensor:
    """In pinned memory, where an event tells when it is complete."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


class ToHost:
    """Copies of a GPU's tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self._copied: torch.cuda.Event | None = None
        self._tensors = tensors
        if tensors[0].is_cuda:
            self._tensors = [pinned_copy(x) for x in tensors]
            self._copied = torch.cuda.Event()
            self._copied.record()

    def wait(self) -> list[Tensor]:
        """The copies, complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors
