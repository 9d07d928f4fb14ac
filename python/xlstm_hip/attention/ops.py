# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and gradients of the attention ops, and one function that calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from .._core import logging, plans
from .._core.checks import FLOAT8_DTYPES, accumulate_dtype, gradient_needed
from .._core.environment import plain_torch_forced
from .._core.index_tensors import Pages, SequenceBounds
from .._core.ops import OPS, OpFunction, first_order
from ..reference import attention_ops as plain

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Options(NamedTuple):
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_left: int
    window_right: int
    softcap: float
    dropout_p: float
    block_size: int  # of the forward pass


class Descales(NamedTuple):
    """Factors of keys and of values in floats of 8 bits: float32 of one element or (B, H_k), or None."""

    k_descale: Tensor | None = None
    v_descale: Tensor | None = None


class Call(NamedTuple):
    """The checked arguments of a call with a backward pass, which floats of 8 bits do not have."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    slopes: Tensor | None
    bounds: SequenceBounds
    options: Options
    descales: Descales = Descales()


class BackwardCut(NamedTuple):
    """Launch configuration of a backward pass. 0 leaves a value to the plan."""

    block_size: int = 0
    row_panels: int = 0
    parts: int = 0
    common_schedule: int = 0
    deterministic: bool = True  # what a caller asks for, not tuned


def ops_for(q: Tensor) -> Any:
    """The namespace of a call's ops: the library, or plain torch if that is forced."""
    if not plain_torch_forced():
        return OPS
    if logging.DISPATCH:
        logging.chosen("attention", "plain torch, for XLSTM_HIP_BACKEND=reference", {"q": q})
    return plain


# ---- shapes


def _keys(k: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_k: int) -> Any:
    return k.shape[1] if cu_seqlens_k is None else max_seqlen_k


def _out_and_lse(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    wide = accumulate_dtype(q.dtype)
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    out_dtype = torch.bfloat16 if q.dtype in FLOAT8_DTYPES else q.dtype
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=out_dtype), q.new_empty(rows, dtype=wide)


@torch.library.register_fake("xlstm_hip::attention_forward")
def _(q, k, v, *options):
    return _out_and_lse(q, v)


@torch.library.register_fake("xlstm_hip::attention_forward_probs")
def _(q, k, v, cu_q, cu_k, seqused_k, leftpad_k, slopes, sink, rng_state, max_seqlen_q, max_seqlen_k, *options):
    batch = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
    queries = q.shape[1] if cu_q is None else max_seqlen_q
    probs = q.new_empty(batch, q.shape[-2], queries, _keys(k, cu_k, max_seqlen_k))
    return *_out_and_lse(q, v), probs


@torch.library.register_fake("xlstm_hip::attention_backward")
def _(q, k, v, out, lse, dout, dlse, cu_q, cu_k, seqused_k, leftpad_k, slopes, sink, *options):
    dsink = q.new_empty(0 if sink is None else q.shape[-2], dtype=accumulate_dtype(q.dtype))
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink


@torch.library.register_fake("xlstm_hip::attention_rotary")
def _(x, cos, sin, start, interleaved, same_position):
    return x.new_empty(x.shape)


@torch.library.register_fake("xlstm_hip::attention_append_")
def _(cache, x, *options):
    return None


@torch.library.register_fake("xlstm_hip::attention_combine")
def _(out_partial, lse_partial):
    return out_partial.new_empty(out_partial.shape[1:]), lse_partial.new_empty(lse_partial.shape[1:])


# ---- gradients


class AttentionFunction(OpFunction):
    """out, lse and, if asked for, the softmax, which gets no gradient."""

    @staticmethod
    def forward(ctx, q, k, v, sink, slopes, rng_state, bounds, options, probs, cuts):
        out, lse, *weights = _forward(
            OPS, q, k, v, sink, slopes, rng_state, bounds, options, Descales(), probs, cuts[0]
        )
        ctx.save_for_backward(q, k, v, sink, slopes, rng_state, out, lse, *bounds)
        ctx.options, ctx.cut = options, cuts[1]
        ctx.mark_non_differentiable(*weights)
        ctx.set_materialize_grads(False)
        return out, lse, *weights

    @staticmethod
    @first_order
    def backward(ctx, dout, dlse, *_):
        q, k, v, sink, slopes, rng_state, out, lse, *bounds = ctx.saved_tensors
        call = Call(q, k, v, sink, slopes, SequenceBounds(*bounds), ctx.options)
        dq, dk, dv, dsink = _backward(call, rng_state, out, lse, dout, dlse, ctx.cut)
        return dq, dk, dv, None if sink is None else dsink, None, None, None, None, None, None


class _ForwardOnly(torch.autograd.Function):  # no OpFunction: where a graph breaks Dynamo cannot trace its apply
    @staticmethod
    def forward(ctx, function, results, *tensors):
        ctx.function = function
        return tensors[:results]

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(f"{ctx.function}: there is no backward pass; call it under torch.no_grad()")


