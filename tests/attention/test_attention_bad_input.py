# SPDX-License-Identifier: Apache-2.0
"""Wrong calls end in an error that begins with the argument's name and says what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from xlstm_hip import attention
from xlstm_hip.attention import checks


@pytest.fixture(autouse=True, params=["", "reference"], ids=["kernels", "plain torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torch, where it is forced, refuses the same in the same words."""
    monkeypatch.setenv("XLSTM_HIP_BACKEND", request.param)


X = torch.randn(2, 20, 4, 16)
FLAT = X.flatten(0, 1)
ENDS = torch.tensor([0, 20, 40])
CACHE = torch.randn(2, 50, 2, 16)
NEW = torch.randn(2, 1, 2, 16)
TABLE = torch.zeros(2, 1, dtype=torch.int32)


def dense(**changes: Any) -> Any:
    return attention.flash_attn_func(**({"q": X, "k": X, "v": X} | changes))


def varlen(**changes: Any) -> Any:
    base = {"q": FLAT, "k": FLAT, "v": FLAT, "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}
    return attention.flash_attn_varlen_func(**(base | {"max_seqlen_q": 20, "max_seqlen_k": 20} | changes))


def paged(**changes: Any) -> Any:
    base = {"k": CACHE, "v": CACHE, "cu_seqlens_k": torch.tensor([0, 20, 50]), "max_seqlen_k": 30}
    return varlen(**(base | {"block_table": TABLE} | changes))


def cached(**changes: Any) -> Any:
    return attention.flash_attn_with_kvcache(
        **({"q": X[:, :1], "k_cache": CACHE.clone(), "v_cache": CACHE.clone()} | changes)
    )


def mla(**changes: Any) -> Any:
    base = {"q": torch.randn(2, 1, 8, 24), "k_cache": torch.randn(2, 9, 1, 24), "block_table": None}
    return attention.flash_mla_with_kvcache(
        **(base | {"cache_seqlens": torch.tensor([9, 3]), "head_dim_v": 16} | changes)
    )


def combine(**changes: Any) -> Any:
    base = {"out_partial": torch.randn(3, 2, 5, 4, 8), "lse_partial": torch.randn(3, 2, 5, 4)}
    return attention.flash_attn_combine(**(base | changes))


Wrong = tuple[Callable[..., Any], str, Any, str]  # function, argument, value, what the message says
WRONG: list[Wrong] = [
    (dense, "q", None, "expected a torch.Tensor, got NoneType"),
    (dense, "q", X[0], "expected 4 dimensions"),
    (dense, "q", X.int(), "expected float32, bfloat16, float16 or float64"),
    (dense, "q", X.to("meta"), "expected device cpu"),
    (dense, "k", X.half(), "expected torch.float32 as q has, got torch.float16"),
    (dense, "k", X[:1], "expected batch size 2"),
    (dense, "k", X[:, :, :3], "expected heads that divide q's 4"),
    (dense, "k", X[..., :8], "expected head dim 16"),
    (dense, "v", X[:, :9], r"expected shape \(2, 20, 4, 16\)"),
    (dense, "dropout_p", 1.0, "expected 0 <= p < 1"),
    (dense, "dropout_p", "0.1", "expected a finite number"),
    (dense, "dropout_p", 1e-6, r"expected 0 or 2\*\*-17 <= p < 1 - 2\*\*-17, as it is taken in steps of 2\*\*-16"),
    (dense, "dropout_p", 0.999999, r"expected 0 or 2\*\*-17 <= p < 1 - 2\*\*-17, as it is taken in steps of 2\*\*-16"),
    (dense, "softmax_scale", float("nan"), "expected a finite number"),
    (dense, "causal", 1, "expected True or False"),
    (dense, "window_size", 3, r"expected \(left, right\)"),
    (dense, "window_size", (-2, 0), r"expected \(left, right\)"),
    (dense, "softcap", -1.0, "expected a number >= 0"),
    (dense, "alibi_slopes", torch.rand(3), r"expected shape \(H\) = \(4,\)"),
    (dense, "alibi_slopes", torch.rand(4).double(), "expected float32"),
    (dense, "alibi_slopes", torch.rand(4, requires_grad=True), "expected no gradient"),
    (dense, "deterministic", None, "expected True or False"),
    (dense, "return_attn_probs", 1, "expected True or False"),
    (dense, "block_size", 48, "expected one of 32, 64, 128, 256, got 48"),
    (dense, "backward_plan", [], "expected a mapping of block_size, row_panels, parts, common_schedule, got list"),
    (dense, "backward_plan", {"splits": 1}, "expected choices of .* for attention_backward, got 'splits'"),
    (dense, "backward_plan", {"parts": -1}, "expected an integer >= 0, got -1"),
    (dense, "sink", torch.rand(2), r"expected shape \(H\)"),
    (dense, "seqused_k", torch.rand(2), "expected int32 or int64"),
    (dense, "seqused_k", torch.tensor([1]), r"expected shape \(B\)"),
    (dense, "seqused_k", torch.tensor([1, 21]), "expected 0 to 20, got 21"),
    (dense, "leftpad_k", torch.tensor([-1, 0]), "expected 0 to 20, got -1"),
    (varlen, "q", X, "expected 3 dimensions"),
    (varlen, "cu_seqlens_q", ENDS.float(), "expected int32 or int64"),
    (varlen, "cu_seqlens_k", ENDS[:2], r"expected shape \(2 \+ 1\)"),
    (varlen, "cu_seqlens_q", torch.tensor([1, 20, 40]), "expected to start at 0, got 1"),
    (varlen, "cu_seqlens_k", torch.tensor([0, 20, 10]), "expected values that do not fall"),
    (varlen, "cu_seqlens_k", torch.tensor([0, 20, 41]), "has 21 tokens, more than"),
    (varlen, "cu_seqlens_q", torch.tensor([0, 20, 41]), "sequence 1 has 21 tokens, more than the longest is said to"),
    (varlen, "leftpad_k", torch.tensor([0, -1]), "expected 0 to 20, got -1"),
    (varlen, "max_seqlen_q", -1, "expected an integer >= 0"),
    (varlen, "backward_plan", {"row_panels": True}, "expected an integer >= 0, got True"),
    (varlen, "max_seqlen_k", None, "expected an integer >= 0"),
    (varlen, "seqused_k", torch.tensor([1, 30]), "expected 0 to 20, got 30"),
    (paged, "max_seqlen_k", 29, "sequence 1 has 30 tokens, more than"),
    (paged, "cu_seqlens_k", torch.tensor([1, 20, 50]), "expected to start at 0, got 1"),
    (paged, "cu_seqlens_k", torch.tensor([0, 20, 10]), "expected values that do not fall"),
    (paged, "seqused_k", torch.tensor([20, 31]), "expected 0 to 30, got 31"),
    (paged, "seqused_k", torch.tensor([21, 30]), "expected 0 to 20, got 21"),
    (paged, "seqused_k", torch.tensor([-1, 30]), "expected 0 to 20, got -1"),
    (paged, "leftpad_k", torch.tensor([0, 51]), "expected 0 to 50, got 51"),
    (paged, "block_table", TABLE - 1, "expected 0 to 1, got -1"),
    (paged, "backward_plan", {}, "expected None with block_table, got {}"),
    (paged, "sink", "x", "expected a torch.Tensor, got str"),
    (cached, "k", NEW, "expected both k and v"),
    (cached, "sink", "x", "expected a torch.Tensor, got str"),
    (cached, "cache_leftpad", torch.tensor([0, 51]), "expected 0 to 50, for which the cache has room, got 51"),
    (cached, "cache_batch_idx", torch.tensor([0, 2]), "expected 0 to 1, got 2"),
    (cached, "cache_seqlens", torch.tensor([0, 51]), "expected 0 to 50, for which the cache has room, got 51"),
    (cached, "cache_seqlens", -1, "expected >= 0"),
    (cached, "cache_leftpad", torch.tensor([0]), r"expected shape \(B\)"),
    (cached, "k_cache", CACHE.transpose(2, 3).contiguous().transpose(2, 3), "expected the last dimension to be"),
    (cached, "k_cache", CACHE[:1], "expected"),
    (cached, "num_splits", 257, r"expected 0 \(the library chooses\) to 256"),
    (cached, "num_splits", -1, r"expected 0 \(the library chooses\) to 256"),
    (mla, "head_dim_v", 25, "expected an integer from 1 to q's head dim 24"),
    (mla, "tile_scheduler_metadata", torch.zeros(3, 8), "expected the result of get_mla_metadata"),
    (mla, "num_splits", torch.zeros(3), "expected None without"),
    (mla, "cache_seqlens", torch.tensor([10, 0]), "expected 0 to 9, for which the cache has room, got 10"),
    (mla, "cache_seqlens", None, "expected a torch.Tensor"),
    (mla, "plan", 3, "expected a mapping of block_size, splits, got int"),
    (mla, "plan", {"segments": 2}, "expected choices of block_size, splits for mla_decode, got 'segments'"),
    (mla, "plan", {"splits": -1}, "expected an integer >= 0, got -1"),
    (mla, "attn_sink", "x", "expected a torch.Tensor, got str"),
    (combine, "out_partial", torch.randn(3, 2, 5, 4, 8).half(), "expected float32 or float64"),
    (combine, "lse_partial", torch.randn(3, 2, 4, 5), r"expected shape \(splits, B, S, H\)"),
    (combine, "out", torch.zeros(1), r"expected shape \(B, S, H, D\)"),
    (combine, "out", torch.zeros(2, 5, 4, 8).int(), "expected float32, bfloat16, float16 or float64, got torch.int32"),
    (combine, "out_dtype", "half", "expected one of None, torch.float32, .*, got 'half'"),
    (combine, "out_dtype", torch.int32, "expected one of None, torch.float32, .*, got torch.int32"),
]


@pytest.mark.parametrize("function, argument, value, message", WRONG)
def test_wrong(function: Callable[..., Any], argument: str, value: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message) as raised:
        function(**{argument: value})
    assert argument in str(raised.value)


def test_together() -> None:
    """Arguments that are wrong only together with another argument."""
    with pytest.raises(ValueError, match="rotary_sin: expected both rotary tables, or neither"):
        cached(rotary_cos=torch.rand(9, 4))
    with pytest.raises(ValueError, match="cache_seqlens: expected the keys that are in the cache"):
        cached(k=NEW, v=NEW)
    for kind in (ValueError, RuntimeError):  # FlashAttention-2 raises the latter, and names block_table
        with pytest.raises(kind, match="cache_seqlens: expected 0 to 49, for which the cache has room, got 50"):
            cached(k=NEW, v=NEW, cache_seqlens=50)
        with pytest.raises(kind, match="cache_seqlens: expected 0 to 50, for which block_table has pages, got 51"):
            cached(block_table=TABLE, cache_seqlens=51)
    with pytest.raises(ValueError, match="cache_batch_idx: expected None with block_table"):
        cached(block_table=TABLE, cache_batch_idx=torch.tensor([0, 1]))
    with pytest.raises((ValueError, RuntimeError), match="block_table: expected 0 to 1, got 2"):
        cached(block_table=TABLE + 2, cache_seqlens=3)
    cos = torch.rand(9, 4)
    with pytest.raises(ValueError, match="cache_seqlens: expected with rotary_cos"):
        cached(rotary_cos=cos, rotary_sin=cos)
    with pytest.raises((ValueError, RuntimeError), match="block_table: expected 0 to 1, got -1"):
        cached(block_table=TABLE - 1, cache_seqlens=3)
    with pytest.raises((ValueError, RuntimeError), match="cu_seqlens_q: the last value: expected 0 to 40, got 50"):
        varlen(cu_seqlens_q=torch.tensor([0, 20, 50]), max_seqlen_q=30)
    with pytest.raises((ValueError, RuntimeError), match="cache_seqlens: a rotary position: expected 0 to 8, got 9"):
        cached(rotary_cos=cos, rotary_sin=cos, cache_seqlens=9)
    with pytest.raises(ValueError, match="rotary_sin: expected shape"):
        cached(rotary_cos=cos, rotary_sin=cos[:, :2], cache_seqlens=1)
    with pytest.raises(TypeError, match="rotary_cos: expected torch.float32"):
        cached(rotary_cos=cos.half(), rotary_sin=cos, cache_seqlens=1)
    with pytest.raises(ValueError, match="dropout_p: expected 0 with block_table"):
        varlen(k=CACHE, v=CACHE, block_table=TABLE, dropout_p=0.1)
    with pytest.raises(ValueError, match="out_dtype: expected None or torch.float32"):
        combine(out=torch.zeros(2, 5, 4, 8), out_dtype=torch.half)
    with pytest.raises(TypeError, match="unexpected keyword argument 'attention_chunk'"):
        dense(attention_chunk=3)
    with pytest.raises(NotImplementedError, match="attn_mask: expected None"):
        attention.scaled_dot_product_attention(X, X, X, attn_mask=torch.ones(4, 4))
    with pytest.raises(ValueError, match="qkv: expected shape"):
        attention.flash_attn_qkvpacked_func(X)
    for schedule in (attention.get_mla_metadata(), attention.get_mla_metadata(torch.tensor([9, 3]), 8, 1)):
        with pytest.raises(ValueError, match="plan: expected None beside tile_scheduler_metadata"):
            mla(plan={"splits": 2}, tile_scheduler_metadata=schedule[0], num_splits=schedule[1])
    with pytest.raises(ValueError, match="num_heads_k: expected cache_seqlens beside it"):
        attention.get_mla_metadata(num_heads_k=1)


@pytest.mark.parametrize(
    "function, argument, x, name",
    [
        (paged, "q", FLAT, "flash_attn_varlen_func with block_table"),
        (cached, "q", X[:, :1], "flash_attn_with_kvcache"),
        (cached, "v_cache", CACHE, "flash_attn_with_kvcache"),
        (mla, "q", X[:, :1, :1].repeat(1, 1, 8, 2)[..., :24], "flash_mla_with_kvcache"),
        (combine, "out_partial", torch.randn(3, 2, 5, 4, 8), "flash_attn_combine"),
    ],
)
def test_without_a_backward_pass(function: Callable[..., Any], argument: str, x: Any, name: str) -> None:
    """Inference code that forgets torch.no_grad() gets its results. Asking for their gradient raises."""
    leaf = x.clone().requires_grad_()
    torch.manual_seed(0)
    outputs = function(**{argument: leaf})
    torch.manual_seed(0)
    with torch.no_grad():
        expected = function(**{argument: leaf})
    assert isinstance(outputs, tuple) == isinstance(expected, tuple)
    for actual, plain in zip(*(y if isinstance(y, tuple) else (y,) for y in (outputs, expected)), strict=True):
        assert torch.equal(actual, plain) and actual.requires_grad and not plain.requires_grad
        with pytest.raises(NotImplementedError, match=f"{name}: there is no backward pass; call it under torch.no_gra"):
            actual.sum().backward(retain_graph=True)


def test_without_a_backward_pass_in_a_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLSTM_HIP_BACKEND")  # plain torch reads lengths, which breaks a graph
    torch._dynamo.reset()
    compiled = torch.compile(cached, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(cache_seqlens=torch.tensor([3, 9])), cached(cache_seqlens=torch.tensor([3, 9])))
    with pytest.raises(
        Exception, match="flash_attn_with_kvcache: a gradient is required, but there is no backward pass"
    ):
        compiled(q=X[:, :1].clone().requires_grad_())
    torch._dynamo.reset()
    assert torch.compile(cached, backend="eager")(q=X[:, :1].clone().requires_grad_()).requires_grad
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "plan, message",
    [
        ({"block_size": 48}, "block_size: expected 32, 64, 128 or 256, got 48"),
        ({"row_panels": 9}, "row_panels: expected 0 to 8, got 9"),
        ({"parts": 257}, "parts: expected 0 to 256, got 257"),
        ({"common_schedule": 1}, "common_schedule: expected 0 on a CPU, got 1"),
        ({"common_schedule": 2**32 + 1}, "common_schedule: expected 0 to 1, got 4294967297"),
    ],
)
def test_backward_plans_that_there_are_not(plan: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLSTM_HIP_BACKEND")  # whose backward pass is autograd's, and has nothing to cut
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=message):
        attention.flash_attn_func(x, X, X, backward_plan=plan).sum().backward()


