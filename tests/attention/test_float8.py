# SPDX-License-Identifier: Apache-2.0
"""Keys and values in floats of 8 bits: every argument of decoding and of MLA, forward, what is appended, how far
results are from those of the numbers that were rounded, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from support.attention import truth
from support.attention.decode_rows import (
    FLOAT8,
    FLOAT8_MLA_ROWS,
    FLOAT8_ROWS,
    float8_of,
    products_mla_rows,
    run_mla,
    run_row,
)
from support.attention.problem import EPS, FLOOR, generator
from support.compat_parts import compat_part
from support.representative import marked
from xlstm_hip import attention
from xlstm_hip._core.index_tensors import Pages, SequenceBounds
from xlstm_hip.attention.ops import OPS, Options
from xlstm_hip.reference import attention as plain
from xlstm_hip.reference import attention_ops

PRODUCTS_MLA_ROWS = products_mla_rows()
flash_attn_3 = compat_part("attention").flash_attn_3


@pytest.mark.parametrize(
    "number", marked([(n,) for n in range(len(FLOAT8_ROWS))], lambda row: FLOAT8_ROWS[row[0]], lambda row: str(*row))
)
def test_row(number: int) -> None:
    run_row(FLOAT8_ROWS[number])


@pytest.mark.parametrize("number", range(len(FLOAT8_MLA_ROWS)))
def test_mla(number: int) -> None:
    run_mla(FLOAT8_MLA_ROWS[number])


@pytest.mark.parametrize("number", range(len(PRODUCTS_MLA_ROWS)))
def test_mla_of_queries_in_float8(number: int) -> None:
    """Widened, where no kernel multiplies them."""
    run_mla(PRODUCTS_MLA_ROWS[number])


def test_what_queries_in_float8_need() -> None:
    used = torch.tensor([9], dtype=torch.int32)
    q, cache = (torch.randn(1, n, h, 576).to(torch.float8_e4m3fn) for n, h in ((1, 4), (9, 1)))
    wide = attention.flash_mla_with_kvcache(q.bfloat16(), cache, None, used, 512)
    for out, expected in zip(attention.flash_mla_with_kvcache(q, cache, None, used, 512), wide, strict=True):
        assert torch.equal(out, expected) and out.dtype == expected.dtype
    with pytest.raises(TypeError, match="k_cache: expected torch.float8_e4m3fn as q has, got torch.float8_e4m3fnuz"):
        attention.flash_mla_with_kvcache(q, cache.float().to(torch.float8_e4m3fnuz), None, used, 512)
    with pytest.raises(ValueError, match="q_descale: expected None with q of torch.bfloat16"):
        attention.flash_mla_with_kvcache(q.bfloat16(), cache, None, used, 512, q_descale=torch.ones(1))


def test_a_wrong_descale_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the values' descale of the next key head."""
    row = next(x for x in FLOAT8_ROWS if x["descale"] == "each" and x["heads"] == (8, 2) and not x["new"])
    run_row(row)
    call = attention.flash_attn_with_kvcache
    monkeypatch.setattr(
        attention,
        "flash_attn_with_kvcache",
        lambda *args, **more: call(*args, **more | {"v_descale": more["v_descale"].flip(1)}),
    )
    with pytest.raises(AssertionError, match="out: error"):
        run_row(row)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=generator(seed)).to(dtype)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_code(dtype: torch.dtype) -> None:
    """One key has weight 1, so out is its value: all 256, NaN included."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 1, 1, 16)
    k = torch.zeros(16, 1, 1, 16).to(dtype)
    for q in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        out = attention.flash_attn_func(torch.zeros(16, 1, 1, 16, dtype=q), k, codes)
        assert torch.equal(out.isnan(), codes.float().isnan())
        assert torch.equal(out.nan_to_num(nan=0.5), codes.to(q).nan_to_num(nan=0.5))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_what_is_appended(dtype: torch.dtype) -> None:
    """The nearest number of every float16, ties to even; the largest beyond it; infinity and NaN become NaN."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).reshape(1, 1024, 1, 64)
    cache = torch.zeros(1, 1024, 1, 64).to(dtype)
    attention.flash_attn_with_kvcache(x[:, :1], cache, cache.clone(), x, x, cache_seqlens=0)
    expected = float8_of(x, dtype).float()
    assert torch.equal(cache.float().isnan(), x.isnan() | x.isinf())
    assert torch.equal(cache.float().nan_to_num(nan=0.5), expected.nan_to_num(nan=0.5))
    largest = torch.finfo(dtype).max
    assert cache.float().nan_to_num(nan=0).abs().max() == largest


