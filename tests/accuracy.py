# SPDX-License-Identifier: Apache-2.0
"""How far a kernel may be from the truth: twice as far as plain torch of the same dtype is on the same inputs.

The plain-torch kernel is chunkwise--native_autograd of the gate (or its sigmoid twin). Nothing else sets a tolerance, but
for a floor: on a small case that kernel can be exact by luck.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from reference import max_error, outputs_and_gradients, relative_error, truth
from shapes import HALF, Case, make
from torch import Tensor
from xlstm_hip import mlstm_interface

PLAIN = {"exp": "chunkwise--native_autograd", "sigmoid": "chunkwise--native_siging_autograd"}
METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"norm": relative_error, "max": max_error}
FLOOR = 2  # units of eps(dtype): one rounding of the result, one of what it was computed from
Quantities = dict[str, Tensor]  # h c n m dq dk dv di df dc_initial dn_initial dm_initial
Errors = dict[str, float]  # "dq norm": ...


@dataclass
class Measured:
    errors: Errors
    tolerances: Errors
    ratios: Errors = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = {name: error / self.tolerances[name] for name, error in self.errors.items()}

    @property
    def worst(self) -> str:
        return max(self.ratios, key=lambda name: float("inf") if self.ratios[name] != self.ratios[name] else self.ratios[name])


def _quantities(function: Callable[..., Any], inputs: Mapping[str, Tensor], cotangents: Any, **options: Any) -> Quantities:
    outputs, gradients = outputs_and_gradients(function, inputs, cotangents, **options)
    return outputs | {f"d{name}": g for name, g in gradients.items()}


@functools.lru_cache(maxsize=8)
def _truth(case: Case, half: bool, gate: str, normalize: bool) -> Quantities:
    inputs, cotangents = make(case, torch.bfloat16 if half else torch.float32)
    wide = {name: x.double() for name, x in inputs.items()}
    options = {"eps": case.eps, "gate": gate, "normalize": normalize, "normalizer_grad": case.normalizer_grad}
    return _quantities(truth, wide, [x.double() for x in cotangents], cu_seqlens=case.cu_seqlens, **options)


def true_values(case: Case, dtype: torch.dtype, gate: str, normalize: bool = True) -> Quantities:
    return _truth(case, dtype in HALF, gate, normalize)


def _with_gaps(x: Tensor) -> Tensor:
    """The same values with unused memory between heads and rows, as slices of one fused projection have."""
    return F.pad(x, (0, 3, 0, 2))[..., :-2, :-3] if x.dim() == 4 else F.pad(x, (0, 1, 0, 2))[..., :-2, :-1]


def call(case: Case, kernel: str, **options: Any) -> Callable[..., Any]:
    """The public call of this case, as a function of the contiguous (B, NH, S, ...) inputs."""

    def function(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **states: Tensor) -> Any:
        tensors = [q, k, v, i, f]
        arguments = dict(options)
        if case.layout == "bshd":
            tensors = [x.transpose(1, 2).contiguous() for x in tensors]
            arguments["layout"] = "bshd"
        elif case.layout == "strided":
            tensors = [_with_gaps(x) for x in tensors]
        if case.cu_seqlens:
            arguments["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32)
        if not case.normalizer_grad:
            arguments["normalizer_grad"] = False
        h, last = mlstm_interface(
            *tensors, **states, return_last_states=True, eps=case.eps, chunk_size=case.chunk, kernel=kernel, **arguments
        )
        return (h.transpose(1, 2) if case.layout == "bshd" else h), last

    return function


def run(case: Case, dtype: torch.dtype, kernel: str, **options: Any) -> Quantities:
    inputs, cotangents = make(case, dtype)
    return _quantities(call(case, kernel, **options), inputs, cotangents)


def errors_of(got: Quantities, expected: Quantities) -> Errors:
    return {f"{name} {m}": metric(got[name], expected[name]) for name in expected for m, metric in METRICS.items()}


@functools.lru_cache(maxsize=32)
def _plain_errors(case: Case, dtype: torch.dtype, gate: str, normalize: bool) -> Errors:
    options = {} if normalize else {"normalize": False}
    return errors_of(run(case, dtype, PLAIN[gate], **options), true_values(case, dtype, gate, normalize))


def tolerances(case: Case, dtype: torch.dtype, gate: str, normalize: bool = True) -> Errors:
    floor = FLOOR * torch.finfo(dtype).eps
    return {name: max(2 * e, floor) for name, e in _plain_errors(case, dtype, gate, normalize).items()}


def measure(case: Case, dtype: torch.dtype, kernel: str, gate: str, normalize: bool = True) -> Measured:
    options = {} if normalize else {"normalize": False}
    errors = errors_of(run(case, dtype, kernel, **options), true_values(case, dtype, gate, normalize))
    return Measured(errors, tolerances(case, dtype, gate, normalize))


def check(what: str, measured: Measured) -> None:
    """Fails where an error is above its tolerance, or no number."""
    over = {name: r for name, r in measured.ratios.items() if not r <= 1}
    lines = (f"{n}: {measured.errors[n]:.3g}, allowed {measured.tolerances[n]:.3g}, {r:.2f} times" for n, r in over.items())
    assert not over, f"{what}\n  " + "\n  ".join(lines)