@pytest.mark.parametrize(
    "plan, message",
    [
        ({"splits": 257}, "splits: expected 0 to 256, got 257"),
        ({"block_size": 48}, "block_size: expected 32, 64, 128 or 256, got 48"),
    ],
)
def test_mla_plans_that_there_are_not(plan: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLSTM_HIP_BACKEND")
    with pytest.raises(RuntimeError, match=message):
        mla(plan=plan)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"cache_leftpad": torch.tensor([0, 51])}, "cache_leftpad: expected 0 to 50"),
        ({"cache_leftpad": torch.tensor([-1, 0])}, "cache_leftpad: expected 0 to 50"),
        ({"q": X[:, :5], "rotary_cos": torch.rand(13, 4), "rotary_sin": torch.rand(13, 4), "causal": True}, "rotary"),
        ({"block_table": torch.tensor([[5, 0], [1, 1]])}, "block_table: expected 0 to 1, got 5"),
        ({"num_splits": 257}, "num_splits"),
        ({"block_size": 48}, "block_size"),
    ],
)
def test_a_call_that_fails_leaves_the_cache_as_it_was(wrong: dict[str, Any], message: str) -> None:
    """A new token goes to place 10, or with pages to the second one of 60, while the first entry is none."""
    paged = "block_table" in wrong
    k_cache, v_cache = torch.randn(2, 50, 4, 16), torch.randn(2, 50, 4, 16)
    before = k_cache.clone(), v_cache.clone()
    base: dict[str, Any] = {"q": X[:, :1], "k": X[:, :1], "v": X[:, :1], "cache_seqlens": 60 if paged else 10}
    with pytest.raises((ValueError, RuntimeError), match=message):
        attention.flash_attn_with_kvcache(k_cache=k_cache, v_cache=v_cache, **(base | wrong))
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


@pytest.mark.parametrize("window", [torch.tensor([3, 1]), np.array([3, 1]), [np.int64(3), torch.tensor(1)], (3, 1)])
def test_whole_numbers_of_any_kind_are_a_window(window: Any) -> None:
    assert checks.window(window, causal=False) == (3, 1) and checks.window(window, causal=True) == (3, 0)


@pytest.mark.parametrize(
    "window", [torch.tensor([3.0, 1.0]), torch.tensor([3, 1, 2]), (True, 1), (True, 3, 1), ("3", 1), (3, -2), None]
)
def test_anything_else_is_not(window: Any) -> None:
    with pytest.raises(ValueError, match="window_size: expected"):
        checks.window(window, causal=False)
