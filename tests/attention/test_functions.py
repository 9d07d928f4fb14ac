# SPDX-License-Identifier: Apache-2.0
"""Promises of the public functions beside their numbers: layouts that agree, return values, memory nobody owns, the
same bits again, dropout, and torch's own attention where it has the feature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from xlstm_hip import attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tensors(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False, count: int = 3) -> tuple[Tensor, ...]:
    return tuple(torch.randn(*shape, dtype=dtype).requires_grad_(grad) for _ in range(count))


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(9)
    return torch.autograd.grad(out, inputs, torch.randn_like(out))


def test_packed_functions_are_the_plain_one() -> None:
    (qkv,) = tensors(2, 40, 3, 4, 16, grad=True, count=1)
    expected = attention.flash_attn_func(*qkv.unbind(2), causal=True, softcap=3.0)
    (dqkv,) = gradients(expected, qkv)
    for actual in (
        attention.flash_attn_qkvpacked_func(qkv, causal=True, softcap=3.0),
        attention.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True, softcap=3.0),
    ):
        assert torch.equal(actual, expected)
        assert torch.equal(gradients(actual, qkv)[0], dqkv)


def test_varlen_functions_are_the_plain_one() -> None:
    (qkv,) = tensors(60, 3, 4, 16, grad=True, count=1)
    ends = torch.tensor([0, 17, 17, 60], dtype=torch.int32)
    expected = torch.cat([attention.flash_attn_func(*x[None].unbind(2), causal=True)[0] for x in (qkv[:17], qkv[17:])])
    (dqkv,) = gradients(expected, qkv)
    q, k, v = qkv.unbind(1)
    for actual in (
        attention.flash_attn_varlen_func(q, k, v, ends, ends, 43, 43, causal=True),
        attention.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], ends, ends, 43, 43, causal=True),
        attention.flash_attn_varlen_qkvpacked_func(qkv, ends, 43, causal=True),
    ):
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(gradients(actual, qkv)[0], dqkv)


@pytest.mark.parametrize("page", [1, 16, 100])
def test_varlen_pages(page: int) -> None:
    q, k, v = tensors(30, 4, 16)[0], *tensors(70, 2, 16, count=2)
    ends_q, ends_k = torch.tensor([0, 10, 30]), torch.tensor([0, 33, 70])
    per = -(-40 // page)
    table = torch.randperm(2 * per).reshape(2, per)
    pages = [torch.full((2 * per, page, 2, 16), math.nan) for _ in range(2)]
    for b in range(2):
        for t in range(int(ends_k[b + 1] - ends_k[b])):
            for cache, x in zip(pages, (k, v), strict=True):
                cache[table[b, t // page], t % page] = x[ends_k[b] + t]
    arguments: dict[str, Any] = {"causal": True, "return_attn_probs": True}
    out, lse, _ = attention.flash_attn_varlen_func(q, *pages, ends_q, ends_k, 20, 37, **arguments, block_table=table)
    expected, expected_lse, _ = attention.flash_attn_varlen_func(q, k, v, ends_q, ends_k, 20, 37, **arguments)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    used = torch.tensor([20, 37])
    actual = attention.flash_attn_varlen_func(q, *pages, ends_q, ends_k, 20, 37, block_table=table, seqused_k=used)
    assert torch.equal(actual, attention.flash_attn_varlen_func(q, k, v, ends_q, ends_k, 20, 37, seqused_k=used))


def test_return_values() -> None:
    q, k, v = tensors(2, 9, 4, 16)
    out, lse, probs = attention.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == q.shape and lse.shape == (2, 4, 9) and lse.dtype == torch.float32 and probs.shape == (0,)
    _, _, probs = attention.flash_attn_func(q, k, v, 0.5, return_attn_probs=True)
    assert probs.shape == (2, 4, 9, 9)
    torch.testing.assert_close(probs.abs().sum(-1), torch.ones(2, 4, 9))
    ends = torch.tensor([0, 9, 18])
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    out, lse, probs = attention.flash_attn_varlen_func(*flat, ends, ends, 9, 9, 0.5, return_attn_probs=True)
    assert out.shape == (18, 4, 16) and lse.shape == (4, 18) and probs.shape == (2, 4, 9, 9)


def test_rows_without_keys() -> None:
    """More queries than keys and a causal mask: the first queries see nothing."""
    q, (k, v) = tensors(1, 6, 2, 8, grad=True, count=1)[0], tensors(1, 4, 2, 8, grad=True, count=2)
    out, lse, _ = attention.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert not out[:, :2].any() and lse[..., :2].isposinf().all() and lse[..., 2:].isfinite().all()
    dq, dk, dv = gradients(out, q, k, v)
    assert not dq[:, :2].any() and dk.isfinite().all() and dv.isfinite().all()
    out, lse, _ = attention.flash_attn_func(q, k, v, seqused_k=torch.tensor([0]), return_attn_probs=True)
    assert not out.any() and lse.isposinf().all()


@pytest.mark.parametrize("queries, keys, batch", [(0, 5, 2), (5, 0, 2), (0, 0, 1), (5, 5, 0)])
def test_nothing_to_attend(queries: int, keys: int, batch: int) -> None:
    q, (k, v) = tensors(batch, queries, 2, 8, grad=True, count=1)[0], tensors(batch, keys, 2, 8, grad=True, count=2)
    out = attention.flash_attn_func(q, k, v)
    assert out.shape == q.shape and not out.any()
    assert all(not g.any() and g.shape == x.shape for g, x in zip(gradients(out, q, k, v), (q, k, v), strict=True))


def test_tokens_of_no_sequence_are_zero() -> None:
    q, k, v = tensors(12, 2, 8, grad=True)
    ends = torch.tensor([0, 5, 9])
    out = attention.flash_attn_varlen_func(q, k, v, ends, ends, 5, 5)
    assert not out[9:].any()
    assert all(not g[9:].any() and g[:9].any() for g in gradients(out, q, k, v))


def test_keys_not_in_use_get_no_gradient_and_give_nothing() -> None:
    q, k, v = (torch.randn(2, 20, 2, 8) for _ in range(3))
    for x in (k, v):
        x[:, :3], x[0, 15:], x[1, 9:] = math.nan, math.nan, math.nan
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = attention.flash_attn_func(
        *inputs, causal=True, seqused_k=torch.tensor([15, 9]), leftpad_k=torch.tensor([3, 3]), window_size=(4, 0)
    )
    assert out.isfinite().all()
    dq, dk, dv = gradients(out, *inputs)
    assert dq.isfinite().all()
    for g in (dk, dv):
        assert not g[:, :3].any() and not g[0, 15:].any() and not g[1, 9:].any() and g[0, 3:15].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_again(dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    q, (k, v) = (
        tensors(1, 150, 4, 32, dtype=dtype, grad=True, count=1)[0],
        tensors(1, 200, 2, 32, dtype=dtype, grad=True, count=2),
    )
    runs = []
    for deterministic in (True, False, True):
        torch.manual_seed(3)
        out = attention.flash_attn_func(q, k, v, 0.1, causal=True, deterministic=deterministic)
        runs.append((out, *gradients(out, q, k, v)))
    assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(run, runs[0], strict=True))


# ---- dropout


def test_dropout_follows_the_generator() -> None:
    q, k, v = tensors(1, 30, 2, 8)
    torch.manual_seed(0)
    first, second = (attention.flash_attn_func(q, k, v, 0.3) for _ in range(2))
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    third = attention.flash_attn_func(q, k, v, 0.3)
    torch.set_rng_state(state)
    assert torch.equal(attention.flash_attn_func(q, k, v, 0.3), third)
    torch.manual_seed(0)
    assert torch.equal(attention.flash_attn_func(q, k, v, 0.3), first)
    state = torch.get_rng_state()
    attention.flash_attn_func(q, k, v)
    assert torch.equal(torch.get_rng_state(), state), "a call without dropout drew"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share(p: float) -> None:
    torch.manual_seed(1)
    q, k, v = tensors(2, 300, 2, 8)
    _, _, probs = attention.flash_attn_func(q, k, v, p, return_attn_probs=True)
    share = float(torch.signbit(probs).float().mean())
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / probs.numel())


@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
def test_a_mask_depends_on_no_tile_thread_or_dtype(block_size: int) -> None:
    q, k, v = tensors(2, 70, 4, 16)
    masks = []
    for size, threads, dtype in ((64, 1, torch.float32), (block_size, 2, torch.bfloat16)):
        torch.set_num_threads(threads)
        torch.manual_seed(4)
        outputs = attention.flash_attn_func(
            *(x.to(dtype) for x in (q, k, v)), 0.4, return_attn_probs=True, block_size=size
        )
        masks.append(torch.signbit(outputs[2]))
    assert torch.equal(*masks)


# ---- beside torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(64, 64), (33, 100)])
def test_beside_sdpa(dtype: torch.dtype, causal: bool, lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    q, (k, v) = (
        tensors(2, queries, 4, 32, dtype=dtype, grad=True, count=1)[0],
        tensors(2, keys, 2, 32, dtype=dtype, grad=True, count=2),
    )
    actual = attention.flash_attn_func(q, k, v, causal=causal)
    bias = causal_lower_right(queries, keys) if causal else None
    repeated = (x.repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))
    expected = F.scaled_dot_product_attention(q.transpose(1, 2), *repeated, attn_mask=bias).transpose(1, 2)
    eps = torch.finfo(dtype).eps
    for x, y in zip((actual, *gradients(actual, q, k, v)), (expected, *gradients(expected, q, k, v)), strict=True):
        torch.testing.assert_close(x, y, atol=8 * eps * float(y.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(20, 20), (20, 33), (33, 20)])
def test_sdpa_shaped_helper(causal: bool, lengths: tuple[int, int]) -> None:
    """torch's corner of the causal mask, for any lengths."""
    q, (k, v) = tensors(2, 4, lengths[0], 16, count=1)[0], tensors(2, 2, lengths[1], 16, count=2)
    arguments: dict[str, Any] = {"is_causal": causal, "scale": 0.3, "enable_gqa": True}
    torch.testing.assert_close(
        attention.scaled_dot_product_attention(q, k, v, **arguments),
        F.scaled_dot_product_attention(q, k, v, **arguments),
    )


