# SPDX-License-Identifier: Apache-2.0
"""The attention ops of the library in plain torch: their names, arguments and results (csrc/torch/register.cpp), any
device. XLSTM_HIP_BACKEND=reference runs them. They compute sequence by sequence, the whole matrix of weights of each in
float32 or wider; gradients are autograd's. Index tensors are read on the host. block_size and splits, which change no
result, have nothing to change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._core.checks import FLOAT8_DTYPES, accumulate_dtype
from .._core.index_tensors import Pages, SequenceBounds, in_range, index_tensors_fit
from .attention import attention


class _Sequence(NamedTuple):
    """The position of a sequence's queries (a slice of the packed row, else its row), and its keys in use."""

    queries: int | slice
    k: Tensor  # (keys, H_k, D)
    v: Tensor
    begin: int  # of the keys in use, among the keys that there is room for


def _ends(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    ends = cu_seqlens.tolist()
    return list(zip(ends[:-1], ends[1:], strict=True))


def _cached(cache: Tensor, b: int, end: int, pages: Pages) -> Tensor:
    """The first `end` tokens that a cache has for a sequence."""
    if pages.block_table is not None:
        count = -(-end // cache.shape[1])
        return cache[pages.block_table[b, :count].long()].flatten(0, 1)[:end]
    return cache[b if pages.cache_batch_idx is None else int(pages.cache_batch_idx[b])][:end]


def _batch(q: Tensor, bounds: SequenceBounds) -> int:
    return q.shape[0] if bounds.cu_seqlens_q is None else bounds.cu_seqlens_q.shape[0] - 1


def _sequences(q: Tensor, k: Tensor, v: Tensor, bounds: SequenceBounds, pages: Pages) -> Iterator[_Sequence]:
    batch = _batch(q, bounds)
    queries: list[int | slice] = list(range(batch))
    if bounds.cu_seqlens_q is not None:
        queries = [slice(*ends) for ends in _ends(bounds.cu_seqlens_q)]
    capacity = k.shape[1] * (1 if pages.block_table is None else pages.block_table.shape[1])
    ends_k = None if bounds.cu_seqlens_k is None else _ends(bounds.cu_seqlens_k)
    for b in range(batch):
        end = capacity if ends_k is None else ends_k[b][1] - ends_k[b][0]
        if bounds.seqused_k is not None:
            end = min(end, int(bounds.seqused_k[b]))
        begin = 0 if bounds.leftpad_k is None else min(int(bounds.leftpad_k[b]), end)
        if ends_k is not None:
            first = ends_k[b][0]
            keys_values = [x[first + begin : first + end] for x in (k, v)]
        else:
            keys_values = [_cached(x, b, end, pages)[begin:] for x in (k, v)]
        yield _Sequence(queries[b], keys_values[0], keys_values[1], begin)


def _descale(x: Tensor | None, k: Tensor, b: int, dtype: torch.dtype) -> Tensor:
    """(H_k, 1), or 1: what 1 in a sequence's keys stands for."""
    if x is None:
        return torch.ones((), dtype=dtype, device=k.device)
    return (x[b] if x.dim() == 2 else x.reshape(1).expand(k.shape[-2])).to(dtype).unsqueeze(-1)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: SequenceBounds,
    pages: Pages,
    alibi_slopes: Tensor | None,
    sink: Tensor | None,
    rng_state: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    window: tuple[int, int],
    softcap: float,
    dropout_p: float,
    lse_with_sink: bool,
    probs: bool,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    index_tensors_fit(q, k, bounds, pages, max_seqlen_q, max_seqlen_k)
    wide, heads, packed = accumulate_dtype(q.dtype), q.shape[-2], bounds.cu_seqlens_q is not None
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    lse = q.new_zeros((heads, q.shape[0]) if packed else (q.shape[0], heads, q.shape[1]), dtype=wide)
    shape = (_batch(q, bounds), heads, max_seqlen_q, k.shape[1] if bounds.cu_seqlens_k is None else max_seqlen_k)
    weights = q.new_zeros(shape if probs else (0,))
    for b, one in enumerate(_sequences(q, k, v, bounds, pages)):
        seq_q, seq_k, seq_v = (x.to(wide).unsqueeze(0) for x in (q[one.queries], one.k, one.v))
        seq_k, seq_v = seq_k * _descale(k_descale, k, b, wide), seq_v * _descale(v_descale, v, b, wide)
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes[b]
        rules: dict[str, Any] = {
            "softmax_scale": softmax_scale, "window_size": window, "softcap": softcap, "alibi_slopes": slopes,
        }  # fmt: skip
        drawn: dict[str, Any] = {"dropout_p": dropout_p, "rng_state": rng_state, "first_sequence": b}
        seq_out, seq_lse, seq_weights = attention(seq_q, seq_k, seq_v, sink=sink, **rules, **drawn)
        if sink is not None and not lse_with_sink:
            seq_lse = attention(seq_q, seq_k, seq_v, **rules)[1]
        out[one.queries] = seq_out[0].to(q.dtype)
        lse[(slice(None), one.queries) if packed else one.queries] = seq_lse[0]
        if probs:
            queries, keys = seq_weights.shape[2:]
            weights[b, :, :queries, one.begin : one.begin + keys] = seq_weights[0].detach().to(q.dtype)
    return out, lse, weights


def attention_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, cache_batch_idx, alibi_slopes, sink,
    rng_state, max_seqlen_q, max_seqlen_k, softmax_scale, window_left, window_right, softcap, dropout_p, block_size,
    splits, lse_with_sink, k_descale=None, v_descale=None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    bounds, pages = (
        SequenceBounds(cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k),
        Pages(block_table, cache_batch_idx),
    )
    return _attend(
        q, k, v, bounds, pages, alibi_slopes, sink, rng_state, max_seqlen_q, max_seqlen_k, softmax_scale,
        (window_left, window_right), softcap, dropout_p, lse_with_sink, False, k_descale, v_descale,
    )[:2]  # fmt: skip


def attention_forward_probs(
    q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, alibi_slopes, sink, rng_state, max_seqlen_q,
    max_seqlen_k, softmax_scale, window_left, window_right, softcap, dropout_p, block_size, k_descale=None,
    v_descale=None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    bounds = SequenceBounds(cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k)
    return _attend(
        q, k, v, bounds, Pages(), alibi_slopes, sink, rng_state, max_seqlen_q, max_seqlen_k, softmax_scale,
        (window_left, window_right), softcap, dropout_p, True, True, k_descale, v_descale,
    )  # fmt: skip


def _positions_fit(cos: Tensor, start: Tensor | None, steps: int) -> None:
    """Every position is in the rotary tables."""
    for first in [0] if start is None else start.tolist():
        for position in (first, first + steps - 1):
            in_range("cache_seqlens: a rotary position", position, 0, cos.shape[0] - 1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Tokens (..., H, D), each by its own angles (..., 1, rotary_dim / 2); features beyond rotary_dim stay."""
    wide, features = accumulate_dtype(x.dtype), 2 * cos.shape[-1]
    c, s = cos.to(wide), sin.to(wide)
    turned, unrotated = x[..., :features].to(wide), x[..., features:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pair = (a * c - b * s, a * s + b * c)
    y = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([y.to(x.dtype), unrotated], dim=-1)


def attention_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, start: Tensor | None, interleaved: bool, same_position: bool
) -> Tensor:
    batch, length = x.shape[:2]
    _positions_fit(cos, start, 1 if same_position else length)
    steps = torch.zeros(length, device=x.device) if same_position else torch.arange(length, device=x.device)
    first = torch.zeros(batch, device=x.device) if start is None else start
    positions = (first[:, None] + steps).long().clamp(0, cos.shape[0] - 1)  # (B, S)
    return rotated(x, cos[positions].unsqueeze(2), sin[positions].unsqueeze(2), interleaved)


def float8_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest numbers; what exceeds the largest one becomes it, and an infinity a NaN."""
    largest = torch.finfo(dtype).max
    return x.float().masked_fill(x.isinf(), torch.nan).clamp(-largest, largest).to(dtype)


def attention_append_(
    cache: Tensor, x: Tensor, cos: Tensor | None, sin: Tensor | None, start: Tensor | None,
    cache_batch_idx: Tensor | None, block_table: Tensor | None, interleaved: bool,
    descale: Tensor | None = None,
) -> None:  # fmt: skip
    if cos is not None and sin is not None:
        x = attention_rotary(x, cos, sin, start, interleaved, False)
    batch, length = x.shape[:2]
    first = torch.zeros(batch, dtype=torch.int64, device=x.device) if start is None else start.long()
    positions = first[:, None] + torch.arange(length, device=x.device)  # (B, S)
    capacity = cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    for position in positions.flatten().tolist():
        in_range("cache_seqlens: a new key's position", position, 0, capacity - 1)
    if block_table is not None:
        rows = block_table.long().gather(1, positions // cache.shape[1])
        for page in rows.flatten().tolist():
            in_range("block_table", page, 0, cache.shape[0] - 1)
        positions = positions % cache.shape[1]
    else:
        batch_rows = torch.arange(batch, device=x.device) if cache_batch_idx is None else cache_batch_idx.long()
        for row in batch_rows.tolist():
            in_range("cache_batch_idx", row, 0, cache.shape[0] - 1)
        rows = batch_rows[:, None].expand_as(positions)
    if cache.dtype in FLOAT8_DTYPES:
        each = [_descale(descale, cache, b, accumulate_dtype(x.dtype)) for b in range(batch)]
        scaled = x / torch.stack([y.expand(x.shape[2], 1) for y in each])[:, None]
        x, cache = float8_of(scaled, cache.dtype).view(torch.uint8), cache.view(torch.uint8)
    cache[rows, positions] = x


def attention_combine(out_partial: Tensor, lse_partial: Tensor) -> tuple[Tensor, Tensor]:
    lse = lse_partial.masked_fill(lse_partial.isinf(), float("-inf"))  # a part without keys counts for nothing
    total = lse.logsumexp(0)
    empty = total == float("-inf")
    shares = torch.exp(lse - total.masked_fill(empty, 0)).unsqueeze(-1)
    out = (out_partial.masked_fill(shares == 0, 0) * shares).sum(0)
    return out, total.masked_fill(empty, float("inf"))
