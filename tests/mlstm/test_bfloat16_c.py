# SPDX-License-Identifier: Apache-2.0
"""Steps whose c is bfloat16, rounded stochastically: what its rounding keeps, and its errors over thousands of tokens.

support/gpu_checks.py compares its random bits with plain torch's.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from xlstm_hip import mlstm_step_interface
from xlstm_hip.reference.gates import log_gates

DEVICES = (
    "cpu",
    pytest.param(
        "cuda",
        marks=(pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")),
    ),
)
State = tuple[Tensor, Tensor, Tensor]


def one_token(batch: int, heads: int, dqk: int, dhv: int, device: str = "cpu") -> tuple[list[Tensor], State]:
    rng = torch.Generator().manual_seed(0)
    tokens = [torch.randn(batch, heads, size, generator=rng) for size in (dqk, dqk, dhv, 1, 1)]
    c, n = (torch.randn(batch, heads, *sizes, generator=rng) for sizes in ((dqk, dhv), (dqk,)))
    state = (c.bfloat16(), n, torch.randn(batch, heads, 1, generator=rng))
    c, n, m = (x.to(device) for x in state)
    return [x.to(device) for x in tokens], (c, n, m)


def copied(state: State) -> State:
    c, n, m = (x.clone() for x in state)
    return c, n, m


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_is_the_same_in_any_company(device: str) -> None:
    tokens, state = one_token(5, 3, 32, 64, device)
    _, last = mlstm_step_interface(*tokens, *state)
    for row in range(5):
        one = slice(row, row + 1)
        _, alone = mlstm_step_interface(*(x[one] for x in tokens), *(x[one] for x in state))
        assert all(torch.equal(a, b[one]) for a, b in zip(alone, last, strict=True))


def test_threads_change_no_bit() -> None:
    tokens, state = one_token(1, 1, 32, 200)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3, 8):  # which split a head's values
            torch.set_num_threads(threads)
            results.append(mlstm_step_interface(*tokens, *state)[1])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(other, results[0], strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_what_leaves_the_state_alone_leaves_its_bits(device: str) -> None:
    """A masked token, whose gates are those of padding: a bfloat16 is not rounded."""
    tokens, state = one_token(2, 3, 32, 64, device)
    tokens[3].fill_(-1e4)
    tokens[4].fill_(1e4)
    _, last = mlstm_step_interface(*tokens, *state)
    assert torch.equal(last[0], state[0]) and torch.equal(last[1], state[1])


@pytest.mark.parametrize("device", DEVICES)
def test_infinities_and_nan_stay(device: str) -> None:
    tokens, state = one_token(1, 1, 16, 32, device)
    for column, value in enumerate((math.inf, -math.inf, math.nan, -math.nan)):
        state[0][0, 0, :, 2 * column] = value
    _, (c, _, _) = mlstm_step_interface(*tokens, *state)
    for column, value in enumerate((math.inf, -math.inf, math.nan, math.nan)):
        assert torch.equal(c[0, 0, :, 2 * column].isnan(), torch.full((16,), math.isnan(value), device=device))
        assert math.isnan(value) or (c[0, 0, :, 2 * column] == value).all()
    assert c[0, 0, :, 1::2].isfinite().all() and c[0, 0, :, 8:].isfinite().all()


def test_other_dtypes_are_as_they_were() -> None:
    tokens, state = one_token(1, 2, 8, 16)
    _, narrow = mlstm_step_interface(*tokens, *state, dtype_state=torch.bfloat16)  # mlstm_kernels': to nearest
    _, wide = mlstm_step_interface(*tokens, state[0].float(), *state[1:])
    assert torch.equal(narrow[0], wide[0].bfloat16()) and narrow[1].dtype == torch.bfloat16
    _, half = mlstm_step_interface(*tokens, state[0].half(), *state[1:])
    assert half[0].dtype == torch.float32
    _, double = mlstm_step_interface(*(x.double() for x in tokens), *state)
    assert double[0].dtype == torch.float64
    tokens[2].requires_grad_()
    _, trained = mlstm_step_interface(*tokens, *state)
    assert trained[0].dtype == torch.float32 and trained[0].requires_grad
    with torch.no_grad(), pytest.raises(ValueError, match="in_place: expected n to be contiguous and torch.float32"):
        mlstm_step_interface(*tokens, state[0], state[1].bfloat16(), state[2], in_place=True)


# ---- over thousands of tokens


class Recurrence:
    """The recurrence in float64, with c once more as rounding to nearest leaves it, and what stochastic roundings add.

    A rounding's variance is at most a quarter of a unit of the last place, squared: x (1 - x) of them is at most 1/4.
    It decays as the state does. The roundings of two tokens, or of two elements, have nothing to do with each other.
    """

    def __init__(self, batch: int, heads: int, dqk: int, dhv: int) -> None:
        double = {"dtype": torch.float64}
        self.c, self.n, self.m = (torch.zeros(batch, heads, *x, **double) for x in ((dqk, dhv), (dqk,), (1,)))
        self.variance, self.nearest = torch.zeros_like(self.c), self.c.bfloat16()

    def step(self, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> None:
        li, lf = log_gates(i.double(), f.double(), "exp", torch.float64)
        after = torch.maximum(lf + self.m, li)
        forget, write = torch.exp(lf + self.m - after), torch.exp(li - after)
        added = (write * k)[..., None] * v[..., None, :]
        self.c = forget[..., None] * self.c + added
        self.nearest = (forget[..., None] * self.nearest + added).bfloat16()
        self.n, self.m = forget * self.n + write * k, after
        _, exponent = torch.frexp(self.c)
        unit = torch.exp2(exponent.double() - 8)  # a bfloat16 has 8 bits, the first one included
        self.variance = forget[..., None].square() * self.variance + unit.square() / 4

    def errors(self, c: Tensor, q: Tensor) -> tuple[float, float]:
        """Of h with another c: as a share of the largest error that its roundings should make, and of h."""
        by = q.shape[-1] ** -0.5 / torch.maximum((q * self.n).sum(-1, keepdim=True).abs(), torch.exp(-self.m))
        h, other = (by * (q[..., None] * x.cpu().double()).sum(-2) for x in (self.c, c))
        largest = by * (q[..., None].square() * self.variance).sum(-2).sqrt()
        error, largest, size = (x.square().mean().sqrt().item() for x in (other - h, largest, h))
        return error / largest, error / size


@pytest.mark.parametrize("device", DEVICES)
def test_errors_are_a_random_walk(device: str) -> None:
    """4096 tokens, of which hundreds are remembered, and whose k and v have a mean: rounding to nearest loses it."""
    rng, sizes = torch.Generator().manual_seed(1), (1, 4, 16, 32)
    recurrence = Recurrence(*sizes)
    zeros = tuple(torch.zeros(*sizes[:2], *x, device=device) for x in (sizes[2:], sizes[2:3], (1,)))
    wide, narrow = copied(zeros), copied((zeros[0].bfloat16(), *zeros[1:]))
    for _ in range(4096):
        q, k, v = (torch.randn(*sizes[:2], size, generator=rng) + 1 for size in (16, 16, 32))
        i = torch.randn(*sizes[:2], 1, generator=rng) - 2
        f = 5 + 3 * torch.rand(*sizes[:2], 1, generator=rng)
        recurrence.step(k, v, i, f)
        for state in (wide, narrow):
            mlstm_step_interface(*(x.to(device) for x in (q, k, v, i, f)), *state, in_place=True)
    (_, of_wide), of_narrow, of_nearest = (recurrence.errors(c, q) for c in (wide[0], narrow[0], recurrence.nearest))
    assert of_wide < 1e-5
    assert 0.3 < of_narrow[0] < 1 and of_narrow[1] < 0.05
    assert of_nearest[0] > 2 and of_nearest[1] > 2 * of_narrow[1]
