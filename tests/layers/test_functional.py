# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM beside their formulas: values, where they round, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xlstm_hip import layers

EPS = 1e-6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def centred(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return rms(x)


def same(actual: Tensor, want: Tensor) -> float:
    """The share of numbers that are the same to the bit."""
    return float((actual == want).float().mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_round_before_the_weight(dtype: torch.dtype) -> None:
    x, w, o = (y.to(dtype) for y in (normal(4, 30, 128), normal(128, seed=1), normal(4, 30, 128, seed=2)))
    h = x.unflatten(-1, (4, 32))
    want = rms(x.double()).to(dtype) * w
    assert same(layers.rms_norm(x, w), want) > 0.999
    assert same((rms(x.double()) * w.double()).to(dtype), want) < 0.9  # the other order can be told
    assert same(layers.add_rms_norm(x, o, w)[1], rms((x + o).double()).to(dtype) * w) > 0.999
    want = torch.sigmoid(o) * (centred(h.double()).to(dtype).flatten(2) * w)
    assert same(layers.head_norm_gate(h, o, w), want) > 0.999


def test_values() -> None:
    x, w, b, o = normal(2, 5, 24), normal(24, seed=1), normal(24, seed=2), normal(2, 5, 24, seed=3)
    torch.testing.assert_close(layers.rms_norm(x, w, b), rms(x) * w + b)
    total, y = layers.add_rms_norm(x, o, w)
    torch.testing.assert_close((total, y), (x + o, rms(x + o) * w))
    h = x.unflatten(-1, (3, 8))
    torch.testing.assert_close(layers.head_norm_gate(h, o, w, b), o.sigmoid() * (centred(h).flatten(2) * w + b))
    torch.testing.assert_close(layers.soft_cap(40 * x, 15.0), 15 * torch.tanh(40 * x / 15))
    assert layers.soft_cap(x, None) is x
    torch.testing.assert_close(layers.swiglu(x, o), x * x.sigmoid() * o)
    targets = torch.tensor([0, 3, 23, 7, 1])
    want = -(30 * torch.tanh(x[0] / 30)).log_softmax(-1)[torch.arange(5), targets].mean()
    torch.testing.assert_close(layers.capped_cross_entropy(x[0], targets, 30.0), want)


def test_gradients() -> None:
    x, w, b, o = (
        y.requires_grad_() for y in (normal(1, 3, 8), normal(8, seed=1), normal(8, seed=2), normal(1, 3, 8, seed=3))
    )
    assert torch.autograd.gradcheck(layers.rms_norm, (x, w, b))
    assert torch.autograd.gradcheck(layers.add_rms_norm, (x, o, w))
    assert torch.autograd.gradcheck(lambda x, o, w: layers.head_norm_gate(x.unflatten(-1, (2, 4)), o, w), (x, o, w))
    assert torch.autograd.gradcheck(lambda x, o: layers.swiglu(layers.soft_cap(x, 2.0), o), (x, o))


def test_the_sum_of_squares_may_leave_the_dtype() -> None:
    x, w = torch.full((1, 64), 300.0, dtype=torch.float16), torch.ones(64, dtype=torch.float16)
    torch.testing.assert_close(layers.rms_norm(x, w), torch.ones_like(x))


def test_tensors_on_several_devices() -> None:
    """Else the fake kernels would answer, with whatever lies in memory."""
    x, w = torch.ones(2, 8), torch.ones(8, device="meta")
    for call, name in (
        (lambda: layers.rms_norm(x, w), "weight: expected device cpu as x has"),
        (lambda: layers.add_rms_norm(x, x.to("meta"), torch.ones(8)), "y: expected device cpu as x has"),
        (lambda: layers.head_norm_gate(torch.ones(2, 2, 4), x, w), "weight: expected device cpu as h has"),
        (lambda: layers.swiglu(x, x.to("meta")), "up: expected device cpu as gate has"),
        (lambda: layers.capped_cross_entropy(x, torch.ones(2, device="meta").long(), 3.0), "targets: expected device"),
    ):
        with pytest.raises(ValueError, match=name):
            call()
