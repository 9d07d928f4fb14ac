# SPDX-License-Identifier: Apache-2.0
"""Would the table see a wrong gradient? Bugs are planted below it, and it must fail on each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support import accuracy
from support.shapes import BY_NAME
from xlstm_hip import kernel_info
from xlstm_hip.mlstm import ops

NAMES = ("q", "k", "v", "i", "f", "c_initial", "n_initial", "m_initial")
Gradients = dict[str, Tensor]
Plant = Callable[[Gradients], Gradients]

PLANTED: dict[str, Plant] = {
    "df one part in a thousand too large": lambda g: {"f": g["f"] * 1.001},
    "df without one token": lambda g: {"f": g["f"].index_fill(2, torch.tensor([5]), 0.0)},
    "df one token late": lambda g: {"f": g["f"].roll(1, 2)},
    "dq of the wrong sign": lambda g: {"q": -g["q"]},
    "dk and dq exchanged": lambda g: {"q": g["k"], "k": g["q"]},
    "dv wrong in one head": lambda g: {"v": g["v"] * torch.tensor([1.0, 1.0, 1.01])[:, None, None]},
    "di zero": lambda g: {"i": torch.zeros_like(g["i"])},
    "dc not a number": lambda g: {"c_initial": g["c_initial"] * float("nan")},
    "dn zero": lambda g: {"n_initial": torch.zeros_like(g["n_initial"])},
    "dm zero": lambda g: {"m_initial": torch.zeros_like(g["m_initial"])},
}
INFO = kernel_info("chunkwise--fused")
CASE = BY_NAME["strided"]


def test_without_a_bug_it_passes() -> None:
    accuracy.check("no bug", accuracy.measure(INFO, CASE, torch.float32))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_gradient_fails(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops._backward

    def wrong(*args: object) -> tuple[Tensor, ...]:
        gradients = dict(zip(NAMES, right(*args), strict=True))
        return tuple((gradients | PLANTED[fault](gradients)).values())

    monkeypatch.setattr(ops, "_backward", wrong)
    with pytest.raises(AssertionError, match="allowed"):
        accuracy.check(fault, accuracy.measure(INFO, CASE, torch.float32))


def test_a_normaliser_held_constant_fails() -> None:
    """The peers' gradient, passed off as the exact one."""
    inputs, cotangents = accuracy.make(CASE, torch.float32)
    call = accuracy.sequence_call(CASE, INFO.name, normalizer_grad=False)
    outputs, gradients = accuracy.outputs_and_gradients(call, inputs, cotangents)
    actual = outputs | {f"d{name}": g for name, g in gradients.items()}
    errors = accuracy.errors_of(actual, accuracy.true_values(CASE, torch.float32, "exp"))
    with pytest.raises(AssertionError, match="dq"):
        accuracy.check("dl dropped", accuracy.Measured(errors, *accuracy.tolerances(CASE, torch.float32, "exp")))


def test_a_wrong_output_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision too, where more is allowed."""
    case = BY_NAME["65 tokens"]
    right = accuracy.mlstm_interface

    def wrong(*args: Tensor, **kwargs: object) -> object:
        h, states = right(*args, **kwargs)  # type: ignore[misc]
        return torch.cat([h[:, :1], 1.1 * h[:, 1:]], dim=1), states

    expected = accuracy.tolerances(case, torch.bfloat16, "exp", True, False, True, "cpu")  # before the bug is in
    monkeypatch.setattr(accuracy, "mlstm_interface", wrong)
    assert accuracy.tolerances(case, torch.bfloat16, "exp", True, False, True, "cpu") is expected
    with pytest.raises(AssertionError, match="h "):
        accuracy.check("one head a tenth too large", accuracy.measure(INFO, case, torch.bfloat16))
