# SPDX-License-Identifier: Apache-2.0
"""NaN and infinity in the data go where the definition sends them, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.reference import truth
from xlstm_hip import mlstm_interface, mlstm_step_interface

B, NH, S, DQK, DHV, CHUNK = 1, 2, 40, 8, 6, 16
POSITIONS = (0, 15, 16, 23, S - 1)  # the first token, both sides of a chunk's border, an interior one, the last
KERNELS = {
    "chunkwise--fused": "exp",
    "chunkwise--fused_siging": "sigmoid",
    "fused": "exp",
    "fused_siging": "sigmoid",
}


def make_inputs(states: bool = False) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    tensors = {"q": random(B, NH, S, DQK), "k": random(B, NH, S, DQK), "v": random(B, NH, S, DHV)}
    tensors |= {"i": random(B, NH, S), "f": random(B, NH, S) + 2}
    if states:
        tensors |= {
            "c_initial": random(B, NH, DQK, DHV),
            "n_initial": random(B, NH, DQK),
            "m_initial": random(B, NH, 1),
        }
    return tensors


def run(inputs: dict[str, Tensor], kernel: str) -> tuple[Tensor, ...]:
    h, states = mlstm_interface(**inputs, kernel=kernel, chunk_size=CHUNK, return_last_states=True)
    return h, *states


def true_run(inputs: dict[str, Tensor], gate: str) -> tuple[Tensor, ...]:
    h, states = truth(**inputs, gate=gate)
    return h, *states


def same_numbers(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], label: str) -> None:
    for name, x, y in zip("hcnm", actual, expected, strict=True):
        y = y.to(x.dtype)
        finite = y.isfinite()
        assert torch.equal(x.isfinite(), finite), f"{label}: not finite elsewhere in {name}"
        assert torch.equal(x.isnan(), y.isnan()), f"{label}: NaN elsewhere in {name}"
        assert torch.allclose(x[finite], y[finite], rtol=1e-3, atol=1e-4), f"{label}: another {name}"


@pytest.mark.parametrize("name", ["q", "k", "v", "i", "f"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_one_bad_token(kernel: str, value: float, name: str) -> None:
    for position in POSITIONS:
        inputs = make_inputs()
        inputs[name][0, 1, position, ...] = value  # the other head stays clean
        actual, expected = run(inputs, kernel), true_run(inputs, KERNELS[kernel])
        label = f"{name} = {value} at {position}"
        same_numbers(actual, expected, label)
        clean = run(make_inputs(), kernel)
        assert torch.equal(actual[0][:, 0], clean[0][:, 0]), f"{label}: another head changed"
        before, before_clean = actual[0][:, 1, :position], clean[0][:, 1, :position]
        assert torch.allclose(before, before_clean, rtol=1e-4, atol=1e-5), f"{label}: an earlier token changed"


@pytest.mark.parametrize("name", ["q", "k", "v", "i", "f"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
def test_one_bad_token_in_bfloat16(value: float, name: str) -> None:
    """Products of bfloat16 operands, where the machine has them: the same places, if other roundings."""
    for position in POSITIONS:
        inputs = {n: x.bfloat16() for n, x in make_inputs().items()}
        inputs[name][0, 1, position, ...] = value
        actual, expected = run(inputs, "chunkwise--fused"), true_run(inputs, "exp")
        for output, x, y in zip("hcnm", actual, expected, strict=True):
            label = f"{name} = {value} at {position}: {output}"
            assert torch.equal(x.isfinite(), y.isfinite()) and torch.equal(x.isnan(), y.isnan()), label


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_one_bad_feature(kernel: str, value: float, name: str) -> None:
    inputs = make_inputs()
    inputs[name][0, 1, 20, 3] = value
    same_numbers(run(inputs, kernel), true_run(inputs, KERNELS[kernel]), f"one feature of {name} = {value}")


@pytest.mark.parametrize("name", ["c_initial", "n_initial", "m_initial"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_bad_initial_state(kernel: str, value: float, name: str) -> None:
    inputs = make_inputs(states=True)
    inputs[name][0, 1, 0, ...] = value
    same_numbers(run(inputs, kernel), true_run(inputs, KERNELS[kernel]), f"{name} = {value}")


@pytest.mark.parametrize("kernel", KERNELS)
def test_total_forgetting_is_finite(kernel: str) -> None:
    """f = -inf, at one token and at all: logsigmoid is -inf, what came before is gone, nothing else is lost."""
    for positions in (slice(20, 21), slice(0, 1), slice(None)):
        inputs = make_inputs()
        inputs["f"][:, :, positions] = -float("inf")
        actual = run(inputs, kernel)
        assert all(x.isfinite().all() for x in actual)
        same_numbers(actual, true_run(inputs, KERNELS[kernel]), f"f = -inf at {positions}")


@pytest.mark.parametrize("kernel", KERNELS)
def test_total_forgetting_has_a_gradient(kernel: str) -> None:
    inputs = make_inputs()
    inputs["f"][:, :, 20] = -float("inf")
    dh = torch.randn(B, NH, S, DHV, generator=torch.Generator().manual_seed(4))

    def gradients(function: Any, **options: Any) -> tuple[Tensor, ...]:
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        return torch.autograd.grad(function(**leaves, **options), list(leaves.values()), dh)

    actual = gradients(mlstm_interface, kernel=kernel, chunk_size=CHUNK)
    for name, x in zip(inputs, actual, strict=True):
        assert x.isfinite().all(), name
    # The truth multiplies 0 by infinity on its way back; what f = -1e30 does is the same and finite.
    inputs["f"][:, :, 20] = -1e30
    expected = gradients(lambda **leaves: truth(**leaves, gate=KERNELS[kernel])[0])
    for name, x, y in zip(inputs, actual, expected, strict=True):
        assert torch.allclose(x, y, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("kernel, gate", [("fused", "exp"), ("fused_siging", "sigmoid")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
def test_step(kernel: str, gate: str, value: float) -> None:
    for name in ("q", "k", "v", "i", "f", "c_initial", "n_initial", "m_initial"):
        inputs = {n: x[:, :, :1].clone() if n in "qkvif" else x for n, x in make_inputs(states=True).items()}
        inputs[name][0, 1, 0, ...] = value
        token = {n: inputs[n][:, :, 0] for n in "qkv"} | {n: inputs[n] for n in "if"}
        states = {n: inputs[f"{n}_initial"] for n in "cnm"}
        h, last = mlstm_step_interface(**token, **states, kernel=kernel)
        same_numbers((h[:, :, None], *last), true_run(inputs, gate), f"{name} = {value}")
