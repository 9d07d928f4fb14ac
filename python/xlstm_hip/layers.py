# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM, one function each. Models call these and nothing below them.

Reductions run in float32 (float64 for float64) where `wide` is set, and the result is rounded to the input's dtype
before the weight is applied: that order is the one xLSTM-7B was trained with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import accumulate_dtype


def _widened(x: Tensor, wide: bool) -> Tensor:
    return x.to(accumulate_dtype(x.dtype)) if wide else x


def _scaled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x = x * weight
    return x if bias is None else x + bias


def rms_norm(
    x: Tensor,  # (..., D)
    weight: Tensor,  # (D)
    bias: Tensor | None = None,  # (D)
    eps: float = 1e-6,
    wide: bool = True,
) -> Tensor:
    y = F.rms_norm(_widened(x, wide), x.shape[-1:], eps=eps)
    return _scaled(y.to(x.dtype), weight, bias)


def add_rms_norm(
    x: Tensor,  # (..., D), the residual stream
    y: Tensor,  # (..., D), what is added to it
    weight: Tensor,  # (D)
    bias: Tensor | None = None,  # (D)
    eps: float = 1e-6,
    wide: bool = True,
) -> tuple[Tensor, Tensor]:
    """x + y, and its norm."""
    x = x + y
    return x, rms_norm(x, weight, bias, eps, wide)


def head_norm_gate(
    h: Tensor,  # (B, S, NH, DHHV)
    o: Tensor,  # (B, S, NH * DHHV), the output gate before its sigmoid
    weight: Tensor,  # (NH * DHHV)
    bias: Tensor | None = None,  # (NH * DHHV)
    eps: float = 1e-6,
    wide: bool = True,
) -> Tensor:  # (B, S, NH * DHHV)
    """LayerNorm over each head by itself, then sigmoid(o) times it."""
    y = F.layer_norm(_widened(h, wide), h.shape[-1:], eps=eps)
    return torch.sigmoid(o) * _scaled(y.to(h.dtype).flatten(2), weight, bias)


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(x / cap): about x where x is small, never beyond cap. None caps nothing."""
    return x if cap is None else cap * torch.tanh(x / cap)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def capped_cross_entropy(
    logits: Tensor,  # (N, V), before the cap
    targets: Tensor,  # (N)
    cap: float | None,
) -> Tensor:
    """The mean negative log-probability of the targets under the capped logits, in float32 or wider."""
    return F.cross_entropy(soft_cap(logits.to(accumulate_dtype(logits.dtype)), cap), targets)