@pytest.mark.parametrize("stored", FLOAT8, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_forward(stored: torch.dtype, dtype: torch.dtype, causal: bool) -> None:
    """Many queries, dense and packed, against float64 of the numbers that k and v stand for."""
    q, k, v = drawn(2, 70, 4, 48, dtype=dtype), drawn(2, 90, 2, 48, seed=1), drawn(2, 90, 2, 40, seed=2)
    scales = [torch.rand(2, 2, generator=generator(3 + j)) / 8 + 1 / 64 for j in range(2)]
    k8, v8 = (float8_of(x / s[:, None, :, None], stored) for x, s in zip((k, v), scales, strict=True))
    k, v = (x.double() * s[:, None, :, None].double() for x, s in zip((k8, v8), scales, strict=True))
    scale = {"k_descale": scales[0], "v_descale": scales[1]}
    out, lse, _ = attention.flash_attn_func(q, k8, v8, causal=causal, return_attn_probs=True, **scale)
    ends_q, ends_k = torch.tensor([0, 70, 140]), torch.tensor([0, 90, 180])
    packed = attention.flash_attn_varlen_func(
        q.flatten(0, 1), k8.flatten(0, 1), v8.flatten(0, 1), ends_q, ends_k, 70, 90, causal=causal, **scale
    )
    assert torch.equal(packed.unflatten(0, (2, 70)), out)
    rules = truth.Rules(48**-0.5, causal)
    true = truth.attention([(q[b].double(), k[b], v[b]) for b in range(2)], rules)
    near = plain.attention(q, k.to(dtype), v.to(dtype), causal=causal)
    for b in range(2):
        for actual, exact, same in ((out[b], true[b][0], near[0][b]), (lse[b], true[b][1], near[1][b])):
            allowed = 2 * (same.double() - exact).norm() + FLOOR * EPS[dtype] * exact.norm()
            assert (actual.double() - exact).norm() <= allowed


@pytest.mark.parametrize("stored", FLOAT8, ids=str)
def test_what_quantising_costs(stored: torch.dtype) -> None:
    """A number is off by 2^-4 of itself at the most, or near zero by half the least number. A score is off by at most
    e = scale * sum |q| |dk|, so a weight by a factor within e^(2 e), and out by max |v| (e^(2 e) - 1) and max |dv|."""
    q, k, v = (drawn(1, n, 2, 64, seed=n).double() for n in (5, 200, 201))
    v = v[:, :200]
    unit = torch.tensor([1 / 32])  # nothing is beyond the largest number
    k8, v8 = (float8_of(x / unit, stored) for x in (k, v))
    dk, dv = ((x8.double() / 32 - x).abs() for x8, x in ((k8, k), (v8, v)))
    least = float(unit) * torch.finfo(stored).smallest_normal / 16
    for x, off in ((k, dk), (v, dv)):
        assert (off <= (x.abs() / 16).clamp(min=least)).all()
    out = attention.flash_attn_func(q, k8, v8, k_descale=unit, v_descale=unit)
    exact = attention.flash_attn_func(q, k, v)
    e = 64**-0.5 * torch.einsum("bqhd,bkhd->bhqk", q.abs(), dk).amax(-1).transpose(1, 2)[..., None]
    bound = v.abs().amax(1) * e.mul(2).expm1() + dv.amax(1)
    error = (out - exact).abs()
    assert (error <= bound).all()
    assert error.max() > 1e-3  # it is not the exact keys that were read


def test_as_in_flash_attention_3() -> None:
    q, k, v = drawn(2, 3, 4, 32, dtype=torch.bfloat16), drawn(2, 9, 2, 32, seed=1), drawn(2, 9, 2, 32, seed=2)
    k8, v8 = (x.to(torch.float8_e4m3fn) for x in (k, v))
    scales = {"k_descale": torch.rand(2, 2), "v_descale": torch.rand(2, 2)}
    expected = attention.flash_attn_func(q, k8, v8, causal=True, **scales)
    assert torch.equal(flash_attn_3.flash_attn_func(q, k8, v8, causal=True, **scales), expected)
    cached = flash_attn_3.flash_attn_with_kvcache(q, k8, v8, cache_seqlens=9, causal=True, **scales)
    torch.testing.assert_close(cached, expected)
    ends = torch.tensor([0, 3, 6])
    packed = flash_attn_3.flash_attn_with_kvcache(
        q.flatten(0, 1), k8, v8, cache_seqlens=9, cu_seqlens_q=ends, max_seqlen_q=3, causal=True, **scales
    )
    torch.testing.assert_close(packed.unflatten(0, (2, 3)), expected)


def test_opcheck_and_plain_torch() -> None:
    """The ops, and the same in plain torch (XLSTM_HIP_BACKEND=reference)."""
    x, cos, sin = drawn(2, 3, 2, 8), drawn(20, 4, seed=1), drawn(20, 4, seed=2)
    start, rows, scale = torch.tensor([1, 4]).int(), torch.tensor([3, 0]).int(), torch.rand(2, 2) + 0.1
    for dtype in FLOAT8:
        cache = drawn(4, 8, 2, 8, seed=3).to(dtype)
        caches = [cache.clone(), cache.clone()]
        for ops, to in zip((OPS, attention_ops), caches, strict=True):
            ops.attention_append_(to, x, cos, sin, start, rows, None, True, scale)
        assert torch.equal(*(y.view(torch.uint8) for y in caches)) and not torch.equal(caches[0].float(), cache.float())
        options = Options(0, 0, 0.3, -1, 0, 0.0, 0.0, 0)
        bounds = SequenceBounds(seqused_k=torch.tensor([4, 7]).int())
        arguments = (
            x,
            cache,
            cache,
            *bounds,
            *Pages(None, rows),
            None,
            None,
            None,
            *options,
            2,
            False,
            scale,
            scale[:1, 0],
        )
        # torch's other tests of an op multiply its arguments, for which it has no float8 kernels.
        opcheck(OPS.attention_forward, arguments, test_utils=("test_autograd_registration", "test_faketensor"))
        for actual, expected in zip(
            OPS.attention_forward(*arguments), attention_ops.attention_forward(*arguments), strict=True
        ):
            torch.testing.assert_close(actual, expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "queries": ({"q": torch.zeros(1, 1, 2, 8).to(FLOAT8[0])}, "q: expected float32, bfloat16, float16 or float64"),
    "other float": ({"k": torch.zeros(1, 4, 1, 8).to(torch.float8_e5m2)}, "k: expected torch.float32 as q has"),
    "mixed": ({"v": torch.zeros(1, 4, 1, 8).to(FLOAT8[1])}, "v: expected torch.float8_e4m3fn as k has"),
    "not tensor": ({"k_descale": 0.5}, "k_descale: expected a torch.Tensor, got float"),
    "shape": ({"k_descale": torch.ones(2)}, r"k_descale: expected one element or shape \(B, H_k\) = \(1, 1\)"),
    "dtype": ({"v_descale": torch.ones(1).double()}, "v_descale: expected float32, got torch.float64"),
    "gradient": ({"v_descale": torch.ones(1).requires_grad_()}, "v_descale: expected no gradient"),
    "wide": (
        {"k": torch.zeros(1, 4, 1, 8), "v": torch.zeros(1, 4, 1, 8), "k_descale": torch.ones(1)},
        "k_descale: expected None with keys and values of torch.float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    changed, words = REFUSED[name]
    x = torch.zeros(1, 4, 1, 8).to(FLOAT8[0])
    with pytest.raises((TypeError, ValueError), match=words):
        attention.flash_attn_func(**({"q": torch.zeros(1, 1, 2, 8), "k": x, "v": x} | changed))


def test_there_is_no_backward_pass() -> None:
    x = drawn(1, 4, 1, 8).to(FLOAT8[0])
    q = drawn(1, 4, 2, 8).requires_grad_()
    out = attention.flash_attn_func(q, x, x)
    with pytest.raises(NotImplementedError, match="keys and values in float8: there is no backward pass"):
        out.sum().backward()
    lse = torch.zeros(1, 2, 4)
    last = (None, *SequenceBounds(), None, None, None, *Options(0, 0, 0.3, -1, -1, 0.0, 0.0, 0))
    with pytest.raises(RuntimeError, match="k: "):
        OPS.attention_backward(q.detach(), x, x, out.detach(), lse, out.detach(), *last)
    assert math.isfinite(float(out.detach().sum()))
