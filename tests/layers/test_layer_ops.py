# SPDX-License-Identifier: Apache-2.0
"""The layers' ops for torch: opcheck, gradcheck, the compiler, autocast, and how bad input ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.library import opcheck

from support import layer_cases as cases
from support.layer_cases import CASES, Case
from xlstm_hip import layers
from xlstm_hip.layers.ops import OPS
from xlstm_hip.reference import layers as plain

TARGETS = torch.tensor([3, -100, 0, 6])
SMALL = tuple(c for c in CASES if sum(torch.Size(s).numel() for s in c.shapes) < 200)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def op_calls(dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype)

    x, w, h, o, logits = draw(2, 3, 8), draw(8), draw(2, 3, 2, 4), draw(2, 3, 8), draw(4, 7)
    wide = torch.promote_types(dtype, torch.float32)
    exps = torch.rand(4, 2, dtype=wide) + 1
    loss = (torch.randn(4, dtype=wide), logits, TARGETS, exps, 5.0, -100)
    return {
        "rms_norm": (x, w, w, 1e-6),
        "add_rms_norm": (x, draw(2, 3, 8), w, None, 1e-6),
        "rms_norm_backward": (draw(2, 3, 8), draw(2, 3, 8), x, w, w, 1e-6),
        "head_norm_gate": (h, o, w, w, 1e-6, True),
        "head_norm_gate_backward": (draw(2, 3, 8), h, o, w, None, 1e-6, False),
        "soft_cap": (x, 3.0),
        "soft_cap_backward": (draw(2, 3, 8), x, 3.0),
        "swiglu": (x, o),
        "swiglu_fused": (x,),
        "swiglu_backward": (draw(2, 3, 8), x, o),
        "swiglu_fused_backward": (draw(2, 3, 4), x),
        "cross_entropy": (logits, TARGETS, None, -100),
        "cross_entropy_backward": loss,
        "cross_entropy_backward_": loss,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("op", op_calls(torch.float32))
def test_opcheck(op: str, dtype: torch.dtype) -> None:
    opcheck(getattr(OPS, op), op_calls(dtype)[op])


def test_every_op_is_checked() -> None:
    names = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if "xlstm_hip::" in name}
    of_other_families = {name for name in names if name.startswith(("mlstm_", "attention_"))}
    assert set(op_calls(torch.float32)) <= names - of_other_families


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradcheck(case: Case) -> None:
    assert gradcheck(case.fused, [x.requires_grad_() for x in case.arguments(torch.float64)])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_compile(case: Case, grad: bool) -> None:
    twin = torch.compile(case.fused, fullgraph=True, dynamic=True, backend="aot_eager")
    inputs = case.arguments(torch.float32)
    if grad:
        actual, expected = (cases.results(f, inputs) for f in (twin, case.fused))
    else:
        actual, expected = ([torch.utils._pytree.tree_leaves(f(*inputs))][0] for f in (twin, case.fused))
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))


def test_a_second_backward_through_overwritten_logits() -> None:
    logits = torch.randn(4, 7, requires_grad=True) * 1
    loss = layers.capped_cross_entropy(logits, TARGETS, 30.0, in_place=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_gradient_takes_the_logits_memory() -> None:
    leaf = torch.randn(4, 7, requires_grad=True)
    logits = leaf * 1
    (dlogits,) = torch.autograd.grad(layers.capped_cross_entropy(logits, TARGETS, None, in_place=True), logits)
    assert dlogits.data_ptr() == logits.data_ptr()


def test_double_backward_is_an_error() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(layers.rms_norm(x, None).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|does not require grad"):
        dx.sum().backward()


def test_only_some_gradients() -> None:
    x, y, w = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, requires_grad=True)
    for which in (0, 1):  # of the sum alone, of the norm alone
        total_and_norm = layers.add_rms_norm(x.requires_grad_(), y, w)
        (dx,) = torch.autograd.grad(total_and_norm[which].square().sum(), x)
        (want,) = torch.autograd.grad(plain.add_rms_norm(x, y, w, None, 1e-6)[which].square().sum(), x)
        torch.testing.assert_close(dx, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    """Layers do in an autocast region what they do outside, as the plain ones do: dtypes follow from the tensors'."""
    x, w, narrow = torch.randn(5, 16), torch.randn(16), torch.randn(5, 16).to(dtype)
    logits = torch.randn(4, 7).to(dtype)
    with torch.autocast("cpu", dtype):
        for actual, reference in (
            (layers.rms_norm(narrow, w), plain.rms_norm(narrow, w, None, 1e-6)),
            (layers.add_rms_norm(x, narrow, w)[1], plain.add_rms_norm(x, narrow, w, None, 1e-6)[1]),
            (layers.swiglu(narrow, x), plain.swiglu(narrow, x)),
            (layers.soft_cap(narrow, 4.0), plain.soft_cap(narrow, 4.0)),
            (
                layers.head_norm_gate(narrow.unflatten(-1, (2, 8)), narrow, w),
                plain.head_norm_gate(narrow.unflatten(-1, (2, 8)), narrow, w, None, 1e-6, True),
            ),
            (
                layers.capped_cross_entropy(logits, TARGETS, 30.0),
                plain.capped_cross_entropy(logits, TARGETS, 30.0, -100, "mean"),
            ),
        ):
            assert actual.dtype == reference.dtype
            torch.testing.assert_close(
                actual, reference, rtol=torch.finfo(dtype).eps, atol=1e-3
            )  # plain rounds silu too


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_as_torch_has_them(reduction: str) -> None:
    logits = torch.randn(4, 7)
    for targets, ignored in ((TARGETS, -100), (TARGETS.clamp(min=0), 3), (torch.tensor([1, 6, 0, 2]).byte(), 6)):
        actual = layers.capped_cross_entropy(logits, targets, None, ignored, reduction)
        want = plain.capped_cross_entropy(logits, targets.long(), None, ignored, reduction)
        torch.testing.assert_close(actual, want)
    ignored = torch.full((4,), -100)
    actual = layers.capped_cross_entropy(logits, ignored, 30.0, reduction=reduction)
    want = plain.capped_cross_entropy(logits, ignored, 30.0, -100, reduction)
    torch.testing.assert_close(actual, want, equal_nan=True)
    empty = layers.capped_cross_entropy(logits[:0], TARGETS[:0], None, reduction=reduction)
    torch.testing.assert_close(
        empty, plain.capped_cross_entropy(logits[:0], TARGETS[:0], None, -100, reduction), equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_that_are_not_finite(dtype: torch.dtype) -> None:
    for actual, want in cases.not_finite(dtype, "cpu"):
        torch.testing.assert_close(actual, want, equal_nan=True)
    zero = layers.rms_norm(torch.tensor([[-0.0, 0.0, 1.0]], dtype=dtype), None)
    assert torch.signbit(zero).tolist() == [[True, False, False]]


X, W, H = torch.randn(2, 3, 8), torch.randn(8), torch.randn(2, 3, 2, 4)


@pytest.mark.parametrize(
    "error, call",
    [
        ("weight: expected shape", lambda: layers.rms_norm(X, torch.randn(7))),
        ("bias: expected shape", lambda: layers.rms_norm(X, W, torch.randn(8, 1))),
        ("bias: needs weight", lambda: OPS.rms_norm(X, None, W, 1e-6)),
        ("y: expected", lambda: OPS.rms_norm(X.double(), None, None, 1e-6, torch.bfloat16)),
        ("out_dtype: expected torch.float64", lambda: layers.rms_norm(X.double(), None, out_dtype=torch.bfloat16)),
        ("out_dtype: expected torch.bfloat16", lambda: layers.rms_norm(X.bfloat16(), None, out_dtype=torch.float16)),
        ("eps: expected a finite number >= 0, got -1", lambda: layers.rms_norm(X, W, eps=-1.0)),
        ("x: expected float32", lambda: layers.rms_norm(X.long(), W)),
        ("y: expected x's shape", lambda: layers.add_rms_norm(X, X[:1], W)),
        ("o: expected shape", lambda: layers.head_norm_gate(H, X[..., :4], W)),
        ("h: expected 2 dimensions or more", lambda: layers.head_norm_gate(W, W, W)),
        ("cap: expected a finite number above 0, got 0", lambda: layers.soft_cap(X, 0.0)),
        ("up: expected gate's shape", lambda: layers.swiglu(X, X[:, :2])),
        ("gate_and_up: expected an even", lambda: layers.swiglu_fused(X[..., :7])),
        ("logits: expected 2 dimensions", lambda: layers.capped_cross_entropy(X, TARGETS, None)),
        ("targets: expected shape", lambda: layers.capped_cross_entropy(X[0], TARGETS, None)),
        ("targets: expected class indices", lambda: layers.capped_cross_entropy(X[0], torch.ones(3), None)),
        (
            "targets: expected 0 to 7 or ignore_index, got 8 at row 1",
            lambda: layers.capped_cross_entropy(X[0], torch.tensor([7, 8, 0]), None),
        ),
        (
            "reduction: expected one of",
            lambda: layers.capped_cross_entropy(X[0], torch.tensor([7, 7, 0]), None, reduction="all"),
        ),
    ],
)
def test_bad_input(error: str, call: Any) -> None:
    with pytest.raises((RuntimeError, ValueError), match=error):
        call()


def test_empty_tensors() -> None:
    empty = torch.randn(0, 8, requires_grad=True)
    w = torch.randn(8, requires_grad=True)
    y = layers.rms_norm(empty, w)
    assert y.shape == (0, 8)
    y.sum().backward()
    assert w.grad is not None and not w.grad.any()
    assert layers.swiglu(empty, empty).shape == layers.soft_cap(empty, 1.0).shape == (0, 8)


def test_devices_without_kernels_take_plain_torch() -> None:
    x = torch.randn(2, 3, 8, device="meta")
    assert layers.rms_norm(x, W.to("meta")).device.type == "meta"
    assert layers.head_norm_gate(x.unflatten(-1, (2, 4)), x, None).shape == x.shape
