# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention on these kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.checks import has_rank, is_tensor, shape_text
from . import checks
from .functions import flash_attn_func


def top_left(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Causal attention of (B, S, H, D) with SDPA's alignment: the first query sees the first key."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        has_rank(name, x, 4, "(B, S, H, D)")
    queries, keys = q.shape[1], k.shape[1]
    if queries <= keys:
        return flash_attn_func(q, k[:, :queries], v[:, :queries], causal=True, **options)
    head = flash_attn_func(q[:, :keys], k, v, causal=True, **options)
    return torch.cat([head, flash_attn_func(q[:, keys:], k, v, **options)], dim=1)


def scaled_dot_product_attention(
    query: Tensor,  # (B, H_q, S_q, D)
    key: Tensor,  # (B, H_k, S_k, D)
    value: Tensor,  # (B, H_k, S_k, D_v)
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """SDPA's arguments, shapes and top-left causal mask; attn_mask must be None. Returns (B, H_q, S_q, D_v)."""
    if attn_mask is not None:
        raise NotImplementedError(
            "attn_mask: expected None; the supported masks are is_causal, and windows in flash_attn_func"
        )
    for name, x in (("query", query), ("key", key), ("value", value)):
        if is_tensor(name, x).dim() != 4:
            raise ValueError(f"{name}: expected 4 dimensions (B, H, S, D), got {shape_text(x)}")
    if not checks.flag("enable_gqa", enable_gqa) and query.shape[1] != key.shape[1]:
        raise ValueError(f"key: expected {query.shape[1]} heads as query has, or enable_gqa=True, got {key.shape[1]}")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options: dict[str, Any] = {"dropout_p": dropout_p, "softmax_scale": scale}
    causal = checks.flag("is_causal", is_causal)
    return (top_left if causal else flash_attn_func)(q, k, v, **options).transpose(1, 2)
