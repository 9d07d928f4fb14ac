# SPDX-License-Identifier: Apache-2.0
"""autocast_kernel_dtype: inside a region q, k, v, i, f are cast and the states are not; outside it does nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xlstm_hip import mlstm_interface, mlstm_step_interface

B, NH, S, DQK, DHV = 2, 2, 37, 8, 6
KERNELS = (
    "chunkwise--fused",
    "chunkwise--fused_siging",
    "fused",
    "fused_siging",
    "chunkwise--native_autograd",
    "chunkwise--native_custbw",
    "parallel--native_siging_autograd",
    "native_sequence__native",
)


def inputs(seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    tokens = {"q": random(B, NH, S, DQK), "k": random(B, NH, S, DQK), "v": random(B, NH, S, DHV)}
    tokens |= {"i": random(B, NH, S), "f": random(B, NH, S) + 2}
    states = {"c_initial": random(B, NH, DQK, DHV), "n_initial": random(B, NH, DQK), "m_initial": random(B, NH, 1)}
    return tokens, states


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
def test_inside_a_region(kernel: str, dtype: torch.dtype) -> None:
    tokens, states = inputs()
    cast = {name: x.to(dtype) for name, x in tokens.items()}
    expected, last_expected = mlstm_interface(**cast, **states, kernel=kernel, return_last_states=True)
    with torch.autocast("cpu"):
        h, last = mlstm_interface(
            **tokens, **states, kernel=kernel, return_last_states=True, autocast_kernel_dtype=dtype
        )
    assert h.dtype == dtype and torch.equal(h, expected)
    for x, y in zip(last, last_expected, strict=True):
        assert x.dtype == torch.float32 and torch.equal(x, y)


@pytest.mark.parametrize("kernel", KERNELS)
def test_outside_it_does_nothing(kernel: str) -> None:
    tokens, states = inputs()
    expected = mlstm_interface(**tokens, **states, kernel=kernel)
    h = mlstm_interface(**tokens, **states, kernel=kernel, autocast_kernel_dtype=torch.float16)
    assert h.dtype == torch.float32 and torch.equal(h, expected)
    with torch.autocast("cpu", enabled=False):
        assert torch.equal(mlstm_interface(**tokens, **states, kernel=kernel), expected)


@pytest.mark.parametrize("kernel", ["chunkwise--fused", "chunkwise--native_custbw", "fused"])
def test_gradients_come_back_in_the_inputs_dtype(kernel: str) -> None:
    tokens, states = inputs()
    leaves = {name: x.requires_grad_() for name, x in (tokens | states).items()}
    with torch.autocast("cpu"):
        h = mlstm_interface(**leaves, kernel=kernel)
    gradients = torch.autograd.grad(h.float().square().sum(), list(leaves.values()))
    exact = torch.autograd.grad(mlstm_interface(**leaves, kernel=kernel).square().sum(), list(leaves.values()))
    for name, x, y in zip(leaves, gradients, exact, strict=True):
        assert x.dtype == torch.float32, name
        assert (x - y).norm() < 0.1 * y.norm(), name


def test_a_long_memory_survives_half_precision() -> None:
    """m is float32: in bfloat16 the sum of many small log forgets would stop moving."""
    tokens, _ = inputs()
    tokens["f"] = torch.full_like(tokens["f"], 6.0)
    tokens["i"] = torch.cat([torch.full((B, NH, 1), 8.0), torch.full((B, NH, S - 1), -30.0)], dim=-1)
    with torch.autocast("cpu"):
        _, (_, _, m) = mlstm_interface(**tokens, return_last_states=True)
    exact = 8 + (S - 1) * torch.nn.functional.logsigmoid(torch.tensor(6.0, dtype=torch.float64))
    assert (m - exact).abs().max() < 1e-4


def test_step() -> None:
    tokens, states = inputs()
    token = {name: tokens[name][:, :, 0] for name in "qkv"} | {name: tokens[name][:, :, :1] for name in "if"}
    last = {name.removesuffix("_initial"): x for name, x in states.items()}
    expected, expected_last = mlstm_step_interface(**{n: x.bfloat16() for n, x in token.items()}, **last)
    with torch.autocast("cpu"):
        h, after = mlstm_step_interface(**token, **last)
    assert h.dtype == torch.bfloat16 and torch.equal(h, expected)
    assert all(x.dtype == torch.float32 and torch.equal(x, y) for x, y in zip(after, expected_last, strict=True))
    assert mlstm_step_interface(**token, **last)[0].dtype == torch.float32
