# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and gradients of the layers' ops. functional.py calls them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.checks import accumulate_dtype, promoted_dtype
from .._core.ops import OPS, OpFunction, first_order

# ---- shapes


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _gradient(x: Tensor | None, beside: Tensor) -> Tensor:
    return beside.new_empty(0) if x is None else _like(x)


@torch.library.register_fake("xlstm_hip::rms_norm")
def _(x, weight, bias, eps, out_dtype=None):
    return _like(x, out_dtype or promoted_dtype(x, weight, bias))


@torch.library.register_fake("xlstm_hip::add_rms_norm")
def _(x, y, weight, bias, eps, out_dtype=None):
    total = _like(x, promoted_dtype(x, y))
    return total, _like(x, out_dtype or promoted_dtype(total, weight, bias))


@torch.library.register_fake("xlstm_hip::rms_norm_backward")
def _(dy, dtotal, x, weight, bias, eps):
    return _like(x), _gradient(weight, x), _gradient(bias, x)


@torch.library.register_fake("xlstm_hip::head_norm_gate")
def _(h, o, weight, bias, eps, centred, out_dtype=None):
    dtype = out_dtype or promoted_dtype(h, o, weight, bias)
    return h.new_empty(*h.shape[:-2], h.shape[-2] * h.shape[-1], dtype=dtype)


@torch.library.register_fake("xlstm_hip::head_norm_gate_backward")
def _(dy, h, o, weight, bias, eps, centred):
    return _like(h), _gradient(o, h), _gradient(weight, h), _gradient(bias, h)


@torch.library.register_fake("xlstm_hip::soft_cap")
def _(x, cap):
    return _like(x)


@torch.library.register_fake("xlstm_hip::soft_cap_backward")
def _(dy, x, cap):
    return _like(x)


@torch.library.register_fake("xlstm_hip::swiglu")
def _(gate, up):
    return _like(gate, promoted_dtype(gate, up))


@torch.library.register_fake("xlstm_hip::swiglu_fused")
def _(gate_and_up):
    return gate_and_up.new_empty(*gate_and_up.shape[:-1], gate_and_up.shape[-1] // 2)


@torch.library.register_fake("xlstm_hip::swiglu_backward")
def _(dy, gate, up):
    return _like(gate), _like(up)


@torch.library.register_fake("xlstm_hip::swiglu_fused_backward")
def _(dy, gate_and_up):
    return _like(gate_and_up)


@torch.library.register_fake("xlstm_hip::cross_entropy")
def _(logits, targets, cap, ignore_index):
    wide = accumulate_dtype(logits.dtype)
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=wide), logits.new_empty(rows, 2, dtype=wide)


@torch.library.register_fake("xlstm_hip::cross_entropy_backward")
def _(dloss, logits, targets, exps, cap, ignore_index):
    return _like(logits)


@torch.library.register_fake("xlstm_hip::cross_entropy_backward_")
def _(dloss, logits, targets, exps, cap, ignore_index):
    return None


# ---- gradients


def _if_present(x: Tensor | None, gradient: Tensor) -> Tensor | None:
    return None if x is None else gradient


class RMSNormFunction(OpFunction):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, eps, out_dtype):
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return OPS.rms_norm(x, weight, bias, eps, out_dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy):
        x, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = OPS.rms_norm_backward(dy, None, x, weight, bias, ctx.eps)
        return dx, _if_present(weight, dweight), _if_present(bias, dbias), None, None


class AddRMSNormFunction(OpFunction):
    """Backward needs only the sum, which the next layer keeps anyway."""

    @staticmethod
    def forward(ctx: Any, x, y, weight, bias, eps, out_dtype):
        total, normed = OPS.add_rms_norm(x, y, weight, bias, eps, out_dtype)
        ctx.save_for_backward(total, weight, bias)
        ctx.eps, ctx.dtypes = eps, (x.dtype, y.dtype)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @first_order
    def backward(ctx: Any, dtotal, dnormed):
        total, weight, bias = ctx.saved_tensors
        dweight = dbias = None
        if dnormed is not None:
            dtotal, dweight, dbias = OPS.rms_norm_backward(dnormed, dtotal, total, weight, bias, ctx.eps)
            dweight, dbias = _if_present(weight, dweight), _if_present(bias, dbias)
        if dtotal is None:
            return (None,) * 6
        return *(dtotal.to(dtype) for dtype in ctx.dtypes), dweight, dbias, None, None


class HeadNormGateFunction(OpFunction):
    @staticmethod
    def forward(ctx: Any, h, o, weight, bias, eps, centred, out_dtype):
        ctx.save_for_backward(h, o, weight, bias)
        ctx.options = eps, centred
        return OPS.head_norm_gate(h, o, weight, bias, eps, centred, out_dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy):
        h, o, weight, bias = ctx.saved_tensors
        dh, do, dweight, dbias = OPS.head_norm_gate_backward(dy, h, o, weight, bias, *ctx.options)
        return dh, _if_present(o, do), _if_present(weight, dweight), _if_present(bias, dbias), None, None, None


class SoftCapFunction(OpFunction):
    @staticmethod
    def forward(ctx: Any, x, cap):
        ctx.save_for_backward(x)
        ctx.cap = cap
        return OPS.soft_cap(x, cap)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy):
        return OPS.soft_cap_backward(dy, *ctx.saved_tensors, ctx.cap), None


class SwigluFunction(OpFunction):
    @staticmethod
    def forward(ctx: Any, gate, up):
        ctx.save_for_backward(gate, up)
        return OPS.swiglu(gate, up)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy):
        return tuple(OPS.swiglu_backward(dy, *ctx.saved_tensors))


class SwigluFusedFunction(OpFunction):
    @staticmethod
    def forward(ctx: Any, gate_and_up):
        ctx.save_for_backward(gate_and_up)
        return OPS.swiglu_fused(gate_and_up)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy):
        return OPS.swiglu_fused_backward(dy, *ctx.saved_tensors)


class CrossEntropyFunction(OpFunction):
    """The loss of each row. With in_place the gradient overwrites the logits."""

    @staticmethod
    def forward(ctx: Any, logits, targets, cap, ignore_index, in_place):
        loss, exps = OPS.cross_entropy(logits, targets, cap, ignore_index)
        ctx.save_for_backward(logits, targets, exps)
        ctx.options, ctx.in_place = (cap, ignore_index), in_place
        return loss

    @staticmethod
    @first_order
    def backward(ctx: Any, dloss):
        logits, targets, exps = ctx.saved_tensors
        if ctx.in_place:
            OPS.cross_entropy_backward_(dloss, logits, targets, exps, *ctx.options)
            torch.autograd.graph.increment_version(logits)  # a second backward through them is then an error
            dlogits = logits.detach()
        else:
            dlogits = OPS.cross_entropy_backward(dloss, logits, targets, exps, *ctx.options)
        return dlogits, None, None, None, None
