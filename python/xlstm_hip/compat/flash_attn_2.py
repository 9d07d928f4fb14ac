# SPDX-License-Identifier: Apache-2.0
"""The part of flash_attn.flash_attn_interface beside its public functions: the two halves of attention that ring
attention and sequence parallelism call one by one, and the autograd functions.

The halves have FlashAttention-2.8's arguments and results, and record no gradient. Unlike its CUDA kernels, and like
its AMD ones, they round no length up: softmax_lse, S_dmask and softmax_d have the tensors' own lengths. rng_state is
the seed and the offset of this package's dropout, (2) int64: a forward pass draws it, and the backward pass that it is
given to drops the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import attention
from .._core.checks import has_shape
from .._core.environment import plain_torch_forced
from ..attention import checks
from ..attention.functions import attend_pages, dense_call, varlen_call
from ..attention.ops import Call, backward_pass, drawn_seed, forward_pass
from .function_classes import function_class

USE_TRITON_ROCM = False  # whether Triton's kernels are called


def maybe_contiguous(x: Tensor | None) -> Tensor | None:
    """x with its last dimension contiguous, by a copy if need be."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def round_multiple(x: int, m: int) -> int:
    """The least multiple of m from x up."""
    return -(-x // m) * m


def _forward_half(call: Call, return_softmax: bool, splits: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dropped = call.options.dropout_p > 0
    if checks.flag("return_softmax", return_softmax) and not dropped:
        raise ValueError("return_softmax: expected False without dropout")
    rng_state = drawn_seed(call)
    out, lse, *weights = forward_pass(call, rng_state, return_softmax, splits)
    if rng_state is None:
        rng_state = torch.zeros(2, dtype=torch.int64, device=out.device)
    return out, lse, weights[0] if weights else out.new_empty(0), rng_state


def _backward_half(
    call: Call,
    dout: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    buffers: dict[str, Tensor | None],
    rng_state: Tensor | None,
    deterministic: bool,
) -> Tensor:
    q, dropped = call.q, call.options.dropout_p
    if plain_torch_forced():
        raise NotImplementedError(
            "XLSTM_HIP_BACKEND: expected not to be reference; plain torch has no separate backward pass"
        )
    shape = (*q.shape[:-1], call.v.shape[-1])
    for name, x in (("dout", dout), ("out", out)):
        if has_shape(name, x, shape, "q's but for v's head dim").dtype != q.dtype:
            raise TypeError(f"{name}: expected {q.dtype} as q has, got {x.dtype}")
        checks.on_device(name, x, q)
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    has_shape("softmax_lse", softmax_lse, rows, "(H, T)" if q.dim() == 3 else "(B, H, S)")
    for (name, gradient), like in zip(buffers.items(), (q, call.k, call.v), strict=True):
        if gradient is not None:
            has_shape(name, gradient, tuple(like.shape), f"{name[1:]}'s")
    if dropped and rng_state is None:
        raise ValueError("rng_state: expected the tensor that the forward pass returned, because dropout_p > 0")
    with torch.no_grad():
        out = checks.heads("out", out, q.dim(), "as q has", q)
        gradients = backward_pass(
            call, rng_state if dropped else None, out, softmax_lse.contiguous(), dout, deterministic
        )
        for gradient, value in zip(buffers.values(), gradients, strict=True):
            if gradient is not None:
                gradient.copy_(value)
        wide = softmax_lse.dtype
        return (dout.to(wide) * out.to(wide)).sum(-1).transpose(-1, -2).contiguous() * (1 - dropped)


def _flash_attn_forward(
    q: Tensor,  # (B, S_q, H_q, D)
    k: Tensor,  # (B, S_k, H_k, D)
    v: Tensor,  # (B, S_k, H_k, D_v)
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns out, softmax_lse (B, H_q, S_q), S_dmask, empty unless return_softmax, and rng_state."""
    with torch.no_grad():
        window = (window_size_left, window_size_right)
        call = dense_call(q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes)
        return _forward_half(call, return_softmax)


def _flash_attn_backward(
    dout: Tensor,  # (B, S_q, H_q, D_v)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,  # (B, H_q, S_q)
    dq: Tensor | None,  # written, where given
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Returns softmax_d (B, H_q, S_q), the sum of dout * out over the features, times 1 - dropout_p.

    out and softmax_lse may be of attention over more keys than k and v: the gradients are then this part's share.
    """
    checks.flag("deterministic", deterministic)
    window = (window_size_left, window_size_right)
    call = dense_call(q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes)
    return _backward_half(call, dout, out, softmax_lse, {"dq": dq, "dk": dk, "dv": dv}, rng_state, deterministic)


def _flash_attn_varlen_forward(
    q: Tensor,  # (T_q, H_q, D)
    k: Tensor,  # (T_k, H_k, D), or with block_table pages (N, page, H_k, D)
    v: Tensor,  # (T_k, H_k, D_v), or pages
    cu_seqlens_q: Tensor,  # (B + 1)
    cu_seqlens_k: Tensor,  # (B + 1)
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns out, softmax_lse (H_q, T_q), S_dmask, empty unless return_softmax, and rng_state. zero_tensors: tokens of
    no sequence are 0 in out and softmax_lse, asked for or not."""
    checks.flag("zero_tensors", zero_tensors)
    checks.flag("return_softmax", return_softmax)
    with torch.no_grad():
        window = (window_size_left, window_size_right)
        call = varlen_call(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window,
            softcap, alibi_slopes, seqused_k=seqused_k, leftpad_k=leftpad_k, paged=block_table is not None,
        )  # fmt: skip
        splits = checks.splits(num_splits)
        if return_softmax and splits > 1:
            raise ValueError(f"num_splits: expected 0 or 1 with return_softmax, got {num_splits}")
        if block_table is None:
            return _forward_half(call, return_softmax, splits)
        if return_softmax:
            raise ValueError("return_softmax: expected False with block_table")
        out, lse = attend_pages(*call, block_table, splits)
        return out, lse, out.new_empty(0), torch.zeros(2, dtype=torch.int64, device=out.device)


def _flash_attn_varlen_backward(
    dout: Tensor,  # (T_q, H_q, D_v)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,  # (H_q, T_q)
    dq: Tensor | None,  # written, where given
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Returns softmax_d (H_q, T_q), as _flash_attn_backward does. zero_tensors: tokens of no sequence get gradients of
    0, asked for or not."""
    checks.flag("deterministic", deterministic)
    checks.flag("zero_tensors", zero_tensors)
    window = (window_size_left, window_size_right)
    call = varlen_call(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window,
        softcap, alibi_slopes,
    )  # fmt: skip
    return _backward_half(call, dout, out, softmax_lse, {"dq": dq, "dk": dk, "dv": dv}, rng_state, deterministic)


def _applied(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*arguments: Any) -> Any:
        """The function's arguments in their order, then whether gradients are recorded."""
        *call, is_grad_enabled = arguments
        with torch.set_grad_enabled(torch.is_grad_enabled() and checks.flag("is_grad_enabled", is_grad_enabled)):
            return function(*call)

    return apply


APPLIED: dict[str, Callable[..., Any]] = {
    "FlashAttnFunc": attention.flash_attn_func,
    "FlashAttnKVPackedFunc": attention.flash_attn_kvpacked_func,
    "FlashAttnQKVPackedFunc": attention.flash_attn_qkvpacked_func,
    "FlashAttnVarlenFunc": attention.flash_attn_varlen_func,
    "FlashAttnVarlenKVPackedFunc": attention.flash_attn_varlen_kvpacked_func,
    "FlashAttnVarlenQKVPackedFunc": attention.flash_attn_varlen_qkvpacked_func,
}
FUNCTION_CLASSES = {name: function_class(name, _applied(function)) for name, function in APPLIED.items()}
HALVES = {
    function.__name__: function
    for function in (_flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward)
}
# The attributes of flash_attn_interface beside the public functions. Its halves also exist as torch's wrapped ops.
CONTENTS = {
    **FUNCTION_CLASSES,
    **HALVES,
    **{f"_wrapped{name}": function for name, function in HALVES.items()},
    "USE_TRITON_ROCM": USE_TRITON_ROCM,
    "maybe_contiguous": maybe_contiguous,
    "round_multiple": round_multiple,
}
