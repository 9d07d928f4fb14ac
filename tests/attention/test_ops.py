# SPDX-License-Identifier: Apache-2.0
"""The attention ops for torch: opcheck, gradcheck in float64, torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_arguments import CALLS, Handed, names_of, the_same
from torch import Tensor
from torch.autograd import gradcheck
from torch.library import opcheck

from xlstm_hip import attention
from xlstm_hip._core.index_tensors import Pages, SequenceBounds
from xlstm_hip.attention.ops import OPS, Options

SLOPES = torch.tensor([0.1, 0.3])
RNG = torch.tensor([123456789, 5])


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def ends(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def layouts(dtype: torch.dtype, grad: bool = False) -> dict[str, tuple[tuple[Tensor, ...], SequenceBounds, Options]]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype).requires_grad_(grad)

    plain = Options(0, 0, 0.3, -1, -1, 0.0, 0.0, 0)
    rules = Options(9, 11, 0.3, 5, 0, 2.0, 0.25, 32)
    return {
        "dense": ((draw(2, 9, 2, 8), draw(2, 11, 1, 8), draw(2, 11, 1, 5)), SequenceBounds(), plain),
        "packed": (
            (draw(12, 2, 8), draw(14, 1, 8), draw(14, 1, 5)),
            SequenceBounds(ends(0, 3, 12), ends(0, 3, 14), ends(2, 11), ends(1, 0)),
            rules,
        ),
    }


@pytest.mark.parametrize("layout", ["dense", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_opcheck(layout: str, dtype: torch.dtype) -> None:
    (q, k, v), bounds, options = layouts(dtype)[layout]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sink = torch.randn(2, dtype=wide) if layout == "packed" else None
    last = (SLOPES if layout == "packed" else None, sink, RNG if options.dropout_p else None, *options)
    opcheck(OPS.attention_forward, (q, k, v, *bounds, *Pages(), *last, 0, True))
    opcheck(OPS.attention_forward_probs, (q, k, v, *bounds, *last))
    out, lse = OPS.attention_forward(q, k, v, *bounds, *Pages(), *last, 0, True)
    for cut in ((), (2, 3), (1, 1, 0)):  # row_panels, parts, common_schedule
        opcheck(OPS.attention_backward, (q, k, v, out, lse, out, lse, *bounds, *last, *cut))


@pytest.mark.parametrize("paged", [False, True])
def test_opcheck_of_a_cache(paged: bool) -> None:
    x, cache = torch.randn(2, 3, 2, 8), torch.randn(4, 8, 2, 8)
    cos, sin = torch.randn(2, 20, 4)
    start, rows, table = ends(1, 4), ends(3, 0), torch.tensor([[2, 1], [0, 3]], dtype=torch.int32)
    where = (None, table) if paged else (rows, None)
    opcheck(OPS.attention_append_, (cache, x, cos, sin, start, *where, True))
    opcheck(OPS.attention_rotary, (x, cos, sin, start, False, True))
    opcheck(OPS.attention_combine, (torch.randn(3, 2, 5, 2, 8), torch.randn(3, 2, 5, 2)))
    options = Options(0, 0, 0.3, -1, 0, 0.0, 0.0, 0)
    pages = Pages(table, None) if paged else Pages(None, rows)
    opcheck(
        OPS.attention_forward,
        (x, cache, cache, *SequenceBounds(seqused_k=ends(4, 7)), *pages, None, None, None, *options, 2, False),
    )


@pytest.mark.parametrize("name", [name for name in CALLS if "backward_plan" in names_of(name)])
def test_a_plan_comes_to_backward(name: str) -> None:
    function, base, _ = CALLS[name]

    def gradients(**more: Any) -> tuple[list[Tensor], tuple[Any, ...]]:
        arguments = {n: x.clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
                 for n, x in base.items()}  # fmt: skip
        leaves = [x for x in arguments.values() if isinstance(x, Tensor) and x.requires_grad]
        with Handed() as handed:
            leaf_gradients = torch.autograd.grad(function(**arguments, **more).square().sum(), leaves)
        return list(leaf_gradients), handed.calls[-1]

    plan = {"block_size": 32, "row_panels": 1, "parts": 3}
    before, planned = gradients(block_size=128)
    after, requested = gradients(block_size=128, backward_plan=plan)
    assert "attention_backward" in requested[0] and requested == (*planned[:-5], *plan.values(), 0, False)
    assert planned[-5:] == (0, 0, 0, 0, False)  # block_size is forward's; common_schedule, deterministic
    assert the_same(before, after, exactly=False) and not the_same(before, after)


@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_gradcheck(layout: str) -> None:
    """Every gradient, of lse too, and with dropout."""
    (q, k, v), bounds, options = layouts(torch.float64, grad=True)[layout]
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def call(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(2)
        arguments: dict[str, Any] = {
            "dropout_p": options.dropout_p, "softmax_scale": options.softmax_scale, "softcap": options.softcap,
            "window_size": (options.window_left, options.window_right), "alibi_slopes": SLOPES, "sink": sink,
            "return_attn_probs": True,
        }  # fmt: skip
        if layout == "dense":
            return attention.flash_attn_func(q, k, v, **arguments)[:2]
        return attention.flash_attn_varlen_func(
            q, k, v, bounds.cu_seqlens_q, bounds.cu_seqlens_k, 9, 11, seqused_k=bounds.seqused_k,
            leftpad_k=bounds.leftpad_k, **arguments,
        )[:2]  # fmt: skip

    assert gradcheck(call, (q, k, v, sink))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")


@pytest.mark.parametrize("grad", [False, True])
def test_compile(grad: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        return attention.flash_attn_func(q, k, v, causal=True, softcap=2.0, alibi_slopes=SLOPES, sink=sink)

    twin = compiled(function)
    for queries, keys in ((5, 9), (17, 40), (30, 30)):
        inputs = [torch.randn(2, n, 2, 8, requires_grad=grad) for n in (queries, keys, keys)]
        inputs.append(torch.randn(2, requires_grad=grad))
        actual, expected = twin(*inputs), function(*inputs)
        assert torch.equal(actual, expected)
        if grad:
            sent = torch.randn_like(actual)
            for x, y in zip(*(torch.autograd.grad(z, inputs, sent) for z in (actual, expected)), strict=True):
                assert torch.equal(x, y)


def test_compile_packed() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
        return attention.flash_attn_varlen_func(q, k, v, offsets, offsets, 20, 20, causal=True)

    q, k, v = (torch.randn(25, 2, 8) for _ in range(3))
    twin = compiled(function)
    assert torch.equal(twin(q, k, v, ends(0, 5, 25)), function(q, k, v, ends(0, 5, 25)))
    with pytest.raises(RuntimeError, match="cu_seqlens_q: sequence 0 has 25 tokens"):
        twin(q, k, v, ends(0, 25, 25))


def test_compile_decoding() -> None:
    """The cache is written inside the graph."""

    def function(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, cos: Tensor, n: Tensor) -> Tensor:
        return attention.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, cos, cache_seqlens=n, causal=True)

    twin = compiled(function)
    cos, caches = torch.randn(40, 4), [torch.randn(2, 40, 2, 8) for _ in range(2)]
    compiled_caches, eager_caches = [x.clone() for x in caches], [x.clone() for x in caches]
    for step in range(3):
        q, k, v = (torch.randn(2, 1, 2, 8) for _ in range(3))
        n = ends(step, step + 7)
        assert torch.equal(twin(q, *compiled_caches, k, v, cos, n), function(q, *eager_caches, k, v, cos, n))
        assert all(torch.equal(x, y) for x, y in zip(compiled_caches, eager_caches, strict=True))
