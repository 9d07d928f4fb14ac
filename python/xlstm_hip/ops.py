# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels as torch ops: loading, shapes for the compiler, gradients, and the four fused functions.

The op library lies beside this file. Its schemas are in csrc/torch/register.cpp; what torch needs to know in Python,
fakes and autograd, is here. The functions keep the ecosystem's names and argument order; `interface.py` checks and
calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import checks

LIBRARY = Path(__file__).with_name("_xlstm_hip_ops.so")
if not LIBRARY.exists():
    raise ImportError(
        f"{LIBRARY.name} is missing beside {__file__}: build the package with `pip install .` in its source tree"
    )
torch.ops.load_library(str(LIBRARY))
_ops = torch.ops.xlstm_hip

FORWARD_OPS = ("mlstm_chunkwise", "mlstm_chunkwise_states", "mlstm_sequence", "mlstm_step", "mlstm_step_")
_DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA"}


def devices_with_kernels(op: str = "mlstm_chunkwise") -> tuple[str, ...]:
    """The device types that the loaded library has a kernel for."""
    name = f"xlstm_hip::{op}"
    return tuple(d for d, key in _DISPATCH_KEYS.items() if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


# ---- shapes, for torch.compile and fake tensors


def _tokens(q: Tensor, features: Any, bshd: bool) -> Tensor:
    b, nh, s, _ = q.shape
    return q.new_empty(b, s, nh, features).transpose(1, 2) if bshd else q.new_empty(b, nh, s, features)


def _gates(like: Tensor, bshd: bool) -> Tensor:
    b, nh, s = like.shape
    return like.new_empty(b, s, nh).transpose(1, 2) if bshd else like.new_empty(b, nh, s)


def _states(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    b, nh, _, dqk = q.shape
    n = b if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wide = checks.accumulate_dtype(q.dtype)
    return (
        q.new_empty(n, nh, dqk, v.shape[-1], dtype=wide),
        q.new_empty(n, nh, dqk, dtype=wide),
        q.new_empty(n, nh, 1, dtype=wide),
    )


def _h_and_l(q: Tensor, v: Tensor, bshd: bool) -> tuple[Tensor, Tensor]:
    return _tokens(q, v.shape[-1], bshd), q.new_empty(q.shape[:3], dtype=checks.accumulate_dtype(q.dtype))


@torch.library.register_fake("xlstm_hip::mlstm_chunkwise")
def _(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd):
    return _h_and_l(q, v, bshd)


@torch.library.register_fake("xlstm_hip::mlstm_chunkwise_states")
def _(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd):
    return *_h_and_l(q, v, bshd), *_states(q, v, cu_seqlens)


@torch.library.register_fake("xlstm_hip::mlstm_sequence")
def _(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, bshd):
    return *_h_and_l(q, v, bshd), *_states(q, v, cu_seqlens)


def _gradients(q: Tensor, v: Tensor, i: Tensor, f: Tensor, bshd: bool) -> tuple[Tensor, ...]:
    dqk = q.shape[-1]
    return _tokens(q, dqk, bshd), _tokens(q, dqk, bshd), _tokens(q, v.shape[-1], bshd), _gates(i, bshd), _gates(f, bshd)


@torch.library.register_fake("xlstm_hip::mlstm_backward")
def _(
    q,
    k,
    v,
    i,
    f,
    c,
    n,
    m,
    cu_seqlens,
    h,
    l,
    dh,
    dc,
    dn,
    dm,
    sigmoid_gate,
    normalize,
    normalizer_grad,
    eps,
    chunk_size,
    bshd,
):
    return _gradients(q, v, i, f, bshd)


@torch.library.register_fake("xlstm_hip::mlstm_backward_states")
def _(
    q,
    k,
    v,
    i,
    f,
    c,
    n,
    m,
    cu_seqlens,
    h,
    l,
    dh,
    dc,
    dn,
    dm,
    sigmoid_gate,
    normalize,
    normalizer_grad,
    eps,
    chunk_size,
    bshd,
):
    return *_gradients(q, v, i, f, bshd), *_states(q, v, cu_seqlens)


@torch.library.register_fake("xlstm_hip::mlstm_step")
def _(q, k, v, i, f, c, n, m, sigmoid_gate, normalize, eps):
    return q.new_empty(*q.shape[:2], v.shape[-1]), torch.empty_like(c), torch.empty_like(n), torch.empty_like(m)


@torch.library.register_fake("xlstm_hip::mlstm_step_")
def _(q, k, v, i, f, c, n, m, sigmoid_gate, normalize, eps):
    return q.new_empty(*q.shape[:2], v.shape[-1])


# ---- gradients


def _unit_last_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _zeros_for_none(xs: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(y) if x is None else x.contiguous() for x, y in zip(xs, like, strict=True)]


class _Sequence(torch.autograd.Function):
    """Every token at once or one by one; the backward pass is the chunkwise one for both."""

    @staticmethod
    def forward(ctx, q, k, v, i, f, c, n, m, cu_seqlens, recurrent, options):
        sigmoid_gate, normalize, normalizer_grad, eps, chunk_size, bshd = options
        if recurrent:
            h, l, *last = _ops.mlstm_sequence(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, bshd)
        else:
            h, l, *last = _ops.mlstm_chunkwise_states(
                q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd
            )
        ctx.save_for_backward(q, k, v, i, f, c, n, m, cu_seqlens, h, l)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return h, *last

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dc, dn, dm):
        return *_backward(ctx, dh, (dc, dn, dm)), None, None, None


class _SequenceWithoutStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, i, f, c, n, m, cu_seqlens, options):
        sigmoid_gate, normalize, normalizer_grad, eps, chunk_size, bshd = options
        h, l = _ops.mlstm_chunkwise(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd)
        ctx.save_for_backward(q, k, v, i, f, c, n, m, cu_seqlens, h, l)
        ctx.options = options
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, dh):
        return *_backward(ctx, dh, (None, None, None)), None, None


