# SPDX-License-Identifier: Apache-2.0
"""Decoding with a KV cache, and combining attention over parts of the keys."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._core.checks import IO_DTYPES, one_of, shape_text
from .._core.index_tensors import Pages, SequenceBounds
from . import checks
from .ops import Descales, Options, cut_of, forward_only, ops_for

MOST_ON_A_GPU = 256  # the head dims that all of its kernels take


@overload
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = ..., v: Tensor | None = ...,
    rotary_cos: Tensor | None = ..., rotary_sin: Tensor | None = ..., cache_seqlens: int | Tensor | None = ...,
    cache_batch_idx: Tensor | None = ..., cache_leftpad: Tensor | None = ..., block_table: Tensor | None = ...,
    softmax_scale: float | None = ..., causal: bool = ..., window_size: tuple[int, int] = ..., softcap: float = ...,
    rotary_interleaved: bool = ..., alibi_slopes: Tensor | None = ..., num_splits: int = ..., *,
    return_softmax_lse: Literal[False] = ..., block_size: int | None = ..., sink: Tensor | None = ...,
    k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = ..., v: Tensor | None = ...,
    rotary_cos: Tensor | None = ..., rotary_sin: Tensor | None = ..., cache_seqlens: int | Tensor | None = ...,
    cache_batch_idx: Tensor | None = ..., cache_leftpad: Tensor | None = ..., block_table: Tensor | None = ...,
    softmax_scale: float | None = ..., causal: bool = ..., window_size: tuple[int, int] = ..., softcap: float = ...,
    rotary_interleaved: bool = ..., alibi_slopes: Tensor | None = ..., num_splits: int = ..., *,
    return_softmax_lse: Literal[True], block_size: int | None = ..., sink: Tensor | None = ...,
    k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = ..., v: Tensor | None = ...,
    rotary_cos: Tensor | None = ..., rotary_sin: Tensor | None = ..., cache_seqlens: int | Tensor | None = ...,
    cache_batch_idx: Tensor | None = ..., cache_leftpad: Tensor | None = ..., block_table: Tensor | None = ...,
    softmax_scale: float | None = ..., causal: bool = ..., window_size: tuple[int, int] = ..., softcap: float = ...,
    rotary_interleaved: bool = ..., alibi_slopes: Tensor | None = ..., num_splits: int = ...,
    return_softmax_lse: bool = ..., *, block_size: int | None = ..., sink: Tensor | None = ...,
    k_descale: Tensor | None = ..., v_descale: Tensor | None = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@forward_only("flash_attn_with_kvcache")
def flash_attn_with_kvcache(
    q: Tensor,  # (B, S_q, H_q, D)
    k_cache: Tensor,  # (B_cache, S_cache, H_k, D), or with block_table pages (N, page, H_k, D)
    v_cache: Tensor,  # the same with D_v
    k: Tensor | None = None,  # (B, S_new, H_k, D): appended to the cache, in place
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,  # (S_rotary, rotary_dim / 2)
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,  # (B): keys in the cache before the append
    cache_batch_idx: Tensor | None = None,  # (B): the row of the cache that each sequence has
    cache_leftpad: Tensor | None = None,  # (B): where its keys begin
    block_table: Tensor | None = None,  # (B, pages of a sequence)
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    block_size: int | None = None,
    sink: Tensor | None = None,
    k_descale: Tensor | None = None,  # of a cache in float8: one element or (B, H_k), float32
    v_descale: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of new queries to a cache, after new keys and values were appended to it.

    The keys are the positions [cache_leftpad, cache_seqlens + S_new) of the cache, or all of it without cache_seqlens.
    The rotary embedding rotates new keys by their positions. It rotates query i by the position of new key i if causal
    or a window is given, else by cache_seqlens. Pages may have any size from 1. Entries of block_table beyond the keys
    in use are not read. num_splits: split-KV parts, 0 to fill the device. The caches may be float8_e4m3fn or
    float8_e4m3fnuz: a number stands for itself times its descale, and what is appended is divided by it and rounded.
    Returns out (B, S_q, H_q, D_v); with return_softmax_lse also softmax_lse (B, H_q, S_q).
    """
    q = checks.heads("q", q, 4, "(B, S, H, D)")
    paged = block_table is not None
    meaning = "(pages, page size, H, D)" if paged else "(B, S, H, D)"
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if checks.heads(name, x, 4, meaning, q, float8=True) is not x:
            raise ValueError(f"{name}: expected the last dimension to be contiguous, got strides {tuple(x.stride())}")
    checks.keys_and_values(q, k_cache, v_cache, "k_cache", "v_cache")
    batch = q.shape[0]
    table = checks.indices("block_table", block_table, q, (batch, None), f"(B, pages) = ({batch}, pages)")
    rows = checks.indices("cache_batch_idx", cache_batch_idx, q, (batch,), f"(B) = ({batch},)")
    if paged and rows is not None:
        raise ValueError("cache_batch_idx: expected None with block_table, which says where a sequence's keys are")
    if not paged and rows is None and k_cache.shape[0] != batch:
        raise ValueError(
            f"k_cache: expected batch size {batch} as q has, or cache_batch_idx, got {shape_text(k_cache)}"
        )
    leftpad = checks.indices("cache_leftpad", cache_leftpad, q, (batch,), f"(B) = ({batch},)")
    before = _lengths(cache_seqlens, q)
    left, right = checks.window(window_size, checks.flag("causal", causal))
    options = Options(
        q.shape[1], 0, checks.scale_of(softmax_scale, q.shape[-1]), left, right, checks.cap(softcap), 0.0,
        checks.block(block_size),
    )  # fmt: skip
    slopes, sinks = checks.slopes(alibi_slopes, q, batch), checks.sinks("sink", sink, q)
    descales = Descales(
        checks.descale("k_descale", k_descale, k_cache, batch), checks.descale("v_descale", v_descale, v_cache, batch)
    )
    parts = checks.splits(num_splits)
    checks.flag("rotary_interleaved", rotary_interleaved)
    checks.flag("return_softmax_lse", return_softmax_lse)

    ops = ops_for(q)
    cos, sin = _rotary(rotary_cos, rotary_sin, q, before)
    used, capacity = before, k_cache.shape[1] * (1 if table is None else table.shape[1])
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if k is None else 'v'}: expected both k and v, or neither")
    if k is not None:
        if before is None:
            raise ValueError("cache_seqlens: expected the keys that are in the cache, as k is to be appended to them")
        k, v = checks.heads("k", k, 4, "(B, S, H, D)", q), checks.heads("v", v, 4, "(B, S, H, D)", q)
        for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
            expected = (batch, k.shape[1], *cache.shape[2:])
            if tuple(x.shape) != expected:
                raise ValueError(f"{name}: expected shape {expected}, got {shape_text(x)}")
        checks.lengths_fit("cache_seqlens", before, capacity - k.shape[1], paged)
        used = before + k.shape[1]
        checks.pages_fit(table, used, k_cache)
    else:
        checks.lengths_fit("cache_seqlens", before, capacity, paged)
    checks.lengths_fit("cache_leftpad", leftpad, capacity, paged)
    cut = cut_of(q, k_cache.shape[-2], capacity, v_cache.shape[-1], options, parts, packed=False)
    if cos is not None:
        same_position = left < 0 and right < 0
        q = ops.attention_rotary(q, cos, sin, before, rotary_interleaved, same_position)
    if k is not None:  # last, so that a call that fails leaves the cache as it was
        if q.device.type == "cuda" and (options.block_size or max(q.shape[-1], v_cache.shape[-1]) > MOST_ON_A_GPU):
            # Whether there is a kernel only the GPU's plan knows: a call over no keys asks it.
            no_keys = SequenceBounds(seqused_k=torch.zeros(1, dtype=torch.int32, device=q.device))
            one = (q[:1], k_cache[:1], v_cache[:1], *no_keys, *Pages())
            ops.attention_forward(*one, None, None, None, *options[:-1], *cut, True)
        ops.attention_append_(k_cache, k, cos, sin, before, rows, table, rotary_interleaved, descales.k_descale)
        ops.attention_append_(v_cache, v, None, None, before, rows, table, rotary_interleaved, descales.v_descale)
    bounds = SequenceBounds(seqused_k=used, leftpad_k=leftpad)
    out, lse = ops.attention_forward(
        q, k_cache, v_cache, *bounds, *Pages(table, rows), slopes, sinks, None, *options[:-1], *cut, True, *descales
    )
    return (out, lse) if return_softmax_lse else out


