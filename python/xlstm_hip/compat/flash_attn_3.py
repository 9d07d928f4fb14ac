# SPDX-License-Identifier: Apache-2.0
"""The replacement of FlashAttention-3's flash_attn_interface and flash_attn_3, with its signatures and results.

A row that sees no key has softmax_lse = -infinity, as there; in xlstm_hip.attention it is +infinity. pack_gqa,
sm_margin and scheduler_metadata say how its kernels are launched: they are checked and change nothing here. num_splits
changes roundings alone. Keys and values may be float8_e4m3fn or float8_e4m3fnuz, with k_descale and v_descale; queries
may not. Refused by name: qv, q_descale, attention_chunk, seqused_q, cu_seqlens_k_new, rotary_seqlens, and keys to
append beside cu_seqlens_q.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import attention
from .._core.checks import IO_DTYPES, has_shape, is_tensor, one_of, positive_int, shape_text
from ..attention import checks
from .flash_attn_2 import maybe_contiguous, round_multiple

VERSION = "3.0.0"  # the release whose interface this is


def _without_keys(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == float("inf"), float("-inf"))


def _check_common(
    qv: Any, q_descale: Any, attention_chunk: Any, pack_gqa: Any, sm_margin: Any
) -> None:  # fmt: skip
    checks.no_kernel(qv=qv, q_descale=q_descale)
    if checks.length("attention_chunk", attention_chunk):
        raise NotImplementedError(f"attention_chunk: expected 0; there is no kernel for it, got {attention_chunk}")
    if pack_gqa is not None:
        checks.flag("pack_gqa", pack_gqa)
    checks.length("sm_margin", sm_margin)


def _result(outputs: tuple[Tensor, ...], return_attn_probs: bool) -> Any:
    return (outputs[0], _without_keys(outputs[1])) if return_attn_probs else outputs[0]


def flash_attn_func(
    q: Tensor,  # (B, S_q, H_q, D)
    k: Tensor,  # (B, S_k, H_k, D)
    v: Tensor,  # (B, S_k, H_k, D_v)
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: None = None,
    q_descale: None = None,
    k_descale: Tensor | None = None,  # one element or (B, H_k), float32
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Returns out, or out and softmax_lse (B, H_q, S_q)."""
    _check_common(qv, q_descale, attention_chunk, pack_gqa, sm_margin)
    checks.flag("return_attn_probs", return_attn_probs)
    outputs = attention.flash_attn_func(
        q,
        k,
        v,
        0.0,
        softmax_scale,
        causal,
        window_size,
        softcap,
        None,
        deterministic,
        return_attn_probs=True,
        num_splits=num_splits,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    return _result(outputs, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,  # (B, S, 3, H, D), or (B, S, H_q + 2 H_k, D)
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: None = None,
    k_descale: Tensor | None = None,  # one element or (B, H_k), float32
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,  # H_q of a qkv of 4 dimensions
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func with q, k and v in one tensor."""
    is_tensor("qkv", qkv)
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        if num_heads_q not in (None, qkv.shape[3]):
            raise ValueError(f"num_heads_q: expected None or qkv's {qkv.shape[3]} heads, got {num_heads_q!r}")
        q, k, v = qkv.unbind(2)
    elif qkv.dim() == 4:
        positive_int("num_heads_q", num_heads_q)
        heads_q = int(num_heads_q or 0)
        heads_k, odd = divmod(qkv.shape[2] - heads_q, 2)
        if heads_k < 1 or odd:
            raise ValueError(f"num_heads_q: expected to leave as many heads to k as to v of {shape_text(qkv)}")
        q, k, v = qkv.split([heads_q, heads_k, heads_k], dim=2)
    else:
        raise ValueError(f"qkv: expected (B, S, 3, H, D), or (B, S, H_q + 2 H_k, D), got {shape_text(qkv)}")
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,  # (T_q, H_q, D)
    k: Tensor,  # (T_k, H_k, D)
    v: Tensor,  # (T_k, H_k, D_v)
    cu_seqlens_q: Tensor,  # (B + 1)
    cu_seqlens_k: Tensor,  # (B + 1)
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: None = None,
    seqused_k: Tensor | None = None,  # (B)
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: None = None,
    q_descale: None = None,
    k_descale: Tensor | None = None,  # one element or (B, H_k), float32
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Returns out, or out and softmax_lse (H_q, T_q)."""
    checks.no_kernel(seqused_q=seqused_q)
    _check_common(qv, q_descale, attention_chunk, pack_gqa, sm_margin)
    checks.flag("return_attn_probs", return_attn_probs)
    outputs = attention.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale, causal, window_size,
        softcap, None, deterministic, return_attn_probs=True, seqused_k=seqused_k, num_splits=num_splits,
        k_descale=k_descale, v_descale=v_descale,
    )  # fmt: skip
    return _result(outputs, return_attn_probs)


def flash_attn_with_kvcache(
    q: Tensor,  # (B, S_q, H_q, D), or with cu_seqlens_q (T_q, H_q, D)
    k_cache: Tensor,  # (B_cache, S_cache, H_k, D), or with page_table pages (N, page, H_k, D)
    v_cache: Tensor,  # the same with D_v
    k: Tensor | None = None,  # (B, S_new, H_k, D): appended to the cache, in place
    v: Tensor | None = None,
    qv: None = None,
    rotary_cos: Tensor | None = None,  # (S_rotary, rotary_dim / 2)
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,  # (B): keys in the cache before the append
    cache_batch_idx: Tensor | None = None,  # (B)
    cache_leftpad: Tensor | None = None,  # (B)
    page_table: Tensor | None = None,  # (B, pages of a sequence)
    cu_seqlens_q: Tensor | None = None,  # (B + 1)
    cu_seqlens_k_new: None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: None = None,
    q_descale: None = None,
    k_descale: Tensor | None = None,  # one element or (B, H_k), float32
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,  # (B)
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Returns out, or out, softmax_lse (B, H_q, S_q), with cu_seqlens_q (H_q, T_q), and FlashAttention-3's two
    workspaces, empty."""
    checks.no_kernel(cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens)
    _check_common(qv, q_descale, attention_chunk, pack_gqa, sm_margin)
    checks.flag("return_softmax_lse", return_softmax_lse)
    q = (
        checks.heads("q", q, 4, "(B, S, H, D)")
        if cu_seqlens_q is None
        else checks.heads("q", q, 3, "(T, H, D) with cu_seqlens_q")
    )
    ends_q = None if cu_seqlens_q is None else checks.offsets("cu_seqlens_q", cu_seqlens_q, q)
    batch = q.shape[0] if ends_q is None else ends_q.shape[0] - 1
    table = checks.indices("page_table", page_table, q, (batch, None), f"(B, pages) = ({batch}, pages)")
    if scheduler_metadata is not None:
        _check_schedule(scheduler_metadata, q, batch)
    longest = None if max_seqlen_q is None else checks.length("max_seqlen_q", max_seqlen_q)
    if ends_q is None:
        if longest is not None and longest < q.shape[1]:
            raise ValueError(f"max_seqlen_q: expected at least q's {q.shape[1]} tokens, got {max_seqlen_q}")
        outputs = attention.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, table,
            softmax_scale, causal, window_size, softcap, rotary_interleaved, None, num_splits, True,
            k_descale=k_descale, v_descale=v_descale,
        )  # fmt: skip
    else:
        if longest is None:
            raise ValueError("max_seqlen_q: expected with cu_seqlens_q")
        for name, x in (("k", k), ("v", v), ("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
            if x is not None:
                raise NotImplementedError(f"{name}: expected None with cu_seqlens_q; append without it first")
        checks.flag("rotary_interleaved", rotary_interleaved)
        rules = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
        outputs = _packed_queries(
            q, k_cache, v_cache, ends_q, longest, cache_seqlens, cache_batch_idx, cache_leftpad, table,
            num_splits=num_splits, k_descale=k_descale, v_descale=v_descale, **rules,
        )  # fmt: skip
    if not return_softmax_lse:
        return outputs[0]
    empty = q.new_empty(0, dtype=torch.float32)
    return outputs[0], _without_keys(outputs[1]), empty, empty.clone()


def _packed_queries(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, ends_q: Tensor, longest: int, cache_seqlens: Any,
    cache_batch_idx: Any, cache_leftpad: Any, table: Tensor | None, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Queries of any lengths: what flash_attn_varlen_func does with pages. A row of a cache is a page as long as it."""
    batch = ends_q.shape[0] - 1
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if checks.heads(name, x, 4, "(pages, page size, H, D)", q, float8=True) is not x:
            raise ValueError(f"{name}: expected the last dimension to be contiguous, got strides {tuple(x.stride())}")
    rows = checks.indices("cache_batch_idx", cache_batch_idx, q, (batch,), f"(B) = ({batch},)")
    paged = table is not None
    if paged and rows is not None:
        raise ValueError("cache_batch_idx: expected None with page_table, which says where a sequence's keys are")
    if table is None:
        if rows is None and k_cache.shape[0] != batch:
            raise ValueError(f"k_cache: expected batch size {batch}, or cache_batch_idx, got {shape_text(k_cache)}")
        cache_rows = torch.arange(batch, dtype=torch.int32, device=q.device) if rows is None else rows
        table = cache_rows[:, None].contiguous()
    capacity = table.shape[1] * k_cache.shape[1]
    if cache_seqlens is None:
        cache_seqlens = capacity
    if isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    used = checks.indices("cache_seqlens", cache_seqlens, q, (batch,), f"(B) = ({batch},)")
    assert used is not None
    checks.lengths_fit("cache_seqlens", used, capacity, paged)
    checks.lengths_fit(
        "cache_leftpad", checks.indices("cache_leftpad", cache_leftpad, q, (batch,), "(B)"), capacity, paged
    )
    ends_k = torch.nn.functional.pad(used.cumsum(0, dtype=torch.int32), (1, 0))
    out, lse, _ = attention.flash_attn_varlen_func(
        q, k_cache, v_cache, ends_q, ends_k, longest, capacity, block_table=table, leftpad_k=cache_leftpad,
        return_attn_probs=True, **options,
    )  # fmt: skip
    return out, lse


def flash_attn_combine(
    out_partial: Tensor,  # (splits, B, S, H, D) float32
    lse_partial: Tensor,  # (splits, B, S, H) float32
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns out and softmax_lse (B, S, H), -infinity where no part had keys."""
    combined, lse = attention.flash_attn_combine(out_partial, lse_partial, out, out_dtype)
    return combined, _without_keys(lse)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,  # (B)
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,  # (B + 1)
    cu_seqlens_k_new: None = None,
    cache_leftpad: Tensor | None = None,  # (B)
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """num_splits for each sequence, (B) int32. A call is planned when it is made, from its own arguments, num_splits
    among them: what is said here is checked and changes no result."""
    checks.no_kernel(cu_seqlens_k_new=cu_seqlens_k_new)
    _check_common(None, None, attention_chunk, pack_gqa, sm_margin)
    counts = {
        "batch_size": batch_size, "num_heads_q": num_heads_q, "num_heads_kv": num_heads_kv, "headdim": headdim,
        "headdim_v": headdim if headdim_v is None else headdim_v, "page_size": 1 if page_size is None else page_size,
    }  # fmt: skip
    for name, x in counts.items():
        positive_int(name, x)
    lengths = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "max_seqlen_k_new": max_seqlen_k_new}
    for name, x in lengths.items():
        checks.length(name, x)
    if num_heads_q % num_heads_kv:
        raise ValueError(f"num_heads_kv: expected to divide num_heads_q = {num_heads_q}, got {num_heads_kv}")
    has_shape("cache_seqlens", cache_seqlens, (batch_size,), "(batch_size)")
    checks.indices("cache_seqlens", cache_seqlens, cache_seqlens, (batch_size,), "(B)")
    checks.indices("cache_leftpad", cache_leftpad, cache_seqlens, (batch_size,), f"(B) = ({batch_size},)")
    if cu_seqlens_q is not None:
        checks.offsets("cu_seqlens_q", cu_seqlens_q, cache_seqlens, batch_size)
    one_of("qkv_dtype", qkv_dtype, IO_DTYPES)
    checks.window(window_size, checks.flag("causal", causal))
    checks.flag("has_softcap", has_softcap)
    splits = checks.splits(num_splits)
    return torch.full((batch_size,), splits, dtype=torch.int32, device=cache_seqlens.device)


def _check_schedule(metadata: Any, q: Tensor, batch: int) -> None:
    has_shape("scheduler_metadata", metadata, (batch,), "(B), as get_scheduler_metadata gives it,")
    checks.indices("scheduler_metadata", metadata, q, (batch,), "(B)")


CONTENTS = {
    function.__name__: function
    for function in (
        flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache, flash_attn_combine,
        get_scheduler_metadata, maybe_contiguous, round_multiple,
    )
}  # fmt: skip
