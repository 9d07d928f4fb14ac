# SPDX-License-Identifier: Apache-2.0
"""Packed sequences for a kernel that takes one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .core import States


def one_by_one(
    kernel: Callable[..., Any],
    tensors: tuple[Tensor, ...],
    states: tuple[Tensor | None, ...],
    ends: list[int],
    common: dict[str, Any],
) -> Tensor | tuple[Tensor, States]:
    """tensors: q, k, v, i, f of all sequences. ends: where each begins, and the last one's end."""
    outs, lasts = [], []
    for n, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        state = (None if x is None else x[n : n + 1] for x in states)
        out = kernel(*(x[:, :, begin:end] for x in tensors), *state, **common)
        h, last = out if common["return_last_states"] else (out, ())
        outs.append(h)
        lasts.append(last)
    h = torch.cat(outs, dim=2)
    if not common["return_last_states"]:
        return h
    c, n_last, m = (torch.cat(same) for same in zip(*lasts, strict=True))
    return h, (c, n_last, m)
