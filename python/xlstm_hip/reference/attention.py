# SPDX-License-Identifier: Apache-2.0
"""Attention in plain torch, every argument of flash_attn_func: the whole matrix of weights, in the inputs' dtype.

With float64 inputs it is a truth to compare with; in another dtype it is what plain torch makes of the same call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .philox import LOW, philox


def philox_mask(
    rng_state: Tensor, batch: int, heads: int, queries: int, keys: int, dropout_p: float, first_sequence: int = 0
) -> Tensor:
    """The mask of weights that dropout keeps, (batch, heads, queries, keys): the rule of csrc/attention/rules.h."""
    seed, offset = (int(x) for x in rng_state)
    columns = (keys + 7) // 8
    shape = (batch * heads, queries, columns)
    words = philox(
        [
            torch.arange(columns).expand(shape),
            torch.arange(queries)[:, None].expand(shape),
            (first_sequence * heads + torch.arange(batch * heads))[:, None, None].expand(shape),
            torch.full(shape, offset & LOW),
        ],
        seed,
    )
    draws = torch.stack([half for word in words for half in (word & 0xFFFF, word >> 16)], dim=-1)
    keep = draws.flatten(-2)[..., :keys] >= dropout_threshold(dropout_p)
    return keep.unflatten(0, (batch, heads))


def dropout_threshold(dropout_p: float) -> int:
    """The number of 65536 draws that drop a weight."""
    nearest = int(dropout_p * 65536 + 0.5)
    return max(1, min(nearest, 65535)) if dropout_p > 0 else 0


def attention(
    q: Tensor,  # (B, S_q, H_q, D)
    k: Tensor,  # (B, S_k, H_k, D)
    v: Tensor,  # (B, S_k, H_k, D_v)
    *,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sink: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    rng_state: Tensor | None = None,  # (2): seed and offset, with dropout
    first_sequence: int = 0,  # of a larger batch, whose dropout these sequences have
) -> tuple[Tensor, Tensor, Tensor]:
    """out (B, S_q, H_q, D_v), lse (B, H_q, S_q) and the softmax (B, H_q, S_q, S_k), negative where dropped."""
    batch, queries, heads, features = q.shape
    keys, group = k.shape[1], heads // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    y = (q @ k.transpose(-1, -2)) * (features**-0.5 if softmax_scale is None else softmax_scale)
    if softcap > 0:
        y = softcap * torch.tanh(y / softcap)
    none = torch.zeros(batch, dtype=torch.int64, device=q.device)
    begin = none if leftpad_k is None else leftpad_k.long()
    end = none + keys if seqused_k is None else seqused_k.long()
    j = torch.arange(keys, device=q.device)
    diagonal = torch.arange(queries, device=q.device)[None] + end[:, None] - queries  # (B, S_q): the key beside a query
    apart = j - diagonal[:, None, :, None]  # (B, 1, S_q, S_k)
    if alibi_slopes is not None:
        slopes = alibi_slopes.to(y.dtype).expand(batch, heads)
        y = y - slopes[:, :, None, None] * apart.abs().to(y.dtype)
    left, right = window_size
    if causal:
        right = 0
    seen = (j >= begin[:, None, None, None]) & (j < end[:, None, None, None])
    if left >= 0:
        seen = seen & (apart >= -left)
    if right >= 0:
        seen = seen & (apart <= right)
    y = y.masked_fill(~seen, float("-inf"))
    if sink is not None:
        y = torch.cat([y, sink.to(y.dtype)[None, :, None, None].expand(batch, heads, queries, 1)], dim=-1)
    lse = y.logsumexp(-1) if y.shape[-1] else y.sum(-1) + float("-inf")
    empty = lse == float("-inf")
    softmax = torch.exp(y - lse.masked_fill(empty, 0)[..., None])[..., :keys]
    weights = softmax
    if dropout_p > 0:
        assert rng_state is not None
        shape = (batch, heads, queries, keys)
        # Key 0 of the mask is a sequence's first key in use.
        keep = (
            philox_mask(rng_state, *shape, dropout_p, first_sequence)
            .to(q.device)
            .gather(3, (j - begin[:, None, None, None]).clamp(min=0).expand(shape))
        )
        weights = weights * keep / (1 - dropout_threshold(dropout_p) / 65536)
        softmax = torch.where(keep, softmax, -softmax)
    out = (weights @ v).transpose(1, 2)
    return out, lse.masked_fill(empty, float("inf")), softmax
