# SPDX-License-Identifier: Apache-2.0
"""C of a kept state in fewer bytes. It is rounded once, when it is kept; n and m, of fewer bytes, stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = ("bfloat16", "int8")
GREATEST = 127
SCALE_BYTES = 4


def narrowed(c: Tensor, dtype: str | None) -> Tensor:
    """C (..., DHV) in this dtype, or itself for None. int8: a row of values and, in four more columns, the bytes of its
    scale, so that it stays one tensor. The error is at most half a scale, which is the row's greatest value / 127.
    """
    if dtype is None:
        return c
    if dtype == "bfloat16":
        return c.to(torch.bfloat16)
    scale = (c.abs().amax(-1, keepdim=True).float() / GREATEST).clamp(min=torch.finfo(torch.float32).tiny)
    values = (c.float() / scale).round().to(torch.int8)
    return torch.cat((values, scale.view(torch.int8)), -1)


def widened(c: Tensor) -> Tensor:
    """What narrowed made of a C, in a dtype that a copy converts."""
    if c.dtype != torch.int8:
        return c
    scale = c[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return c[..., :-SCALE_BYTES] * scale


def narrow_bytes(c: Tensor, dtype: str | None) -> int:
    """Of narrowed(c, dtype)."""
    if dtype is None:
        return c.nbytes
    rows = c.numel() // c.shape[-1]
    return 2 * c.numel() if dtype == "bfloat16" else c.numel() + SCALE_BYTES * rows
