# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM, one function each, for models to call.

Each is one op if the library has a kernel for the tensors' device and dtype: on the CPU, and on a GPU for float32,
bfloat16 and float16. Otherwise, and with XLSTM_HIP_BACKEND=reference, it is plain torch (reference/layers.py). In both
cases reductions run in float32 (float64 for float64), dtypes promote as in torch, and a norm is rounded to its input's
dtype before the weight is applied, the order with which xLSTM-7B was trained. A norm whose result is float32 by that
promotion is stored in a two-byte `out_dtype`, as a cast of the result would round it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._core import logging
from .._core.checks import gradient_needed, one_of, promoted_dtype, same_device
from .._core.environment import plain_torch_forced
from .._core.ops import OPS, devices_with_kernels
from ..reference import layers as plain
from . import ops

_DEVICES = devices_with_kernels("rms_norm")


def has_kernel(x: Tensor, layer: str) -> bool:
    device = x.device.type
    has = device in _DEVICES and (device == "cpu" or x.dtype != torch.float64) and not plain_torch_forced()
    if logging.DISPATCH and not has:
        logging.chosen(layer, "plain torch", {"x": x})
    return has


def _result_dtype(out_dtype: torch.dtype | None, *tensors: Tensor | None) -> torch.dtype | None:
    """out_dtype, or None where it is that of torch's promotion anyway."""
    if out_dtype is None:
        return None
    promoted = promoted_dtype(*tensors)
    if out_dtype == promoted:
        return None
    if promoted != torch.float32 or out_dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"out_dtype: expected {promoted} (the promoted dtype), or torch.bfloat16 or torch.float16 where that is "
            f"torch.float32, got {out_dtype}"
        )
    return out_dtype


def rms_norm(
    x: Tensor,  # (..., D)
    weight: Tensor | None,  # (D)
    bias: Tensor | None = None,  # (D)
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    same_device("x", x, weight=weight, bias=bias)
    out_dtype = _result_dtype(out_dtype, x, weight, bias)
    if not has_kernel(x, "rms_norm"):
        return plain.rms_norm(x, weight, bias, eps, out_dtype)
    call = ops.RMSNormFunction.apply if gradient_needed(x, weight, bias) else OPS.rms_norm
    return call(x, weight, bias, eps, out_dtype)


def add_rms_norm(
    x: Tensor,  # (..., D), the residual stream
    y: Tensor,  # (..., D), what is added to it
    weight: Tensor | None,  # (D)
    bias: Tensor | None = None,  # (D)
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,  # of the norm
) -> tuple[Tensor, Tensor]:
    """Returns x + y and its RMSNorm."""
    same_device("x", x, y=y, weight=weight, bias=bias)
    out_dtype = _result_dtype(out_dtype, x, y, weight, bias)
    if not has_kernel(x, "add_rms_norm"):
        return plain.add_rms_norm(x, y, weight, bias, eps, out_dtype)
    call = ops.AddRMSNormFunction.apply if gradient_needed(x, y, weight, bias) else OPS.add_rms_norm
    return call(x, y, weight, bias, eps, out_dtype)


def head_norm_gate(
    h: Tensor,  # (..., NH, DHHV)
    o: Tensor | None,  # (..., NH * DHHV), the output gate before its sigmoid; None: no gate
    weight: Tensor | None,  # (NH * DHHV)
    bias: Tensor | None = None,  # (NH * DHHV)
    eps: float = 1e-6,
    centred: bool = True,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # (..., NH * DHHV)
    """LayerNorm (centred) or RMSNorm of each head separately, multiplied by sigmoid(o)."""
    same_device("h", h, o=o, weight=weight, bias=bias)
    out_dtype = _result_dtype(out_dtype, h, o, weight, bias)
    if not has_kernel(h, "head_norm_gate"):
        return plain.head_norm_gate(h, o, weight, bias, eps, centred, out_dtype)
    call = ops.HeadNormGateFunction.apply if gradient_needed(h, o, weight, bias) else OPS.head_norm_gate
    return call(h, o, weight, bias, eps, centred, out_dtype)


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(x / cap): close to x for small x, never beyond cap. None leaves x unchanged."""
    if cap is None:
        return x
    if not has_kernel(x, "soft_cap"):
        return plain.soft_cap(x, cap)
    return (ops.SoftCapFunction.apply if gradient_needed(x) else OPS.soft_cap)(x, cap)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    same_device("gate", gate, up=up)
    if not has_kernel(gate, "swiglu"):
        return plain.swiglu(gate, up)
    return (ops.SwigluFunction.apply if gradient_needed(gate, up) else OPS.swiglu)(gate, up)


def swiglu_fused(gate_and_up: Tensor) -> Tensor:
    """swiglu of one tensor (..., 2 * D) with the gate first, the layout of a fused projection."""
    if not has_kernel(gate_and_up, "swiglu_fused"):
        return plain.swiglu_fused(gate_and_up)
    return (ops.SwigluFusedFunction.apply if gradient_needed(gate_and_up) else OPS.swiglu_fused)(gate_and_up)


def capped_cross_entropy(
    logits: Tensor,  # (N, V), before the cap
    targets: Tensor,  # (N) class indices, int64 or uint8
    cap: float | None,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_place: bool = False,
) -> Tensor:
    """torch's cross_entropy of the capped logits in float32 or wider. Forward allocates no second tensor of their size.

    in_place  backward writes the gradient over the logits and so allocates none either. Only for logits that are not
              used afterwards. Ignored under torch.compile.
    """
    one_of("reduction", reduction, ("mean", "sum", "none"))
    same_device("logits", logits, targets=targets)
    if not has_kernel(logits, "capped_cross_entropy"):
        return plain.capped_cross_entropy(logits, targets, cap, ignore_index, reduction)
    if gradient_needed(logits):
        overwrite = in_place and not torch.compiler.is_compiling()
        loss = ops.CrossEntropyFunction.apply(logits, targets, cap, ignore_index, overwrite)
    else:
        loss = OPS.cross_entropy(logits, targets, cap, ignore_index)[0]
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / (targets.long() != ignore_index).sum()