def _lengths(cache_seqlens: Any, q: Tensor) -> Tensor | None:
    batch = q.shape[0]
    if isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        if cache_seqlens < 0:
            raise ValueError(f"cache_seqlens: expected >= 0, got {cache_seqlens}")
        return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    return checks.indices("cache_seqlens", cache_seqlens, q, (batch,), f"(B) = ({batch},)")


def _rotary(cos: Any, sin: Any, q: Tensor, before: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    if (cos is None) != (sin is None):
        raise ValueError(f"{'rotary_cos' if cos is None else 'rotary_sin'}: expected both rotary tables, or neither")
    if cos is None:
        return None, None
    if before is None:
        raise ValueError("cache_seqlens: expected with rotary_cos, because positions start at it")
    for name, x in (("rotary_cos", cos), ("rotary_sin", sin)):
        checks.is_tensor(name, x)
        if x.dim() != 2 or x.shape != cos.shape or not 2 <= 2 * x.shape[1] <= q.shape[-1]:
            raise ValueError(
                f"{name}: expected shape (S, rotary_dim / 2), rotary_dim from 2 to {q.shape[-1]}, got {shape_text(x)}"
            )
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: expected {q.dtype} as q has, got {x.dtype}")
        checks.on_device(name, x, q)
    return cos.contiguous(), sin.contiguous()


@forward_only("flash_attn_combine")
def flash_attn_combine(
    out_partial: Tensor,  # (splits, B, S, H, D) float32
    lse_partial: Tensor,  # (splits, B, S, H) float32
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Combines attention over parts of the keys: returns out (B, S, H, D) and softmax_lse (B, S, H).

    A part with an infinite lse of either sign had no keys and is ignored. If no part had keys, out is 0 and lse is
    +infinity. out is written if given, else allocated in out_dtype or out_partial's dtype.
    """
    checks.is_tensor("out_partial", out_partial)
    checks.is_tensor("lse_partial", lse_partial)
    wide = (torch.float32, torch.float64)
    if out_partial.dtype not in wide:
        raise TypeError(f"out_partial: expected float32 or float64, got {out_partial.dtype}")
    if lse_partial.dtype != out_partial.dtype:
        raise TypeError(f"lse_partial: expected {out_partial.dtype} as out_partial has, got {lse_partial.dtype}")
    if out_partial.dim() != 5 or out_partial.shape[0] < 1:
        raise ValueError(f"out_partial: expected shape (splits, B, S, H, D), got {shape_text(out_partial)}")
    if lse_partial.shape != out_partial.shape[:-1]:
        expected = tuple(out_partial.shape[:-1])
        raise ValueError(f"lse_partial: expected shape (splits, B, S, H) = {expected}, got {shape_text(lse_partial)}")
    one_of("out_dtype", out_dtype, (None, *IO_DTYPES))
    if out is not None:
        checks.is_tensor("out", out)
        if out.shape != out_partial.shape[1:]:
            expected = tuple(out_partial.shape[1:])
            raise ValueError(f"out: expected shape (B, S, H, D) = {expected}, got {shape_text(out)}")
        if out.dtype not in IO_DTYPES:
            raise TypeError(f"out: expected float32, bfloat16, float16 or float64, got {out.dtype}")
        if out_dtype not in (None, out.dtype):
            raise ValueError(f"out_dtype: expected None or {out.dtype} as out has, got {out_dtype}")
    combined, lse = ops_for(out_partial).attention_combine(
        out_partial if out_partial.stride(-1) == 1 else out_partial.contiguous(), lse_partial
    )
    if out is not None:
        return out.copy_(combined), lse
    return combined.to(out_dtype or combined.dtype), lse
