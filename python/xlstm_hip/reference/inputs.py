# SPDX-License-Identifier: Apache-2.0
"""Steps that every reference kernel takes before the maths: wide states, chunks, no autocast within."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.autocast import inside_autocast
from .._core.checks import accumulate_dtype

# q, k, v, i, f and the initial c, n, m; shapes as in the kernels' signatures
SequenceInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Autocast would cast the float32 sums inside a kernel; the kernel chooses its own dtypes."""
    return torch.autocast(x.device.type, enabled=False) if inside_autocast(x) else nullcontext()


def wide_states(
    q: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    c: Tensor | None,  # (B, NH, DHQK, DHHV)
    n: Tensor | None,  # (B, NH, DHQK)
    m: Tensor | None,  # (B, NH, 1)
) -> tuple[Tensor, Tensor, Tensor]:
    """The given states in the accumulation dtype, or the zero state (all three are given, or none)."""
    wide = accumulate_dtype(q.dtype)
    if c is not None and n is not None and m is not None:
        return c.to(wide), n.to(wide), m.to(wide)
    batch, heads, _, dqk = q.shape
    return (
        q.new_zeros((batch, heads, dqk, v.shape[-1]), dtype=wide),
        q.new_zeros((batch, heads, dqk), dtype=wide),
        q.new_zeros((batch, heads, 1), dtype=wide),
    )


def to_chunks(x: Tensor, chunk: int, fill: float = 0.0) -> Tensor:
    """(B, NH, S, ...) -> (B, NH, NC, L, ...): L = min(chunk, S), the tail filled up."""
    length = x.shape[2]
    chunk = min(chunk, length)
    missing = -length % chunk
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing), value=fill)
    return x.unflatten(2, (-1, chunk))


def from_chunks(x: Tensor, length: int) -> Tensor:
    """(B, NH, NC, L, ...) -> (B, NH, S, ...), the filled tail dropped."""
    return x.flatten(2, 3)[:, :, :length]
