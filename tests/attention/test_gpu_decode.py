# SPDX-License-Identifier: Apache-2.0
"""Decoding on a GPU: the tables' rows, and a graph that appends to a cache and attends to it, replayed with new data.
Without a GPU it is skipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.attention.decode_rows import (
    gpu_float8_mla_rows,
    gpu_float8_rows,
    gpu_mla_rows,
    gpu_rows,
    nan_goes_on,
    refuse_and_keep_the_cache,
    run_mla,
    run_row,
)
from xlstm_hip import attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
ROWS, MLA_ROWS = gpu_rows() + gpu_float8_rows(), gpu_mla_rows() + gpu_float8_mla_rows()


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_row(number: int) -> None:
    run_row(ROWS[number], "cuda")


@pytest.mark.parametrize("number", range(len(MLA_ROWS)))
def test_mla(number: int) -> None:
    run_mla(MLA_ROWS[number], "cuda")


def test_what_is_refused_leaves_the_cache() -> None:
    refuse_and_keep_the_cache("cuda")


def test_nan_goes_on() -> None:
    nan_goes_on("cuda")


@pytest.mark.parametrize("paged", [False, True])
def test_a_graph_of_decoding(paged: bool) -> None:
    """Append, rotary embedding and attention read nothing on the host: lengths, pages and tokens are those of the
    replay."""
    batch, heads, d, capacity = 3, 2, 128, 512
    pages = torch.randperm(batch * capacity // 16, device="cuda").int().reshape(batch, -1) if paged else None
    shape = (batch * capacity // 16, 16, heads, d) if paged else (batch, capacity, heads, d)
    caches = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    q, k, v = (torch.randn(batch, 1, h, d, device="cuda", dtype=torch.bfloat16) for h in (8, heads, heads))
    cos = torch.randn(capacity, d // 2, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([5, 300, 77], device="cuda", dtype=torch.int32)

    def step(caches: list[torch.Tensor]) -> Any:
        return attention.flash_attn_with_kvcache(
            q, *caches, k, v, cos, cos, cache_seqlens=lengths, block_table=pages, causal=True, return_softmax_lse=True
        )

    step([x.clone() for x in caches])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = step(caches)
    for more in (1, 100):
        for x in (q, k, v):
            x.normal_()
        lengths += more
        twin = [x.clone() for x in caches]
        graph.replay()
        expected = step(twin)
        assert all(torch.equal(x, y) for x, y in zip((*actual, *caches), (*expected, *twin), strict=True))


def test_a_graph_of_mla() -> None:
    q, cache = (torch.randn(2, n, h, 576, device="cuda").bfloat16() for n, h in ((1, 128), (900, 1)))
    lengths = torch.tensor([9, 900], device="cuda", dtype=torch.int32)
    older = attention.get_mla_metadata(lengths, 128, 1)
    attention.flash_mla_with_kvcache(q, cache, None, lengths, 512, *older)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = attention.flash_mla_with_kvcache(q, cache, None, lengths, 512, *older)
    lengths.copy_(torch.tensor([700, 64]))
    q.normal_()
    graph.replay()
    expected = attention.flash_mla_with_kvcache(q, cache, None, lengths, 512, *older)
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))
