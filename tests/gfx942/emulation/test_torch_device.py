# SPDX-License-Identifier: Apache-2.0
"""The device that a CPU torch is given: operators compute what the CPU's do, and memory is the interpreter's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda x, y: (x * 2 + y / 3 - 1).exp(),
    "a number": lambda x, y: 2 - x,
    "matrix product": lambda x, y: x @ y.T,
    "views": lambda x, y: x.T[1:, ::2].flip(0).unflatten(0, (3, 2))[1],
    "reductions": lambda x, y: torch.stack([x.sum(1), x.amax(1), x.norm(dim=1), x.cumsum(1)[:, -1]]),
    "concatenation": lambda x, y: torch.cat([x, y], dim=1).split([3, 11], dim=1)[1],
    "a choice": lambda x, y: torch.where(x > y, x, 0.0).masked_fill(y < 0, 7),
    "an index": lambda x, y: x[torch.tensor([3, 0], device=x.device)],
    "other dtypes": lambda x, y: (x.to(torch.bfloat16) * y.half()).double(),
    "in place": lambda x, y: x.clone().add_(y).clamp_(-1, 1),
    "an output of another size": lambda x, y: torch.add(x, y, out=torch.empty(0, device=x.device)),
    "from the host": lambda x, y: x + y.cpu().to(x.device),
    "a loss": lambda x, y: torch.nn.functional.logsigmoid(x).mean() + (x - y).square().mean(),
}


@pytest.fixture(scope="module", autouse=True)
def gpu(package: ModuleType) -> torch.device:
    return torch.device("cuda")


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(gpu: torch.device, name: str) -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 7, generator=rng) for _ in range(2))
    results = []
    for device in ("cpu", gpu):
        a, b = (z.to(device).requires_grad_() for z in (x, y))
        with torch.set_grad_enabled("of another size" not in name):
            z = OPERATORS[name](a, b)
        assert z.device.type == torch.device(device).type
        results.append([z.detach().cpu()])
        if z.requires_grad:
            gradients = torch.autograd.grad(z.sum(), (a, b), allow_unused=True)
            assert all(g is None or g.device == a.device for g in gradients)
            results[-1] += [torch.zeros_like(x) if g is None else g.cpu() for g in gradients]
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_views_share_memory(gpu: torch.device) -> None:
    x = torch.zeros(4, 6, device=gpu)
    x.view(24)[5] = 1
    x[2:].T[0].fill_(3)
    x[:, 1].copy_(torch.arange(4.0))
    expected = torch.zeros(4, 6)
    expected[0, 5], expected[2:, 0], expected[:, 1] = 1, 3, torch.arange(4.0)
    assert torch.equal(x.cpu(), expected)


def test_memory_is_the_interpreters(gpu: torch.device, device: ModuleType) -> None:
    x = torch.empty(5, 3, device=gpu)
    assert x.isnan().all()
    device_pointer, host_array = ctypes.c_void_p(x.data_ptr()), (ctypes.c_float * 16)()
    device.hip("hipMemcpy", host_array, device_pointer, ctypes.c_size_t(60), 2)
    with pytest.raises(device.HipError, match="64 bytes that do not lie in one allocation"):
        device.hip("hipMemcpy", host_array, device_pointer, ctypes.c_size_t(64), 2)


def test_a_fault_is_the_packages_error(gpu: torch.device, package: ModuleType, device: ModuleType) -> None:
    """k's memory is no longer the device's."""
    q, k, v = (torch.randn(1, 1, 64, 16).to(gpu) for _ in range(3))
    gate = torch.randn(1, 1, 64).to(gpu)
    device.library().gfx942_unregister_memory(ctypes.c_void_p(k.data_ptr()))
    with pytest.raises(RuntimeError, match=r"xlstm_hip: scores: \w*scores\w*: .*outside(.|\n)*instruction .*load"):
        package.mlstm_interface(q, k, v, gate, gate)
    assert package.mlstm_interface(q, q, v, gate, gate).isfinite().all()