def test_module() -> None:
    q, k, v = tensors(1, 20, 2, 8)
    module = attention.FlashAttention(attention_dropout=0.4)
    torch.manual_seed(0)
    dropped = module(q, k, v, causal=True)
    torch.manual_seed(0)
    assert torch.equal(dropped, attention.flash_attn_func(q, k, v, 0.4, causal=True))
    module.eval()
    assert torch.equal(module(q, k, v, causal=True), attention.flash_attn_func(q, k, v, causal=True))
    assert torch.equal(module(q, k, v), attention.flash_attn_func(q, k, v))
    slopes = torch.tensor([0.1, 0.3])
    options: dict[str, Any] = {"softmax_scale": 0.2, "window_size": (3, 1), "softcap": 2.0, "block_size": 32}
    module = attention.FlashAttention(causal=True, alibi_slopes=slopes, **options).eval()
    expected = attention.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, **options)
    assert torch.equal(module(q, k, v), expected)
    out, lse, _ = module(q, k, v, return_attn_probs=True)
    assert torch.equal(out, expected) and lse.shape == (1, 2, 20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_module_keeps_its_slopes_in_float32(dtype: torch.dtype) -> None:
    q, k, v = tensors(1, 20, 2, 8, dtype=dtype)
    slopes = torch.tensor([0.1, 0.3])
    module = attention.FlashAttention(alibi_slopes=slopes).to(dtype)
    assert torch.equal(module(q, k, v), attention.flash_attn_func(q, k, v, alibi_slopes=slopes))
    module = attention.FlashAttention(alibi_slopes=slopes).to(dtype=dtype, device="meta").to_empty(device="cpu")
    assert module.alibi_slopes is not None
    module.alibi_slopes.copy_(slopes)
    assert torch.equal(module(q, k, v), attention.flash_attn_func(q, k, v, alibi_slopes=slopes))


def test_module_says_which_argument_is_wrong() -> None:
    with pytest.raises(ValueError, match="^attention_dropout: expected 0 <= p < 1, got 1.0"):
        attention.FlashAttention(1.0)
    with pytest.raises(TypeError, match="^alibi_slopes: expected a torch.Tensor, got list"):
        attention.FlashAttention(alibi_slopes=[0.1])  # type: ignore[arg-type]
