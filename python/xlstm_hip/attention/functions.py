# SPDX-License-Identifier: Apache-2.0
"""The six functions of FlashAttention-2, with its names, argument order, defaults, shapes and return values.

Additional arguments are keyword-only: block_size, sink, seqused_k, leftpad_k, num_splits, backward_plan, k_descale and
v_descale. Results are bitwise reproducible with deterministic=True. Without it AMD's CDNA chips add up dq by atomics,
whose order varies.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._core.index_tensors import Pages, SequenceBounds
from .._core.plans import Plan
from . import checks
from .ops import Call, Descales, Options, attend, forward_only, ops_for

Window = tuple[int, int]
WithProbs = tuple[Tensor, Tensor, Tensor]  # out, softmax_lse, S_dmask


def _result(outputs: tuple[Tensor, ...], out: Tensor, return_attn_probs: bool) -> Tensor | WithProbs:
    if not return_attn_probs:
        return outputs[0]
    return outputs[0], outputs[1], outputs[2] if len(outputs) == 3 else out.new_empty(0)


def dense_call(
    q: Any, k: Any, v: Any, dropout_p: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any,
    alibi_slopes: Any, block_size: Any = None, sink: Any = None, seqused_k: Any = None, leftpad_k: Any = None,
    k_descale: Any = None, v_descale: Any = None,
) -> Call:  # fmt: skip
    """The checked arguments of flash_attn_func."""
    q = checks.heads("q", q, 4, "(B, S, H, D)")
    k, v = (checks.heads(name, x, 4, "(B, S, H, D)", q, float8=True) for name, x in (("k", k), ("v", v)))
    batch = q.shape[0]
    if k.shape[0] != batch:
        raise ValueError(f"k: expected batch size {batch} as q has, got {checks.shape_text(k)}")
    checks.keys_and_values(q, k, v)
    left, right = checks.window(window_size, checks.flag("causal", causal))
    options = Options(
        q.shape[1], k.shape[1], checks.scale_of(softmax_scale, q.shape[-1]), left, right, checks.cap(softcap),
        checks.dropout(dropout_p), checks.block(block_size),
    )  # fmt: skip
    bounds = SequenceBounds(
        seqused_k=checks.indices("seqused_k", seqused_k, q, (batch,), f"(B) = ({batch},)"),
        leftpad_k=checks.indices("leftpad_k", leftpad_k, q, (batch,), f"(B) = ({batch},)"),
    )
    descales = Descales(
        checks.descale("k_descale", k_descale, k, batch), checks.descale("v_descale", v_descale, v, batch)
    )
    sinks, slopes = checks.sinks("sink", sink, q), checks.slopes(alibi_slopes, q, batch)
    return Call(q, k, v, sinks, slopes, bounds, options, descales)


def varlen_call(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any, max_seqlen_k: Any,
    dropout_p: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, alibi_slopes: Any,
    block_size: Any = None, sink: Any = None, seqused_k: Any = None, leftpad_k: Any = None, paged: bool = False,
    k_descale: Any = None, v_descale: Any = None,
) -> Call:  # fmt: skip
    """The checked arguments of flash_attn_varlen_func but for block_table."""
    q = checks.heads("q", q, 3, "(T, H, D)")
    rank, meaning = (4, "(pages, page size, H, D) with block_table") if paged else (3, "(T, H, D)")
    k, v = (checks.heads(name, x, rank, meaning, q, float8=True) for name, x in (("k", k), ("v", v)))
    checks.keys_and_values(q, k, v)
    cu_q = checks.offsets("cu_seqlens_q", cu_seqlens_q, q)
    batch = cu_q.shape[0] - 1
    cu_k = checks.offsets("cu_seqlens_k", cu_seqlens_k, q, batch)
    left, right = checks.window(window_size, checks.flag("causal", causal))
    options = Options(
        checks.length("max_seqlen_q", max_seqlen_q), checks.length("max_seqlen_k", max_seqlen_k),
        checks.scale_of(softmax_scale, q.shape[-1]), left, right, checks.cap(softcap), checks.dropout(dropout_p),
        checks.block(block_size),
    )  # fmt: skip
    used = checks.indices("seqused_k", seqused_k, q, (batch,), f"(B) = ({batch},)")
    leftpad = checks.indices("leftpad_k", leftpad_k, q, (batch,), f"(B) = ({batch},)")
    bounds = SequenceBounds(cu_q, cu_k, used, leftpad)
    descales = Descales(
        checks.descale("k_descale", k_descale, k, batch), checks.descale("v_descale", v_descale, v, batch)
    )
    sinks, slopes = checks.sinks("sink", sink, q), checks.slopes(alibi_slopes, q, batch)
    return Call(q, k, v, sinks, slopes, bounds, options, descales)


@forward_only("flash_attn_varlen_func with block_table")
def attend_pages(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, slopes: Tensor | None, bounds: SequenceBounds,
    options: Options, descales: Descales, block_table: Any, splits: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out and lse of a varlen call whose keys are pages."""
    cu_q, cu_k, used, leftpad = bounds
    assert cu_q is not None and cu_k is not None
    batch = cu_q.shape[0] - 1
    table = checks.indices("block_table", block_table, q, (batch, None), f"(B, pages) = ({batch}, pages)")
    if options.dropout_p > 0:
        raise ValueError(f"dropout_p: expected 0 with block_table, got {options.dropout_p}")
    checks.paged_keys_fit(cu_k, options.max_seqlen_k, used)
    lengths = (cu_k[1:] - cu_k[:-1]).contiguous()
    bounds = SequenceBounds(cu_q, None, lengths if used is None else torch.minimum(used, lengths), leftpad)
    last = (*options, splits, True, *descales)
    return ops_for(q).attention_forward(q, k, v, *bounds, *Pages(table), slopes, sink, None, *last)