def _backward(ctx, dh: Tensor | None, dlast: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    q, k, v, i, f, c, n, m, cu_seqlens, h, l = ctx.saved_tensors
    sigmoid_gate, normalize, normalizer_grad, eps, chunk_size, bshd = ctx.options
    dh = torch.zeros_like(h) if dh is None else _unit_last_stride(dh)
    if any(x is not None for x in dlast):
        dlast = _zeros_for_none(dlast, _states(q, v, cu_seqlens))
    flags = (sigmoid_gate, normalize, normalizer_grad, eps, chunk_size, bshd)
    if c is None:
        return *_ops.mlstm_backward(q, k, v, i, f, c, n, m, cu_seqlens, h, l, dh, *dlast, *flags), None, None, None
    return tuple(_ops.mlstm_backward_states(q, k, v, i, f, c, n, m, cu_seqlens, h, l, dh, *dlast, *flags))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, i, f, c, n, m, options):
        sigmoid_gate, normalize, eps = options
        h, *last = _ops.mlstm_step(q, k, v, i, f, c, n, m, sigmoid_gate, normalize, eps)
        ctx.save_for_backward(q, k, v, i, f, c, n, m)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return h, *last

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dc, dn, dm):
        # One token is a sequence of one: made again with its l, then the sequence's backward.
        q, k, v, i, f, c, n, m = ctx.saved_tensors
        sigmoid_gate, normalize, eps = ctx.options
        one = (q[:, :, None], k[:, :, None], v[:, :, None], i, f, c, n, m, None)
        h, l = _ops.mlstm_chunkwise(*one, sigmoid_gate, normalize, eps, 1, False)
        dh = torch.zeros_like(h) if dh is None else _unit_last_stride(dh)[:, :, None]
        dlast = [dc, dn, dm]
        if any(x is not None for x in dlast):
            dlast = [
                torch.zeros_like(y) if x is None else x.contiguous() for x, y in zip(dlast, (c, n, m), strict=True)
            ]
        dq, dk, dv, *rest = _ops.mlstm_backward_states(
            *one, h, l, dh, *dlast, sigmoid_gate, normalize, True, eps, 1, False
        )
        return dq[:, :, 0], dk[:, :, 0], dv[:, :, 0], *rest, None


# ---- the fused functions


