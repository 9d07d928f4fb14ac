# SPDX-License-Identifier: Apache-2.0
"""The kernel that draws a token run as gfx942 code: tokens and weights of the CPU's, bit for bit."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from kernels_ran import check_every_kernel_ran

# temperature, top_k, top_p, repetition_penalty
OPTIONS = [
    (0.0, 0, 1.0, 1.0),
    (0.0, 0, 1.0, 1.3),
    (1.0, 0, 1.0, 1.0),
    (0.7, 5, 1.0, 1.0),
    (1.3, 0, 0.8, 1.0),
    (0.9, 200, 0.6, 1.4),
    (1.0, 1, 1.0, 1.0),
    (0.8, 0, 1e-9, 0.7),
    (3.0, 4000, 0.9999, 1.0),
]
SIZES = [(1, 1, 0), (2, 97, 0), (3, 97, 1), (2, 1024, 2), (1, 3077, 0), (1, 5000, 4)]
_ran: set[bool] = set()


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


def drawn(op: Any, call: dict[str, Any], where: str) -> dict[str, torch.Tensor]:
    """What the op leaves in the tensors it was given, by name."""
    moved = {name: x.clone().to(where) if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    op(*moved.values())
    return {name: x.cpu() for name, x in moved.items() if isinstance(x, torch.Tensor) and name != "logits"}


@pytest.mark.parametrize("rows, vocab, levels", SIZES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_bits_as_on_a_cpu(
    package: ModuleType, options: tuple[float, int, float, float], rows: int, vocab: int, levels: int
) -> None:
    """Several draws, with rows that are over, tokens that were seen, ends, ties, infinities and NaN."""
    from xlstm_hip._core.ops import OPS

    temperature, _, _, penalty = options
    greedy = temperature == 0
    _ran.add(greedy)
    rng = torch.Generator().manual_seed(vocab)
    logits = 4 * torch.randn(rows, vocab, generator=rng)
    logits = (logits * levels).round() / levels if levels else logits
    logits[0, vocab // 3] = -torch.inf
    if rows > 2:
        logits[2, vocab // 2] = torch.nan
    call = {
        "tokens": torch.arange(rows) - 1,
        "logits": logits,
        "seeds": None if greedy else torch.arange(rows) * 2**40 - 7,
        "numbers": None if greedy else torch.arange(rows) * 2**33,
        "seen": None if penalty == 1 else torch.rand(rows, vocab, generator=rng) < 0.2,
        "going": torch.arange(rows) != 1 if vocab < 1000 else torch.ones(rows, dtype=torch.bool),
        "ends": torch.arange(0, vocab, 3)[:64],
        "weights": None if greedy else torch.full((rows, vocab), -1),
        "pad": 5,
    }
    call |= dict(zip(("temperature", "top_k", "top_p", "penalty"), options, strict=True))
    for n in range(3):
        on_cpu, on_gpu = drawn(OPS.draw_tokens_, call, "cpu"), drawn(OPS.draw_tokens_, call, "cuda")
        for name, want in on_cpu.items():
            assert torch.equal(on_gpu[name], want), (n, name)
        call |= on_cpu
        if not greedy:
            call["weights"] = None  # the next draws are made without


def test_errors(package: ModuleType) -> None:
    from xlstm_hip._core.ops import OPS

    tokens, logits = torch.zeros(1, dtype=torch.int64).to("cuda"), torch.zeros(1, 5).to("cuda")
    with pytest.raises(RuntimeError, match="top_p: expected at most 1, got 2"):
        OPS.draw_tokens_(tokens, logits, tokens, tokens, None, None, None, None, 0, 1.0, 0, 2.0, 1.0)
    with pytest.raises(RuntimeError, match="tokens: expected a tensor on q's device"):
        OPS.draw_tokens_(tokens.cpu(), logits, None, None, None, None, None, None, 0, 0.0, 0, 1.0, 1.0)


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    if len(_ran) < 2:
        pytest.skip("the tests above were not all chosen")
    check_every_kernel_ran(device, "test_sampling_kernels.py")