def forward_only(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Lets a function without a backward pass run where a gradient is needed, as inference code that forgets
    torch.no_grad() does. A backward pass through its results raises."""

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if not gradient_needed(*args, *kwargs.values()):
                return function(*args, **kwargs)
            if torch.compiler.is_compiling():  # which traces the backward pass ahead
                raise ValueError(
                    f"{name}: a gradient is required, but there is no backward pass; call it under torch.no_grad()"
                )
            with torch.no_grad():
                outputs: Any = function(*args, **kwargs)
            results = outputs if isinstance(outputs, tuple) else (outputs,)
            needing = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.requires_grad)
            refusing = _ForwardOnly.apply(name, len(results), *results, *needing)
            return refusing if isinstance(outputs, tuple) else refusing[0]

        return run

    return decorated


def _forward(ops, q, k, v, sink, slopes, rng_state, bounds, options, descales, probs, cut):
    if probs:
        return ops.attention_forward_probs(q, k, v, *bounds, slopes, sink, rng_state, *options, *descales)
    last = (*options[:-1], *cut, True, *descales)
    return ops.attention_forward(q, k, v, *bounds, *Pages(), slopes, sink, rng_state, *last)


def tabled_plan(op: str, q: Tensor, heads_k: int, keys: int, dv: int, options: Options) -> plans.Plan:
    """The table's plan for a call that is not packed."""
    batch, queries, heads, dqk = q.shape
    return plans.plan_for(
        op, q.device, q.dtype, batch=batch, heads=heads, heads_k=heads_k, queries=queries, length=keys, dqk=dqk,
        dhv=dv, causal=options.window_right == 0,
    )  # fmt: skip


def cut_of(q: Tensor, heads_k: int, keys: int, dv: int, options: Options, splits: int, packed: bool) -> tuple[int, int]:
    """Block size and splits of a forward call: the given values, or the table's if neither was given."""
    if options.block_size or splits or packed:
        return options.block_size, splits
    plan = tabled_plan("attention_forward", q, heads_k, keys, dv, options)
    return plan.get("block_size", 0), plan.get("splits", 0)


def _backward(call, rng_state, out, lse, dout, dlse, cut):
    q, k, v, sink, slopes, bounds, options, _ = call
    if dout is None:
        dout = torch.zeros_like(out)
    elif dout.stride(-1) != 1:
        dout = dout.contiguous()
    return OPS.attention_backward(q, k, v, out, lse, dout, dlse, *bounds, slopes, sink, rng_state, *options[:-1], *cut)


def _is_packed(call: Call) -> bool:
    return call.bounds.cu_seqlens_q is not None


def _sizes(call: Call) -> tuple[Tensor, int, int, int, Options]:
    return call.q, call.k.shape[-2], call.k.shape[-3], call.v.shape[-1], call.options


def drawn_seed(call: Call) -> Tensor | None:
    """Seed and offset of the dropout, from torch's generator of the device; None without dropout."""
    if call.options.dropout_p == 0:
        return None
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=call.q.device)


def forward_pass(call: Call, rng_state: Tensor | None, probs: bool = False, splits: int = 0) -> tuple[Tensor, ...]:
    """out, lse and, if asked for, the softmax with dropped weights negative. No gradient is recorded."""
    cut = cut_of(*_sizes(call), splits, _is_packed(call))
    q, k, v, sink, slopes, bounds, options, descales = call
    return tuple(_forward(ops_for(q), q, k, v, sink, slopes, rng_state, bounds, options, descales, probs, cut))


def backward_pass(
    call: Call, rng_state: Tensor | None, out: Tensor, lse: Tensor, dout: Tensor, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of any out and lse: over these keys alone, or over more of which these are a part."""
    plan = plans.AS_PLANNED if _is_packed(call) else tabled_plan("attention_backward", *_sizes(call))
    return _backward(call, rng_state, out, lse, dout, None, BackwardCut(**plan, deterministic=deterministic))[:3]


def attend(
    call: Call, probs: bool = False, splits: int = 0, backward_plan: Any = None, deterministic: bool = True
) -> tuple[Tensor, ...]:
    """out, lse and, if asked for, the softmax with dropped weights negative. Draws a seed if there is dropout."""
    if backward_plan is not None:
        backward_plan = plans.check_plan("backward_plan", "attention_backward", backward_plan)
    rng_state = drawn_seed(call)
    q, k, v, sink, slopes, bounds, options, _ = call
    if k.dtype in FLOAT8_DTYPES:

        @forward_only("attention of keys and values in float8")
        def of_float8(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, ...]:
            return forward_pass(call._replace(q=q, k=k, v=v, sink=sink), rng_state, probs, splits)

        return of_float8(q, k, v, sink)
    if ops_for(q) is not OPS or not gradient_needed(q, k, v, sink):
        return forward_pass(call, rng_state, probs, splits)
    packed = _is_packed(call)
    if backward_plan is None:
        backward_plan = plans.AS_PLANNED if packed else tabled_plan("attention_backward", *_sizes(call))
    cuts = (cut_of(*_sizes(call), splits, packed), BackwardCut(**backward_plan, deterministic=deterministic))
    return AttentionFunction.apply(q, k, v, sink, slopes, rng_state, bounds, options, probs, cuts)