def _wide_state(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype).contiguous()


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _autocast(q: Tensor, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Inside an autocast region of q's device, the inputs in dtype; outside, as they are."""
    if torch.is_autocast_enabled(q.device.type):
        return tuple(x.to(dtype) for x in (q, *tensors))
    return q, *tensors


def _sequence(
    function: str,
    sigmoid_gate: bool,
    recurrent: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: Tensor | None,
    n_initial: Tensor | None,
    m_initial: Tensor | None,
    return_last_states: bool,
    eps: float,
    autocast_kernel_dtype: torch.dtype,
    chunk_size: int,
    kwargs: dict[str, Any],
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    known = ("cu_seqlens", "layout", "normalizer_grad") + (("normalize",) if sigmoid_gate else ())
    checks.no_unknown_keywords(function, kwargs, known)
    layout = kwargs.get("layout", "bhsd")
    checks.one_of("layout", layout, checks.LAYOUTS)
    bshd = layout == "bshd"
    if bshd:
        q, k, v, i, f = (
            checks.is_tensor(name, x).transpose(1, 2) for name, x in zip("qkvif", (q, k, v, i, f), strict=True)
        )
    cu_seqlens = kwargs.get("cu_seqlens")
    checks.check_sequence_inputs(q, k, v, i, f, c_initial, n_initial, m_initial, eps, chunk_size, cu_seqlens)
    q, k, v, i, f = _autocast(q, autocast_kernel_dtype, k, v, i, f)
    wide = checks.accumulate_dtype(q.dtype)
    c, n, m = (_wide_state(x, wide) for x in (c_initial, n_initial, m_initial))
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.to(torch.int64).contiguous()
    normalize = bool(kwargs.get("normalize", True))
    options = (sigmoid_gate, normalize, bool(kwargs.get("normalizer_grad", True)), float(eps), chunk_size, bshd)
    tensors = (q, k, v, i, f, c, n, m)
    last: tuple[Tensor, ...] | list[Tensor]
    if _needs_grad(*tensors):
        if return_last_states or recurrent:
            h, *last = _Sequence.apply(*tensors, cu_seqlens, recurrent, options)
        else:
            h, last = _SequenceWithoutStates.apply(*tensors, cu_seqlens, options), []
    elif recurrent:
        h, _, *last = _ops.mlstm_sequence(*tensors, cu_seqlens, sigmoid_gate, normalize, float(eps), bshd)
    else:
        op = _ops.mlstm_chunkwise_states if return_last_states else _ops.mlstm_chunkwise
        h, _, *last = op(*tensors, cu_seqlens, sigmoid_gate, normalize, float(eps), chunk_size, bshd)
    if bshd:
        h = h.transpose(1, 2)
    return (h, (last[0], last[1], last[2])) if return_last_states else h


def mlstm_chunkwise_fused(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The chunkwise mLSTM with the exp input gate. Also takes cu_seqlens, layout, normalizer_grad."""
    return _sequence(
        "chunkwise--fused", False, False, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def mlstm_chunkwise_fused_siging(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The chunkwise mLSTM with the sigmoid input gate. Also takes normalize, cu_seqlens, layout, normalizer_grad."""
    return _sequence(
        "chunkwise--fused_siging", True, False, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def mlstm_sequence_fused(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Token after token in one call, for few tokens. chunk_size is that of the backward pass."""
    return _sequence(
        "fused", False, True, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def mlstm_sequence_fused_siging(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """mlstm_sequence_fused with the sigmoid input gate. Also takes normalize."""
    return _sequence(
        "fused_siging", True, True, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def _step(
    function: str,
    sigmoid_gate: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    eps: float,
    kwargs: dict[str, Any],
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    known = ("in_place", "autocast_kernel_dtype") + (("normalize",) if sigmoid_gate else ())
    checks.no_unknown_keywords(function, kwargs, known)
    checks.check_step_inputs(q, k, v, i, f, c, n, m, eps)
    q, k, v, i, f = _autocast(q, kwargs.get("autocast_kernel_dtype", torch.bfloat16), k, v, i, f)
    wide = checks.accumulate_dtype(q.dtype)
    options = (sigmoid_gate, bool(kwargs.get("normalize", True)), float(eps))
    if kwargs.get("in_place", False):
        for name, x in (("c", c), ("n", n), ("m", m)):
            if x.dtype != wide or not x.is_contiguous():
                raise ValueError(f"in_place: expected {name} to be contiguous and {wide}, got {x.dtype}")
        if _needs_grad(q, k, v, i, f, c, n, m):
            raise ValueError(
                "in_place: expected no gradient to be needed; states of a training step must not be overwritten"
            )
        h = _ops.mlstm_step_(q, k, v, i, f, c, n, m, *options)
        return h, (c, n, m)
    tensors = (q, k, v, i, f, *(x.to(wide).contiguous() for x in (c, n, m)))
    if _needs_grad(*tensors):
        h, c_next, n_next, m_next = _Step.apply(*tensors, options)
    else:
        h, c_next, n_next, m_next = _ops.mlstm_step(*tensors, *options)
    return h, (c_next, n_next, m_next)


def mlstm_step_fused(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float = 1e-6,
    **kwargs: Any,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """One token. Also takes in_place: c, n and m are overwritten and returned."""
    return _step("fused", False, q, k, v, i, f, c, n, m, eps, kwargs)


def mlstm_step_fused_siging(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float = 1e-6,
    **kwargs: Any,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """One token with the sigmoid input gate. Also takes normalize and in_place."""
    return _step("fused_siging", True, q, k, v, i, f, c, n, m, eps, kwargs)
