# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding of C to bfloat16 with the random bits of csrc/mlstm/recurrence.h, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .gates import log_gates

_MASK, _STEP, _MULTIPLIERS = 0xFFFFFFFF, 0x9E3779B9, (0xD2511F53, 0xCD9E8D57)  # words of 32 bits, kept in int64


def _mixed(x: Tensor) -> Tensor:
    x = ((x ^ x >> 16) * _MULTIPLIERS[0]) & _MASK
    x = ((x ^ x >> 15) * _MULTIPLIERS[1]) & _MASK
    return x ^ x >> 16


def _bits(x: Tensor) -> Tensor:
    return x.float().contiguous().view(torch.int32).to(torch.int64) & _MASK


def random_bits(
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    n: Tensor,  # (B, NH, DHQK), before the token, as m
    m: Tensor,  # (B, NH, 1)
    gate: str,
    columns: int,
) -> Tensor:  # (B, NH, DHQK, columns) int64: 16 bits each
    li, lf = log_gates(i.double(), f.double(), gate, torch.float64)
    before = m.double()
    after = torch.maximum(lf + before, li) if gate == "exp" else torch.zeros_like(before)
    heads, rows, pairs = (torch.arange(size, device=n.device) for size in (*n.shape[1:], (columns + 1) // 2))
    token = _mixed((_bits(torch.exp(lf + before - after)) + heads[:, None] * _STEP) & _MASK)
    token = _mixed((token + _bits(torch.exp(li - after))) & _MASK)
    row = _mixed(((token + rows * _STEP) & _MASK) ^ _bits(n))
    pair = (row[..., None] + pairs * _STEP) & _MASK
    pair = ((pair ^ pair >> 15) * _MULTIPLIERS[0]) & _MASK
    return torch.stack((pair & 0xFFFF, pair >> 16), dim=-1).flatten(-2)[..., :columns]


def rounded_c(c: Tensor, i: Tensor, f: Tensor, n: Tensor, m: Tensor, gate: str) -> Tensor:
    """The new c (B, NH, DHQK, DHHV) in bfloat16. The rest is as in random_bits."""
    bits = c.float().contiguous().view(torch.int32)
    random = random_bits(i, f, n, m, gate, c.shape[-1]).to(torch.int32)
    up = torch.where(c.isnan(), bits, bits + random)
    return (up >> 16).to(torch.int16).view(torch.bfloat16)
