# SPDX-License-Identifier: Apache-2.0
"""The replacement of flash_attention_amd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import attention
from ..attention import checks
from ..attention.sdpa import top_left
from ..reference.attention import attention as reference_attention


class FlashAttention(torch.nn.Module):
    """flash_attention_amd's module: dropout by either name, and a causal mask that begins at the top left."""

    def __init__(
        self, dropout: float | None = None, causal: bool = False, *, attention_dropout: float | None = None
    ) -> None:
        super().__init__()
        if dropout is not None and attention_dropout is not None:
            raise ValueError("attention_dropout: expected one of dropout and attention_dropout")
        name, probability = (
            ("dropout", dropout) if attention_dropout is None else ("attention_dropout", attention_dropout)
        )
        self.dropout = checks.dropout(0.0 if probability is None else probability, name)
        self.causal = checks.flag("causal", causal)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool | None = None
    ) -> Tensor:
        if mask is not None:
            raise NotImplementedError("mask: expected None; the only mask is causal")
        begins_top_left = self.causal if causal is None else checks.flag("causal", causal)
        call = top_left if begins_top_left else attention.flash_attn_func
        return call(q, k, v, dropout_p=self.dropout if self.training else 0.0)


def flash_attn_func(
    q: Tensor,  # (B, S_q, H, D)
    k: Tensor,  # (B, S_k, H, D)
    v: Tensor,  # (B, S_k, H, D)
    dropout_p: float = 0.0,
    causal: bool = False,
    return_attn_probs: bool = False,
    *,
    softmax_scale: float | None = None,
    block_size: int | None = None,
) -> Any:
    """flash_attention_amd's function: with return_attn_probs out and the softmax, before dropout."""
    options: dict[str, Any] = {"softmax_scale": softmax_scale, "block_size": block_size}
    call = top_left if checks.flag("causal", causal) else attention.flash_attn_func
    checks.flag("return_attn_probs", return_attn_probs)
    out = call(q, k, v, dropout_p=dropout_p, **options)
    if not return_attn_probs:
        return out
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError("return_attn_probs: expected as many keys as queries with causal")
    return out, reference_attention(q, k, v, softmax_scale=softmax_scale, causal=causal)[2]
