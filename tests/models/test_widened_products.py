# SPDX-License-Identifier: Apache-2.0
"""Products by widened weights, on any CPU: right to a rounding, and taken where the layer itself need not be called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xlstm_hip.models import widened_products
from xlstm_hip.models.widened_products import LEAST_ROWS, product

DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def slow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widened_products, "has_fast_products", lambda dtype: False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What nn.Linear's own forward is called with."""
    seen: list[Tensor] = []
    forward = nn.Linear.forward

    def noted(self: nn.Linear, x: Tensor) -> Tensor:
        seen.append(x)
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", noted)
    return seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("rows", "columns"), [(7, 24), (200, 512), (70, 5000)])
def test_right_to_a_rounding(dtype: torch.dtype, bias: bool, rows: int, columns: int, calls: list[Tensor]) -> None:
    layer, x = nn.Linear(columns, rows, bias=bias, dtype=dtype), torch.randn(3, 17, columns, dtype=dtype)
    with torch.no_grad():
        true = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        actual = product(layer, x)
    assert actual.dtype == dtype and actual.shape == true.shape and not calls
    scale = nn.functional.linear(x.double().abs(), layer.weight.double().abs())  # of what a sum in float32 may lose
    assert ((actual - true).abs() <= torch.finfo(dtype).eps / 2 * true.abs() * 1.01 + 1e-6 * scale + 1e-7).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer, x: (layer, x[: LEAST_ROWS - 1]),
        lambda layer, x: (layer, x.requires_grad_()),
        lambda layer, x: (layer.register_forward_hook(lambda *_: None) and layer, x),
        lambda layer, x: (layer.float(), x.float()),
    ],
    ids=["few rows", "gradients", "a hook", "float32"],
)
def test_otherwise_the_layer_is_called(change: Any, calls: list[Tensor]) -> None:
    layer = nn.Linear(32, 48, dtype=torch.bfloat16).requires_grad_(False)
    product(layer, torch.randn(LEAST_ROWS, 32, dtype=torch.bfloat16))
    assert not calls
    layer, x = change(layer, torch.randn(LEAST_ROWS, 32, dtype=torch.bfloat16))
    product(layer, x)
    assert len(calls) == 1


def test_a_cpu_with_fast_products_is_left_alone(monkeypatch: pytest.MonkeyPatch, calls: list[Tensor]) -> None:
    monkeypatch.setattr(widened_products, "has_fast_products", lambda dtype: dtype == torch.bfloat16)
    for dtype in DTYPES:
        layer = nn.Linear(32, 48, dtype=dtype).requires_grad_(False)
        product(layer, torch.randn(LEAST_ROWS, 32, dtype=dtype))
    assert [x.dtype for x in calls] == [torch.bfloat16]
