# SPDX-License-Identifier: Apache-2.0
"""Decoding against a cache: append, rotary, rows and pages of the cache, parts and their combination, MLA."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from support.attention.decode_rows import MLA_ROWS, ROWS, nan_goes_on, run_mla, run_row
from support.representative import marked
from xlstm_hip import attention


@pytest.mark.parametrize(
    "number", marked([(n,) for n in range(len(ROWS))], lambda row: ROWS[row[0]], lambda row: str(*row))
)
def test_row(number: int) -> None:
    run_row(ROWS[number])


def test_whole_cache_and_an_int() -> None:
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 40, 2, 16), torch.randn(2, 40, 2, 16)
    out = attention.flash_attn_with_kvcache(q, k, v)
    torch.testing.assert_close(out, attention.flash_attn_func(q, k, v))
    torch.testing.assert_close(
        attention.flash_attn_with_kvcache(q, k, v, cache_seqlens=25), attention.flash_attn_func(q, k[:, :25], v[:, :25])
    )


@pytest.mark.parametrize("splits", [1, 2, 7, 256])
def test_parts_and_their_combination(splits: int) -> None:
    """num_splits changes roundings and nothing else; more parts than tiles are empty."""
    q, k, v = torch.randn(2, 3, 4, 32), torch.randn(2, 500, 2, 32), torch.randn(2, 500, 2, 32)
    unsplit, lse = attention.flash_attn_with_kvcache(q, k, v, causal=True, num_splits=1, return_softmax_lse=True)
    actual, got_lse = attention.flash_attn_with_kvcache(
        q, k, v, causal=True, num_splits=splits, return_softmax_lse=True, block_size=32
    )
    torch.testing.assert_close(actual, unsplit)
    torch.testing.assert_close(got_lse, lse)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_combine(dtype: torch.dtype | None) -> None:
    q, k, v = torch.randn(2, 5, 4, 32), torch.randn(2, 96, 4, 32), torch.randn(2, 96, 4, 32)
    unsplit, lse, _ = attention.flash_attn_func(q, k, v, return_attn_probs=True)
    ranges = [slice(0, 10), slice(10, 60), slice(60, 60), slice(60, 96)]
    parts = [attention.flash_attn_func(q, k[:, p], v[:, p], return_attn_probs=True) for p in ranges]
    outs, lses = torch.stack([p[0] for p in parts]), torch.stack([p[1].transpose(1, 2) for p in parts])
    assert lses[2].isposinf().all()
    out, got_lse = attention.flash_attn_combine(outs, lses, out_dtype=dtype)
    assert out.dtype == (dtype or torch.float32)
    torch.testing.assert_close(out, unsplit.to(out.dtype))
    torch.testing.assert_close(got_lse, lse.transpose(1, 2))
    buffer = torch.empty_like(out)
    assert attention.flash_attn_combine(outs, lses, out=buffer)[0] is buffer and torch.equal(buffer, out)
    lses[2] = -math.inf
    assert torch.equal(attention.flash_attn_combine(outs, lses)[1], got_lse)
    empty, no_lse = attention.flash_attn_combine(outs[2:3], lses[2:3])
    assert not empty.any() and no_lse.isposinf().all()


# ---- MLA


@pytest.mark.parametrize("number", range(len(MLA_ROWS)))
def test_mla(number: int) -> None:
    run_mla(MLA_ROWS[number])


def test_a_newer_schedule_is_for_one_shape() -> None:
    meta, none = attention.get_mla_metadata()
    assert none is None and meta.shapes is None
    q, cache, used = torch.randn(2, 1, 8, 576), torch.randn(2, 70, 1, 576), torch.tensor([70, 3])
    first = attention.flash_mla_with_kvcache(q, cache, None, used, 512, meta)[0]
    assert meta.shapes is not None
    assert torch.equal(attention.flash_mla_with_kvcache(q, cache, None, used, 512, meta)[0], first)
    with pytest.raises(ValueError, match="tile_scheduler_metadata: expected one for these shapes"):
        attention.flash_mla_with_kvcache(q[:1], cache[:1], None, used[:1], 512, meta)


def test_an_older_schedule_is_for_one_call() -> None:
    """Its contents are read where the host can: zeros, another call's, another dtype's are refused by name."""
    q, cache, used = torch.randn(2, 1, 8, 64), torch.randn(2, 300, 1, 64), torch.tensor([300, 3])
    schedule, first = attention.get_mla_metadata(used, 8, 1)

    def call(schedule: Any, first: Any) -> torch.Tensor:
        return attention.flash_mla_with_kvcache(q, cache, None, used, 48, schedule, first)[0]

    torch.testing.assert_close(call(schedule, first), attention.flash_mla_with_kvcache(q, cache, None, used, 48)[0])
    other_schedule, _ = attention.get_mla_metadata(torch.tensor([3, 300]), 8, 1)
    for wrong in (torch.zeros_like(schedule), schedule + 1, other_schedule[: len(schedule)]):
        with pytest.raises(ValueError, match="tile_scheduler_metadata: expected the result of get_mla_metadata"):
            call(wrong, first)
    for wrong in (torch.zeros_like(first), first + 1):
        with pytest.raises(ValueError, match="num_splits: expected the result of get_mla_metadata"):
            call(schedule, wrong)
    with pytest.raises(TypeError, match="tile_scheduler_metadata: expected torch.int32"):
        call(schedule.float() * torch.nan, first)
    with pytest.raises(TypeError, match="num_splits: expected torch.int32"):
        call(schedule, first.float())
    with pytest.raises(ValueError, match="num_splits: expected device cpu as q has, got meta"):
        call(schedule, first.to("meta"))


@pytest.mark.parametrize("heads", ["a", 0, 2.0, True, 3])
def test_mla_query_heads(heads: Any) -> None:
    with pytest.raises(ValueError, match="num_heads_q: expected a multiple of num_heads_k = 2, got"):
        attention.get_mla_metadata(torch.tensor([5]), 8, 2, heads)


@pytest.mark.parametrize(
    "name, value",
    [
        ("is_fp8_kvcache", True),
        ("indices", torch.zeros(1)),
        ("extra_k_cache", torch.zeros(1)),
        ("extra_indices_in_kvcache", torch.zeros(1)),
        ("topk_length", torch.zeros(1)),
        ("extra_topk_length", torch.zeros(1)),
    ],
)
def test_mla_refuses_by_name(name: str, value: Any) -> None:
    with pytest.raises(NotImplementedError, match=name):
        attention.flash_mla_with_kvcache(
            torch.randn(1, 1, 8, 576), torch.randn(1, 9, 1, 576), None, torch.tensor([9]), 512, **{name: value}
        )
    if name == "is_fp8_kvcache":
        with pytest.raises(NotImplementedError, match=name):
            attention.get_mla_metadata(is_fp8_kvcache=True)
        with pytest.raises(NotImplementedError, match="topk"):
            attention.get_mla_metadata(topk=3)


def test_nan_goes_on() -> None:
    nan_goes_on("cpu")
