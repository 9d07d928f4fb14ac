# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's dense decoding, called as its users call it: PyPI has none of it, so the grid is this project's own.

Rows of different lengths, empty ones among them, in pages that lie in any order; what no row may read is NaN.
"""

from __future__ import annotations

import pytest
import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from torch import Tensor

D, DV, PAGE = 576, 512, 64


def dense(q: Tensor, keys: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """One row in the dtype of its inputs: out (S_q, H, DV), log-sum-exp (H, S_q)."""
    if not len(keys):
        return q.new_zeros(*q.shape[:2], DV), q.new_full(q.shape[:2], torch.inf).T
    logits = torch.einsum("shd,kd->hsk", q, keys) * D**-0.5
    if causal:
        queries = torch.arange(q.shape[0])[:, None] + len(keys) - q.shape[0]
        logits = logits.masked_fill(torch.arange(len(keys)) > queries, -torch.inf)
    lse = logits.logsumexp(-1)
    weights = torch.where(lse.isneginf()[..., None], 0, logits.softmax(-1))
    return torch.einsum("hsk,kd->shd", weights, keys[:, :DV]), torch.where(lse.isneginf(), torch.inf, lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(64, 64), (0, 1, 130), (257, 0, 63), (640,)])
def test_dense_decoding(dtype: torch.dtype, heads: int, queries: int, causal: bool, lengths: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    batch, most = len(lengths), -(-max(lengths) // PAGE)
    q = torch.randn(batch, queries, heads, D, generator=rng).to(dtype)
    pages = torch.full((batch * most, PAGE, 1, D), torch.nan, dtype=dtype)
    table = torch.randperm(batch * most, generator=rng).view(batch, most).int()
    rows = []
    for row, length in enumerate(lengths):
        keys = torch.randn(length, D, generator=rng).to(dtype)
        for page in range(-(-length // PAGE)):
            part = keys[page * PAGE : (page + 1) * PAGE]
            pages[table[row, page], : len(part), 0] = part
        rows.append(keys)
    used = torch.tensor(lengths, dtype=torch.int32)
    metadata, splits = get_mla_metadata(used, queries * heads, 1)
    out, lse = flash_mla_with_kvcache(q, pages, table, used, DV, metadata, splits, causal=causal)
    assert out.shape == (batch, queries, heads, DV) and out.dtype == dtype
    assert lse.shape == (batch, heads, queries) and lse.dtype == torch.float32
    for row, keys in enumerate(rows):
        true, true_lse = dense(q[row].double(), keys.double(), causal)
        plain, plain_lse = dense(q[row], keys, causal)
        for label, actual, twin, want in (("out", out[row], plain, true), ("lse", lse[row], plain_lse, true_lse)):
            finite = want.isfinite()
            assert torch.equal(actual[~finite].double(), want[~finite]), label
            limit = 2 * (twin.double() - want)[finite].abs().max().item() if finite.any() else 0.0
            assert (actual.double() - want)[finite].abs().max().item() <= limit if finite.any() else True, label
