# SPDX-License-Identifier: Apache-2.0
"""Calls that do not depend on each other, as branches of a GPU graph.

A decode step's products are short: while one ends, some multiprocessors have nothing to do, and the next begins with
cold loads. Branches overlap that. Outside of a capture they would cost the host more than they gain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def in_branches(x: Tensor, *calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that read x (B, S, D). A captured step of single tokens on NVIDIA gives each call but the
    first a stream of its own; HIP's graphs were not measured. Everywhere else the calls follow each other."""
    if torch.compiler.is_compiling() or not _captures_a_step(x):
        return [call() for call in calls]
    main = torch.cuda.current_stream(x.device)
    sides = [_side_stream(x.device, n) for n in range(1, len(calls))]
    results = []
    for side, call in zip(sides, calls[1:], strict=True):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            results.append(call())
    first = calls[0]()
    for side in sides:
        main.wait_stream(side)  # what a side allocates next it also writes behind main's reads of this call's results
    return [first, *results]


def _captures_a_step(x: Tensor) -> bool:
    return x.is_cuda and x.shape[1] == 1 and torch.version.hip is None and torch.cuda.is_current_stream_capturing()


@functools.cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
