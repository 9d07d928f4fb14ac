# SPDX-License-Identifier: Apache-2.0
"""flash_attn.losses and flash_attn.ops as xlstm_hip.compat offers them, beside torch's layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.compat_parts import compat_part

layers = compat_part("flash_attn_layers")


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


LABELS = torch.tensor([3, -1, 0, 8, -1, 2, 5])


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str, scale: float) -> None:
    logits = drawn(7, 9).requires_grad_()
    loss, z_loss = layers.CrossEntropyLoss(-1, reduction, logit_scale=scale, return_z_loss=True)(logits, LABELS)
    expected = F.cross_entropy(logits * scale, LABELS, ignore_index=-1, reduction=reduction)
    torch.testing.assert_close(loss, expected)
    assert z_loss.shape == loss.shape and not z_loss.any() and not z_loss.requires_grad
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), logits)[0] for x in (loss, expected)))
    alone = layers.CrossEntropyLoss(-1, reduction, logit_scale=scale)(logits, LABELS)
    assert torch.equal(alone, loss)


def test_in_place() -> None:
    """The gradient is written over the logits."""
    logits = drawn(7, 9).requires_grad_()
    (expected,) = torch.autograd.grad(layers.CrossEntropyLoss(-1)(logits, LABELS), logits)
    copy = logits.detach().clone().requires_grad_()
    (actual,) = torch.autograd.grad(layers.CrossEntropyLoss(-1, inplace_backward=True)(copy, LABELS), copy)
    assert torch.equal(actual, expected) and torch.equal(copy.detach(), expected)


@pytest.mark.parametrize(
    "options, kind, message",
    [
        (
            {"label_smoothing": 0.1},
            NotImplementedError,
            "label_smoothing: expected 0; there is no kernel for it, got 0.1",
        ),
        ({"lse_square_scale": 1e-4}, NotImplementedError, "lse_square_scale: expected 0"),
        ({"process_group": object()}, NotImplementedError, "process_group: expected None"),
        ({"logit_scale": 0}, ValueError, "logit_scale: expected a number > 0, got 0"),
        ({"inplace_backward": 1}, TypeError, "inplace_backward: expected True or False, got 1"),
        ({"reduction": "max"}, ValueError, "reduction: expected one of 'mean', 'none', 'sum', got 'max'"),
        ({"return_z_loss": 1}, TypeError, "return_z_loss: expected True or False, got 1"),
    ],
)
def test_wrong(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        layers.CrossEntropyLoss(**options)(drawn(7, 9), LABELS)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match=r"logits: expected 2 dimensions \(N, V\)"):
        layers.cross_entropy_loss(drawn(7), LABELS)
    with pytest.raises(ValueError, match=r"labels: expected shape \(N\) = \(7,\), got \(6\)"):
        layers.cross_entropy_loss(drawn(7, 9), LABELS[:6])


def test_rms_norm_and_swiglu() -> None:
    module = layers.RMSNorm(9, dtype=torch.float64)
    assert module.eps == 1e-5 and list(module.state_dict()) == ["weight"] and torch.equal(module.weight, torch.ones(9))
    module.weight.data = drawn(9)
    x, y = drawn(7, 9), drawn(7, 9).flip(0)
    torch.testing.assert_close(module(x), F.rms_norm(x, (9,), module.weight, 1e-5))
    assert torch.equal(module(x), layers.rms_norm(x, module.weight, 1e-5))
    torch.testing.assert_close(layers.swiglu(x, y), F.silu(x) * y)
    module.reset_parameters()
    assert torch.equal(module.weight, torch.ones(9))
