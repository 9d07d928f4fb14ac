# SPDX-License-Identifier: Apache-2.0
"""Whether the op library works in the torch of the interpreter that runs this. Needs no test tools.

    python tests/build/torch_check.py

Goes through every op, with the gradients of all inputs, eager and compiled, against the float64 truth, and ends with
an error at the first difference. test_torches.py runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import xlstm_hip
from xlstm_hip import _ops, mlstm_interface, mlstm_step_interface

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.reference import outputs_and_gradients, truth  # noqa: E402

B, NH, S, DQK, DHV = 2, 3, 40, 8, 6
TOKENS = {"q": (S, DQK), "k": (S, DQK), "v": (S, DHV), "i": (S,), "f": (S,)}
STATES = {"c_initial": (DQK, DHV), "n_initial": (DQK,), "m_initial": (1,)}
KERNELS = {"exp": ("chunkwise--fused", "fused"), "sigmoid": ("chunkwise--fused_siging", "fused_siging")}
Results = tuple[dict[str, Tensor], dict[str, Tensor]]


def make(names: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(B, NH, *shape, generator=rng, dtype=torch.float64) for name, shape in names.items()}


def run(function: Callable[..., Any], **options: Any) -> Results:
    """h, c, n, m by name, and the gradients of all eight inputs by name."""
    cotangents = list(make({"h": TOKENS["v"], **STATES}, seed=1).values())
    return outputs_and_gradients(function, make(TOKENS | STATES), cotangents, **options)


def run_h_alone(function: Callable[..., Any]) -> Results:
    """Without states in or out, which other ops do."""
    leaves = {name: x.requires_grad_() for name, x in make(TOKENS).items()}
    out = function(**leaves)
    h = out if isinstance(out, Tensor) else out[0]
    (cotangent,) = make({"h": TOKENS["v"]}, seed=1).values()
    gradients = torch.autograd.grad(h, list(leaves.values()), cotangent)
    return {"h": h.detach()}, dict(zip(leaves, gradients, strict=True))


@torch.no_grad()
def run_without_gradients(function: Callable[..., Any], **options: Any) -> Results:
    h, states = function(**make(TOKENS | STATES), **options)
    return {"h": h, **dict(zip("cnm", states, strict=True))}, {}


def check(label: str, actual: Results, expected: Results) -> None:
    for prefix, x, y in zip(("", "d"), actual, expected, strict=True):
        for name in y:
            torch.testing.assert_close(x[name], y[name], rtol=1e-9, atol=1e-11, msg=f"{label}: {prefix}{name} is wrong")
    print(f"  {label}: as the float64 truth", flush=True)


def packed(**inputs: Tensor) -> Any:
    """The rows of the batch laid end to end."""
    row = {name: x if name in STATES else torch.cat(x.unbind(), dim=1)[None] for name, x in inputs.items()}
    ends = torch.arange(0, B * S + 1, S)
    h, states = mlstm_interface(**row, return_last_states=True, cu_seqlens=ends)
    return torch.stack(h[0].split(S, dim=1)), states


def stepwise(gate: str, in_place: bool = False, **inputs: Tensor) -> Any:
    states = tuple(inputs[name].clone() for name in STATES)
    hs = []
    for t in range(S):
        token = {name: inputs[name][:, :, t] for name in "qkv"} | {name: inputs[name][:, :, t, None] for name in "if"}
        h, states = mlstm_step_interface(**token, **dict(zip("cnm", states, strict=True)), gate=gate, in_place=in_place)
        hs.append(h)
    return torch.stack(hs, dim=2), states


def main() -> None:
    print(f"torch {torch.__version__}, xlstm_hip {xlstm_hip.__version__}, {_ops.LIBRARY}", flush=True)
    for gate, kernels in KERNELS.items():
        expected, h_alone = run(truth, gate=gate), run_h_alone(partial(truth, gate=gate))
        calls = {kernel: partial(mlstm_interface, kernel=kernel, chunk_size=16) for kernel in kernels}
        calls[f"{kernels[0]}, compiled"] = torch.compile(calls[kernels[0]], fullgraph=True, dynamic=True)
        for label, call in calls.items():
            check(label, run(call, return_last_states=True), expected)
            check(f"{label}, without states", run_h_alone(call), h_alone)
        check(f"{gate} steps", run(stepwise, gate=gate), expected)
        in_place = run_without_gradients(stepwise, gate=gate, in_place=True)
        check(f"{gate} steps in place", in_place, (expected[0], {}))
    check("packed sequences", run(packed), run(truth))


if __name__ == "__main__":
    main()
