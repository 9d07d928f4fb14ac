# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM in plain torch: what layers/functional.py runs where the op library has no kernel.

Reductions run in float32 (float64 for float64), and the result is rounded to the input's dtype before the weight is
applied: that order is the one xLSTM-7B was trained with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.checks import accumulate_dtype


def _widened(x: Tensor) -> Tensor:
    return x.to(accumulate_dtype(x.dtype))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _narrowed(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


def rms_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out_dtype: torch.dtype | None = None
) -> Tensor:
    y = F.rms_norm(_widened(x), x.shape[-1:], eps=eps)
    return _narrowed(_scaled(y.to(x.dtype), weight, bias), out_dtype)


def add_rms_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    x = x + y
    return x, rms_norm(x, weight, bias, eps, out_dtype)


def head_norm_gate(
    h: Tensor,
    o: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    wide, features = _widened(h), h.shape[-1:]
    y = F.layer_norm(wide, features, eps=eps) if centred else F.rms_norm(wide, features, eps=eps)
    y = _scaled(y.to(h.dtype).flatten(-2), weight, bias)
    return _narrowed(y if o is None else torch.sigmoid(o) * y, out_dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def swiglu_fused(gate_and_up: Tensor) -> Tensor:
    return swiglu(*gate_and_up.chunk(2, dim=-1))


def capped_cross_entropy(
    logits: Tensor, targets: Tensor, cap: float | None, ignore_index: int, reduction: str
) -> Tensor:
    logits = _widened(logits)
    logits = logits if cap is None else soft_cap(logits, cap)
    return F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)