@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[False] = ..., block_size: int | None = ..., sink: Tensor | None = ...,
    seqused_k: Tensor | None = ..., leftpad_k: Tensor | None = ..., num_splits: int = ...,
    backward_plan: Plan | None = ..., k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], block_size: int | None = ..., sink: Tensor | None = ...,
    seqused_k: Tensor | None = ..., leftpad_k: Tensor | None = ..., num_splits: int = ...,
    backward_plan: Plan | None = ..., k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> WithProbs: ...  # fmt: skip
@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., *, block_size: int | None = ..., sink: Tensor | None = ...,
    seqused_k: Tensor | None = ..., leftpad_k: Tensor | None = ..., num_splits: int = ...,
    backward_plan: Plan | None = ..., k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> Tensor | WithProbs: ...  # fmt: skip
def flash_attn_func(
    q: Tensor,  # (B, S_q, H_q, D)
    k: Tensor,  # (B, S_k, H_k, D)
    v: Tensor,  # (B, S_k, H_k, D_v)
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,  # (H_q) or (B, H_q), float32
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    block_size: int | None = None,
    sink: Tensor | None = None,  # (H_q)
    seqused_k: Tensor | None = None,  # (B)
    leftpad_k: Tensor | None = None,  # (B)
    num_splits: int = 0,
    backward_plan: Plan | None = None,
    k_descale: Tensor | None = None,  # of keys in float8: one element or (B, H_k), float32
    v_descale: Tensor | None = None,
) -> Tensor | WithProbs:
    """Attention of B sequences of one length. Returns out (B, S_q, H_q, D_v); with return_attn_probs also softmax_lse
    (B, H_q, S_q) and S_dmask: with dropout the softmax (B, H_q, S_q, S_k), negative where dropped, else empty.
    k and v may be float8_e4m3fn or float8_e4m3fnuz, each number times its descale; there is no backward pass then.
    num_splits: parts that the keys are cut into, 0 leaves it to the plan. backward_plan: how the backward pass is cut
    up (docs/tuning.md), a mapping of block_size, row_panels, parts and common_schedule."""
    checks.flag("deterministic", deterministic)
    call = dense_call(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, block_size, sink, seqused_k,
        leftpad_k, k_descale, v_descale,
    )  # fmt: skip
    probs = checks.flag("return_attn_probs", return_attn_probs) and call.options.dropout_p > 0
    parts = checks.splits(num_splits)
    if probs and parts > 1:
        raise ValueError(f"num_splits: expected 0 or 1 with dropout and return_attn_probs, got {num_splits}")
    return _result(attend(call, probs, parts, backward_plan, deterministic), call.q, return_attn_probs)


@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[False] = ..., **more: Any,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], **more: Any,
) -> WithProbs: ...  # fmt: skip
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., **more: Any,
) -> Tensor | WithProbs: ...  # fmt: skip
def flash_attn_kvpacked_func(
    q: Tensor,  # (B, S_q, H_q, D)
    kv: Tensor,  # (B, S_k, 2, H_k, D)
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **more: Any,
) -> Tensor | WithProbs:
    """flash_attn_func with k and v in one tensor. Also takes its keyword-only arguments."""
    k, v = _unpacked("kv", kv, 5, "(B, S, 2, H, D)", 2, ("k", "v"))
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, **more,
    )  # fmt: skip


@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[False] = ..., **more: Any,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], **more: Any,
) -> WithProbs: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., **more: Any,
) -> Tensor | WithProbs: ...  # fmt: skip
def flash_attn_qkvpacked_func(
    qkv: Tensor,  # (B, S, 3, H, D)
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **more: Any,
) -> Tensor | WithProbs:
    """flash_attn_func with q, k and v in one tensor. Also takes its keyword-only arguments."""
    q, k, v = _unpacked("qkv", qkv, 5, "(B, S, 3, H, D)", 3, ("q", "k", "v"))
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, **more,
    )  # fmt: skip


