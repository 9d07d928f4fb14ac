# SPDX-License-Identifier: Apache-2.0
"""The table of the recurrent cells: cases, and what is wrong with an implementation's results in one.

A result may be off by twice as much as plain torch of the same dtype is, token by token on the CPU, against the same
loop in float64. Plain torch is run with its units in several orders, which changes roundings alone, and the worst run
counts. FLOOR units in the last place are always allowed: plain torch can be exact by luck, and its exp and tanh are
more exact than a GPU's. In float64 the truth is no wider than what it judges, and both may be off by that much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.cell_shapes import Case
from support.reference import max_error, relative_error
from xlstm_hip.reference.slstm import slstm_sequence
from xlstm_hip.slstm import slstm_interface

ORDERS = 5
FLOOR = 3  # of eps(dtype): the result's rounding, that of what it is computed from, and a unit of exp or tanh
METRICS = {"norm": relative_error, "max": max_error}
Results = dict[str, Tensor]


CASES = (
    Case(2, 9, 2, 16),
    Case(1, 1, 1, 8, states=True),
    Case(3, 17, 2, 37, states=True),  # units that no vector divides
    Case(17, 12, 1, 64, states=True),  # more sequences than a block has
    Case(5, 20, 2, 96, bias=False),
    Case(9, 33, 3, 128, states=True),
    Case(9, 40, 1, 128),
    Case(2, 3, 2, 128, states=True),  # too short for the matrix to stay in registers
    Case(2, 7, 1, 256),
    Case(1, 5, 1, 512, states=True),
    Case(1, 30, 2, 32, states=True, ends=(1, 12, 30)),
    Case(1, 64, 2, 128, ends=(1, 12, 30, 64)),
    Case(1, 21, 1, 24, ends=tuple(range(1, 22))),  # single tokens
    Case(4, 20, 2, 64, forget_gate="exp", states=True),
    Case(2, 12, 2, 40, forget_gate="exp"),
    Case(4, 20, 2, 128, function="lstm", states=True),
    Case(9, 20, 1, 40, function="lstm"),
    Case(1, 19, 2, 32, function="lstm", states=True, ends=(7, 19)),
    Case(3, 10, 2, 32, layout="strided"),
    Case(2, 130, 2, 32),  # long
)


@functools.lru_cache(maxsize=4)
def inputs_of(case: Case) -> tuple[dict[str, Tensor], list[Tensor]]:
    """x, recurrent, bias and states in float64, and the cotangents of h and the last states."""
    torch.manual_seed(0)
    double = functools.partial(torch.randn, dtype=torch.float64)
    state = (case.sequences, case.heads, case.units)
    x = double(case.batch, case.length, 4, case.heads, case.units)
    x[:, :, 1] += 2  # tokens are remembered
    inputs = {"x": x, "recurrent": double(4, case.heads, case.units, case.units) / case.units**0.5}
    if case.bias:
        inputs["bias"] = double(4, case.heads, case.units)
    if case.states:
        values = (double(state) / 2, double(state) / 2, 1 + torch.rand(state, dtype=torch.float64), double(state))
        inputs |= dict(zip(case.state_names, values, strict=False))
    sent = [double(case.batch, case.length, case.heads, case.units), *(double(state) for _ in case.state_names)]
    return inputs, sent


def results(
    function: Callable[..., Any], case: Case, dtype: torch.dtype, device: str, order: Tensor | None = None
) -> Results:
    """Outputs and gradients of function(x, recurrent, bias, states, cu_seqlens) in the case's dtype, in float64 of the
    values that it has there. order: of a head's units."""
    values, sent = inputs_of(case)
    wide = torch.promote_types(dtype, torch.float32)
    order = torch.arange(case.units) if order is None else order
    back = order.argsort()

    def reordered(name: str, t: Tensor, by: Tensor) -> Tensor:
        return t[..., by, :][..., by] if name.endswith("recurrent") else t[..., by]

    def given(name: str, t: Tensor) -> Tensor:
        t = reordered(name, t, order).to(
            torch.float16 if dtype == torch.float64 and name in ("x", "recurrent") else dtype
        )
        return t.to(dtype if name in ("x", "recurrent", "h") else wide).to(device).requires_grad_()

    arguments = {name: given(name, t) for name, t in values.items()}
    x = arguments["x"]
    if case.layout == "strided":
        x = torch.nn.functional.pad(x, (0, 8, 0, 2))[..., :-2, :-8]
    states = tuple(arguments[name] for name in case.state_names) if case.states else None
    ends = torch.tensor((0, *case.ends), device=device) if case.ends else None
    h, last = function(x, arguments["recurrent"], arguments.get("bias"), states, ends)
    outputs = {"h of tokens": h} | dict(zip(case.state_names, last, strict=True))
    cotangents = [t[..., order].to(out.dtype).to(device) for t, out in zip(sent, outputs.values(), strict=True)]
    gradients = torch.autograd.grad(list(outputs.values()), list(arguments.values()), cotangents)
    found = outputs | {f"d{name}": g for name, g in zip(arguments, gradients, strict=True)}
    return {name: reordered(name, t.detach().double().cpu(), back) for name, t in found.items()}


def fused(case: Case) -> Callable[..., Any]:
    return functools.partial(_fused, case)


def _fused(case: Case, x: Tensor, recurrent: Tensor, bias: Tensor | None, states: Any, ends: Tensor | None) -> Any:
    return slstm_interface(
        x, recurrent, bias, states, return_last_states=True, function=case.function, forget_gate=case.forget_gate,
        cu_seqlens=ends,
    )  # fmt: skip


def _plain(case: Case, x: Tensor, recurrent: Tensor, bias: Tensor | None, states: Any, ends: Tensor | None) -> Any:
    tokens, last = slstm_sequence(x, recurrent, bias, states, ends, case.function == "lstm", case.forget_gate == "exp")
    return tokens[0], last


@functools.lru_cache(maxsize=128)
def _truth_and_tolerances(case: Case, dtype: torch.dtype) -> tuple[Results, dict[tuple[str, str], float]]:
    plain = functools.partial(_plain, case)
    orders = [None, *(torch.randperm(case.units, generator=torch.Generator().manual_seed(n)) for n in range(1, ORDERS))]
    runs = [results(plain, case, dtype, "cpu", order) for order in orders]

    def exact(*arguments: Any) -> Any:  # the same values, wider
        x, recurrent, bias, states, ends = arguments
        widened = [None if t is None else t.double() for t in (x, recurrent, bias)]
        return plain(*widened, None if states is None else tuple(s.double() for s in states), ends)

    truth = results(exact, case, dtype, "cpu")
    floor = FLOOR * torch.finfo(dtype).eps
    times = 4 if dtype == torch.float64 else 2
    allowed = {
        (name, metric): max(floor, *(times * error(run[name], value) for run in runs))
        for name, value in truth.items()
        for metric, error in METRICS.items()
    }
    return truth, allowed


def judge(case: Case, dtype: torch.dtype, found: Results) -> list[str]:
    """What is wrong with the results."""
    truth, allowed = _truth_and_tolerances(case, dtype)
    problems = []
    for (name, metric), most in allowed.items():
        error = METRICS[metric](found[name], truth[name])
        if not error <= most:
            problems.append(f"{name} {metric}: error {error:.3g}, allowed {most:.3g}")
    return problems


def measure(case: Case, dtype: torch.dtype, device: str) -> list[str]:
    return judge(case, dtype, results(fused(case), case, dtype, device))
