# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's and FlashMLA's prefill functions as xlstm_hip.compat offers them, beside xlstm_hip.attention."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from support.compat_parts import compat_part
from xlstm_hip import attention

contents = compat_part("attention").attention_contents()
hopper, mla = contents["flash_attn_interface"], contents["flash_mla"]
INF = float("inf")
B, S, H, D = 2, 20, 4, 16
ENDS = torch.tensor([0, 5, 40])
LENGTHS = (ENDS, ENDS, 35, 35)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


QKV = drawn(B, S, 3, H, D)
Q, K, V = QKV.unbind(2)


def test_whole_sequences() -> None:
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    options: dict[str, Any] = {"softmax_scale": 0.2, "causal": True, "window_size": (7, 0), "softcap": 3.0}
    out, lse = hopper["flash_attn_func"](*leaves, **options, return_attn_probs=True, pack_gqa=True, sm_margin=8)
    expected, expected_lse, _ = attention.flash_attn_func(*leaves, **options, num_splits=1, return_attn_probs=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    # Queries before the first key see none.
    out, lse = hopper["flash_attn_func"](Q, K[:, :9], V[:, :9], causal=True, return_attn_probs=True)
    assert (lse[:, :, :11] == -INF).all() and lse[:, :, 11:].isfinite().all() and not out[:, :11].any()
    for qkv, heads in ((QKV, None), (QKV, H), (QKV.flatten(2, 3), H)):
        out = hopper["flash_attn_qkvpacked_func"](qkv, causal=True, num_heads_q=heads)
        assert torch.equal(out, hopper["flash_attn_func"](Q, K, V, causal=True))
    grouped = torch.cat([Q, K[:, :, :2], V[:, :, :2]], 2)
    out = hopper["flash_attn_qkvpacked_func"](grouped, num_heads_q=H)
    assert torch.equal(out, hopper["flash_attn_func"](Q, K[:, :, :2], V[:, :, :2]))
    (actual,) = torch.autograd.grad(hopper["flash_attn_func"](*leaves).sum(), leaves[:1])
    (should,) = torch.autograd.grad(attention.flash_attn_func(*leaves).sum(), leaves[:1])
    torch.testing.assert_close(actual, should)


def test_packed_sequences() -> None:
    q, k, v = (x.flatten(0, 1) for x in (Q, K, V))
    used = torch.tensor([0, 30])
    out, lse = hopper["flash_attn_varlen_func"](q, k, v, *LENGTHS, seqused_k=used, causal=True, return_attn_probs=True)
    expected, expected_lse, _ = attention.flash_attn_varlen_func(
        q, k, v, *LENGTHS, seqused_k=used, causal=True, return_attn_probs=True
    )
    torch.testing.assert_close(out, expected)
    assert (lse[:, :5] == -INF).all() and torch.equal(lse[:, 10:], expected_lse[:, 10:])
    split = hopper["flash_attn_varlen_func"](q, k, v, *LENGTHS, num_splits=3)
    torch.testing.assert_close(split, hopper["flash_attn_varlen_func"](q, k, v, *LENGTHS))


@pytest.mark.parametrize("where", ["rows", "chosen rows", "pages"])
def test_a_cache(where: str) -> None:
    """Queries of one length as xlstm_hip.attention takes them, and packed ones, one sequence at a time."""
    k_cache, v_cache = drawn(4, 16, 2, D), drawn(4, 16, 2, D)
    pages = torch.tensor([[3, 1], [0, 2]])
    rules_of_layout: dict[str, Any] = {"rows": {}, "chosen rows": {"cache_batch_idx": torch.tensor([3, 1])},
                           "pages": {"page_table": pages}}[where]  # fmt: skip
    if where == "rows":
        k_cache, v_cache = k_cache[:2].clone(), v_cache[:2].clone()
    used, leftpad = torch.tensor([7, 12]), torch.tensor([1, 0])
    rules: dict[str, Any] = {
        "causal": True,
        "window_size": (6, 0),
        "softcap": 2.0,
        "cache_leftpad": leftpad,
        **rules_of_layout,
    }
    q, new = drawn(2, 3, H, D), drawn(2, 3, 2, D)
    cos, sin = drawn(40, 4), drawn(40, 3 + 1)
    renamed_rules = {"block_table" if n == "page_table" else n: x for n, x in rules.items()}
    caches = [(k_cache.clone(), v_cache.clone()) for _ in range(2)]
    out, lse, *workspaces = hopper["flash_attn_with_kvcache"](
        q, *caches[0], new, new, None, cos, sin, used, **rules, return_softmax_lse=True, max_seqlen_q=3,
        scheduler_metadata=torch.zeros(2, dtype=torch.int32),
    )  # fmt: skip
    expected = attention.flash_attn_with_kvcache(
        q, *caches[1], new, new, cos, sin, used, **renamed_rules, return_softmax_lse=True
    )
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    assert [x.numel() for x in workspaces] == [0, 0]
    for actual, should in zip(*caches, strict=True):
        assert torch.equal(actual, should)
    packed, packed_lse, *_ = hopper["flash_attn_with_kvcache"](
        torch.cat([q[0, :1], q[1]]), k_cache, v_cache, cache_seqlens=used, cu_seqlens_q=torch.tensor([0, 1, 4]),
        max_seqlen_q=3, **rules, return_softmax_lse=True,
    )  # fmt: skip
    for b, (queries, rows) in enumerate(((slice(0, 1), q[:1, :1]), (slice(1, 4), q[1:]))):
        alone = {n: x[b : b + 1] if isinstance(x, Tensor) else x for n, x in renamed_rules.items()}
        one_cache = (k_cache[b : b + 1], v_cache[b : b + 1]) if where == "rows" else (k_cache, v_cache)
        one, one_lse = attention.flash_attn_with_kvcache(
            rows, *one_cache, cache_seqlens=used[b : b + 1], **alone, return_softmax_lse=True
        )
        torch.testing.assert_close(packed[queries], one[0])
        torch.testing.assert_close(packed_lse[:, queries], one_lse[0])


def test_packed_queries_of_a_whole_cache() -> None:
    cache, ends = drawn(2, 16, 2, D), torch.tensor([0, 1, 4])
    call: dict[str, Any] = {"q": drawn(4, H, D), "k_cache": cache, "v_cache": cache, "cu_seqlens_q": ends}
    out, lse, *_ = hopper["flash_attn_with_kvcache"](**call, max_seqlen_q=3, return_softmax_lse=True)
    same = hopper["flash_attn_with_kvcache"](**call, max_seqlen_q=3, cache_seqlens=16)
    assert torch.equal(out, same)
    out, lse, *_ = hopper["flash_attn_with_kvcache"](
        **call, max_seqlen_q=3, cache_seqlens=torch.tensor([0, 5]), return_softmax_lse=True
    )
    assert not out[0].any() and (lse[:, 0] == -INF).all() and lse[:, 1:].isfinite().all()


def test_parts_without_keys() -> None:
    out, lse = drawn(3, B, 5, H, D), drawn(3, B, 5, H)
    lse[:, 0], lse[1, 1] = -INF, -INF
    combined, combined_lse = hopper["flash_attn_combine"](out, lse)
    expected, expected_lse = attention.flash_attn_combine(out, lse)
    assert torch.equal(combined, expected) and torch.equal(combined_lse[1], expected_lse[1])
    assert not combined[0].any() and (combined_lse[0] == -INF).all() and (expected_lse[0] == INF).all()


def test_a_schedule() -> None:
    schedule = hopper["get_scheduler_metadata"](2, 3, 40, 4, 2, 16, torch.tensor([20, 9]), num_splits=3, causal=True)
    assert schedule.tolist() == [3, 3] and schedule.dtype == torch.int32


def test_flash_mla() -> None:
    q, k, v = (x.flatten(0, 1) for x in (Q, K, V))
    v = v[..., :8]
    out, lse = mla["flash_attn_varlen_func"](q, k, v, *LENGTHS, causal=True)
    expected, expected_lse, _ = attention.flash_attn_varlen_func(q, k, v, *LENGTHS, causal=True, return_attn_probs=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse.T)
    packed = mla["flash_attn_varlen_kvpacked_func"](q, torch.cat([k, v], -1), *LENGTHS, D, causal=True)
    assert torch.equal(packed[0], out) and torch.equal(packed[1], lse)
    packed = mla["flash_attn_varlen_qkvpacked_func"](torch.cat([q, k, v], -1), ENDS, 35, D, causal=True)
    assert torch.equal(packed[0], out) and torch.equal(packed[1], lse)
    with pytest.raises(
        ValueError, match="head_dim_qk: expected an integer >= 1 that leaves features of qkv to v, got 8"
    ):
        mla["flash_attn_varlen_qkvpacked_func"](q, ENDS, 35, 8)
    with pytest.raises(AttributeError, match="flash_mla.flash_mla_sparse_fwd: not offered .* kernel for sparse attent"):
        mla["__getattr__"]("flash_mla_sparse_fwd")


PACKED: dict[str, Any] = {"q": drawn(4, H, D), "k_cache": K, "v_cache": V, "cu_seqlens_q": torch.tensor([0, 1, 4])}


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        ("flash_attn_func", {"q": Q, "k": K, "v": V, "qv": Q}, "qv: expected None; there is no kernel for it"),
        ("flash_attn_func", {"q": Q, "k": K, "v": V, "k_descale": V}, "k_descale: expected None"),
        ("flash_attn_func", {"q": Q, "k": K, "v": V, "attention_chunk": 64}, "attention_chunk: expected 0; .* got 64"),
        ("flash_attn_func", {"q": Q, "k": K, "v": V, "pack_gqa": 1}, "pack_gqa: expected True or False, got 1"),
        ("flash_attn_func", {"q": Q, "k": K, "v": V, "sm_margin": -1}, "sm_margin: expected an integer >= 0, got -1"),
        ("flash_attn_with_kvcache", PACKED, "max_seqlen_q: expected with cu_seqlens_q"),
        ("flash_attn_with_kvcache", {**PACKED, "max_seqlen_q": 2}, "cu_seqlens_q: sequence 1 has 3 tokens, more than"),
        ("flash_attn_with_kvcache", {**PACKED, "max_seqlen_q": 3, "k": K}, "k: expected None with cu_seqlens_q"),
        (
            "flash_attn_with_kvcache", {**PACKED, "max_seqlen_q": 3, "cache_seqlens": 21},
            "cache_seqlens: expected 0 to 20, for which the cache has room, got 21",
        ),
        (
            "flash_attn_with_kvcache", {**PACKED, "max_seqlen_q": 3, "k_cache": K[:1], "v_cache": V[:1]},
            "k_cache: expected batch size 2, or cache_batch_idx",
        ),
        (
            "flash_attn_with_kvcache", {**PACKED, "max_seqlen_q": 3, "rotary_interleaved": 1},
            "rotary_interleaved: expected True or False, got 1",
        ),
        (
            "flash_attn_with_kvcache",
            {**PACKED, "max_seqlen_q": 3, "page_table": ENDS[:2, None], "cache_batch_idx": ENDS[:2]},
            "cache_batch_idx: expected None with page_table",
        ),
        (
            "flash_attn_with_kvcache", {"q": Q, "k_cache": K, "v_cache": V, "scheduler_metadata": ENDS},
            r"scheduler_metadata: expected shape \(B\)",
        ),
        ("flash_attn_qkvpacked_func", {"qkv": Q, "num_heads_q": 3}, "num_heads_q: expected to leave as many"),
        ("flash_attn_qkvpacked_func", {"qkv": Q[0]}, r"qkv: expected \(B, S, 3, H, D\)"),
    ],
)  # fmt: skip
def test_wrong(function: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((NotImplementedError, TypeError, ValueError, RuntimeError), match=message):
        hopper[function](**arguments)


def test_signatures_as_published() -> None:
    hints = "window_size attention_chunk softcap"
    descales = "q_descale k_descale v_descale"
    tuned = "num_splits pack_gqa deterministic sm_margin return_attn_probs"
    published = {
        "flash_attn_func": f"q k v softmax_scale causal qv {descales} {hints} {tuned}",
        "flash_attn_qkvpacked_func": (
            f"qkv softmax_scale causal {descales} {hints} deterministic num_heads_q sm_margin return_attn_probs"
        ),
        "flash_attn_varlen_func": (
            "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k softmax_scale causal qv "
            f"{descales} {hints} {tuned}"
        ),
        "flash_attn_with_kvcache": (
            "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table "
            f"cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens {descales} softmax_scale causal {hints} "
            "rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse"
        ),
        "get_scheduler_metadata": (
            "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype headdim_v "
            "cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size attention_chunk "
            "has_softcap num_splits pack_gqa sm_margin"
        ),
    }
    for name, names in published.items():
        assert list(inspect.signature(hopper[name]).parameters) == names.split(), name
    assert inspect.signature(hopper["flash_attn_func"]).parameters["num_splits"].default == 1
    assert inspect.signature(hopper["flash_attn_with_kvcache"]).parameters["num_splits"].default == 0