def _unpacked(name: str, x: Any, rank: int, meaning: str, count: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    checks.is_tensor(name, x)
    if x.dim() != rank or x.shape[-3] != count:
        raise ValueError(f"{name}: expected shape {meaning} with {' '.join(names)}, got {checks.shape_text(x)}")
    return x.unbind(-3)


@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[False] = ..., block_table: Tensor | None = ..., block_size: int | None = ...,
    sink: Tensor | None = ..., seqused_k: Tensor | None = ..., leftpad_k: Tensor | None = ..., num_splits: int = ...,
    backward_plan: Plan | None = ..., k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], block_table: Tensor | None = ..., block_size: int | None = ...,
    sink: Tensor | None = ..., seqused_k: Tensor | None = ..., leftpad_k: Tensor | None = ..., num_splits: int = ...,
    backward_plan: Plan | None = ..., k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> WithProbs: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
    block_table: Tensor | None = ..., *, block_size: int | None = ..., sink: Tensor | None = ...,
    seqused_k: Tensor | None = ..., leftpad_k: Tensor | None = ..., num_splits: int = ...,
    backward_plan: Plan | None = ..., k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> Tensor | WithProbs: ...  # fmt: skip
def flash_attn_varlen_func(
    q: Tensor,  # (T_q, H_q, D)
    k: Tensor,  # (T_k, H_k, D), or with block_table pages (N, page, H_k, D)
    v: Tensor,  # (T_k, H_k, D_v), or pages
    cu_seqlens_q: Tensor,  # (B + 1)
    cu_seqlens_k: Tensor,  # (B + 1)
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,  # (H_q) or (B, H_q), float32
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,  # (B, pages of a sequence)
    *,
    block_size: int | None = None,
    sink: Tensor | None = None,
    seqused_k: Tensor | None = None,  # (B)
    leftpad_k: Tensor | None = None,  # (B)
    num_splits: int = 0,
    backward_plan: Plan | None = None,
    k_descale: Tensor | None = None,  # of keys in float8: one element or (B, H_k), float32
    v_descale: Tensor | None = None,
) -> Tensor | WithProbs:
    """Attention of B sequences of any lengths, zero included, packed one after the other. Returns out (T_q, H_q, D_v);
    with return_attn_probs also softmax_lse (H_q, T_q) and S_dmask (B, H_q, max_seqlen_q, max_seqlen_k), empty without
    dropout. No sequence may be longer than the max_seqlen given. With block_table there is no dropout and no backward
    pass, nor with k and v in float8 (flash_attn_func)."""
    checks.flag("deterministic", deterministic)
    call = varlen_call(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, block_size, sink, seqused_k, leftpad_k, block_table is not None, k_descale, v_descale,
    )  # fmt: skip
    probs = checks.flag("return_attn_probs", return_attn_probs) and call.options.dropout_p > 0
    parts = checks.splits(num_splits)
    if probs and parts > 1:
        raise ValueError(f"num_splits: expected 0 or 1 with dropout and return_attn_probs, got {num_splits}")
    if block_table is None:
        return _result(attend(call, probs, parts, backward_plan, deterministic), call.q, return_attn_probs)
    if backward_plan is not None:
        raise ValueError(f"backward_plan: expected None with block_table, got {backward_plan!r}")
    return _result(attend_pages(*call, block_table, parts), call.q, return_attn_probs)


@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[False] = ..., **more: Any,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], **more: Any,
) -> WithProbs: ...  # fmt: skip
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
    **more: Any,
) -> Tensor | WithProbs: ...  # fmt: skip
def flash_attn_varlen_kvpacked_func(
    q: Tensor,  # (T_q, H_q, D)
    kv: Tensor,  # (T_k, 2, H_k, D)
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **more: Any,
) -> Tensor | WithProbs:
    """flash_attn_varlen_func with k and v in one tensor. Also takes its keyword-only arguments."""
    k, v = _unpacked("kv", kv, 4, "(T, 2, H, D)", 2, ("k", "v"))
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs, **more,
    )  # fmt: skip


@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ..., softmax_scale: float | None = ...,
    causal: bool = ..., window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[False] = ..., **more: Any,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ..., softmax_scale: float | None = ...,
    causal: bool = ..., window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True], **more: Any,
) -> WithProbs: ...  # fmt: skip
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ..., softmax_scale: float | None = ...,
    causal: bool = ..., window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., return_attn_probs: bool = ..., **more: Any,
) -> Tensor | WithProbs: ...  # fmt: skip
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,  # (T, 3, H, D)
    cu_seqlens: Tensor,  # (B + 1)
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **more: Any,
) -> Tensor | WithProbs:
    """flash_attn_varlen_func with q, k and v in one tensor. Also takes its keyword-only arguments."""
    q, k, v = _unpacked("qkv", qkv, 4, "(T, 3, H, D)", 3, ("q", "k", "v"))
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs, **more,
    )  # fmt: skip
