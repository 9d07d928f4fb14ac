# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, sequence by sequence and head by head, sharing no code with the package: the truth.

Sequences are lists of (queries, keys, values); layouts are made from them, so that one truth serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MASK = np.uint64(0xFFFFFFFF)


def philox4x32(counter: np.ndarray, seed: int) -> np.ndarray:
    """(..., 4) words of 32 bits in uint64 -> as many, by ten rounds of Salmon et al.'s Philox."""
    a, b, c, d = (counter[..., j].astype(np.uint64) for j in range(4))
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = second >> np.uint64(32) ^ b ^ k0, second & MASK, first >> np.uint64(32) ^ d ^ k1, first & MASK
        k0, k1 = k0 + np.uint64(0x9E3779B9) & MASK, k1 + np.uint64(0xBB67AE85) & MASK
    return np.stack([a, b, c, d], axis=-1)


def dropout_keep(rng_state: Tensor, row: int, queries: int, keys: int, p: float) -> Tensor:
    """The mask of weights of sequence-and-head `row` that dropout keeps: 16 bits each, eight keys to a counter."""
    eights = -(-keys // 8)
    counter = np.zeros((queries, eights, 4), np.uint64)
    counter[..., 0] = np.arange(eights)
    counter[..., 1] = np.arange(queries)[:, None]
    counter[..., 2] = row
    counter[..., 3] = int(rng_state[1]) & 0xFFFFFFFF
    words = philox4x32(counter, int(rng_state[0]))
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1)
    draws = halves.reshape(queries, eights * 8)[:, :keys]
    return torch.from_numpy(draws >= np.uint64(round(p * 65536)))


@dataclass
class Rules:
    scale: float
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    slopes: Tensor | None = None  # (H) or (B, H)
    sink: Tensor | None = None  # (H)
    dropout_p: float = 0.0
    rng_state: Tensor | None = None
    lse_with_sink: bool = True


def one_head(
    q: Tensor, k: Tensor, v: Tensor, rules: Rules, b: int, head: int, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(Q, D), (K, D), (K, D_v) -> out (Q, D_v), lse (Q), softmax (Q, K), negative where dropped."""
    queries, keys = q.shape[0], k.shape[0]
    left, right = rules.window
    right = 0 if rules.causal else right
    apart = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= apart >= -left
    if right >= 0:
        seen &= apart <= right
    y = rules.scale * (q @ k.T)
    if rules.softcap:
        y = rules.softcap * torch.tanh(y / rules.softcap)
    if rules.slopes is not None:
        y = y - float(rules.slopes[b, head] if rules.slopes.dim() == 2 else rules.slopes[head]) * apart.abs().double()
    # Keys that a row does not see are left out by a zero in the sum, not by an infinity: rows may see none.
    top = y.detach().masked_fill(~seen, -1e30).amax(1, keepdim=True) if keys else y.new_zeros(queries, 1)
    if rules.sink is not None:
        top = top.maximum(rules.sink[head].detach())
    top = top.clamp(min=-1e20)
    terms = torch.exp((y - top).masked_fill(~seen, -1e4)) * seen
    of_keys = denominator = terms.sum(1, keepdim=True)
    if rules.sink is not None:
        denominator = denominator + torch.exp(rules.sink[head] - top)
    softmax = terms / denominator.masked_fill(denominator == 0, 1)
    counted = denominator if rules.lse_with_sink else of_keys
    lse = torch.where(counted == 0, math.inf, top + counted.masked_fill(counted == 0, 1).log())[:, 0]
    used = softmax
    if rules.dropout_p:
        assert rules.rng_state is not None
        mask = dropout_keep(rules.rng_state, b * heads + head, queries, keys, rules.dropout_p)
        used = softmax * mask / (1 - round(rules.dropout_p * 65536) / 65536)
        softmax = torch.where(mask, softmax, -softmax)
    return used @ v, lse, softmax


def attention(sequences: Sequence[tuple[Tensor, Tensor, Tensor]], rules: Rules) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Per sequence (Q, H, D), (K, H_k, D), (K, H_k, D_v) -> out (Q, H, D_v), lse (H, Q), softmax (H, Q, K)."""
    results = []
    for b, (q, k, v) in enumerate(sequences):
        heads, group = q.shape[1], q.shape[1] // k.shape[1]
        each = [one_head(q[:, h], k[:, h // group], v[:, h // group], rules, b, h, heads) for h in range(heads)]
        outs, lses, weights = zip(*each, strict=True)
        results.append((torch.stack(outs, 1), torch.stack(lses), torch.stack(weights)))
    return results


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """(S, H, D) by tables (S, rotary_dim / 2)."""
    half = cos.shape[-1]
    y = x.clone()
    for j in range(half):
        a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + half)
        c, s = cos[:, j, None], sin[:, j, None]
        y[..., a] = x[..., a] * c - x[..., b] * s
        y[..., b] = x[..., a] * s + x[..., b] * c
    return y
