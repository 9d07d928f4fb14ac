# SPDX-License-Identifier: Apache-2.0
"""Every registered kernel, over the table of shapes and the dtypes, against the float64 truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from support import accuracy
from support.report import SHORT, Report
from support.shapes import CASES, FEW, HALF, STEP_CASES, WITHOUT_NORMALISER, Case
from xlstm_hip.mlstm.registry import KernelInfo, all_kernels, kernel_info

# Kernels of these modules are tried on a few cases: what torch compiles at run time is slow to start and works in
# float32 for every dtype below, and the Triton names are here the fused kernels by another name.
COMPILED, PEERS = ".compiled.", ".peers"
REFERENCE = ".reference."


def dtypes_of(info: KernelInfo) -> tuple[torch.dtype, ...]:
    return (torch.float32, torch.bfloat16) if COMPILED in info.function.__module__ else info.dtypes


def runs_here(info: KernelInfo) -> bool:
    return "*" in info.devices or "cpu" in info.devices


def cases_of(info: KernelInfo) -> Iterator[Case]:
    module = info.function.__module__
    few = COMPILED in module or PEERS in module
    slow_when_long = info.kind == "parallel" or f"{REFERENCE}recurrent" in module
    for case in FEW if few else CASES:
        if case.long and slow_when_long:
            continue
        if not case.normalizer_grad and "normalizer_grad" not in info.options:
            continue
        if case.states and not info.states:
            continue
        yield case


def rows() -> Iterable[Any]:
    kernels = [info for info in all_kernels(("chunkwise", "parallel", "sequence")) if runs_here(info)]
    cases = {info.name: set(cases_of(info)) for info in kernels}
    for case in CASES:  # the case outermost: its truth is computed once
        for gate in ("exp", "sigmoid"):
            for dtype in SHORT:
                for info in kernels:
                    if info.gate != gate or case not in cases[info.name] or dtype not in dtypes_of(info):
                        continue
                    if not (case.long and dtype in HALF and REFERENCE in info.function.__module__):
                        yield pytest.param(info, case, dtype, id=f"{case.name}-{info.name}-{SHORT[dtype]}")


@pytest.mark.parametrize("info, case, dtype", rows())
def test_sequence(info: KernelInfo, case: Case, dtype: torch.dtype, report: Report) -> None:
    measured = accuracy.measure(info, case, dtype)
    report.add(info.name, dtype, case.name, measured)
    accuracy.check(f"{info.name}, {SHORT[dtype]}, {case.name}", measured)


@pytest.mark.parametrize("case", WITHOUT_NORMALISER, ids=lambda case: case.name)
@pytest.mark.parametrize("kernel", ["chunkwise--fused_siging", "fused_siging", "chunkwise--native_siging_custbw"])
def test_sigmoid_gate_without_normaliser(kernel: str, case: Case, report: Report) -> None:
    info = kernel_info(kernel, ("chunkwise", "sequence"))
    for dtype in SHORT:
        measured = accuracy.measure(info, case, dtype, normalize=False)
        report.add(f"{kernel}, normalize=False", dtype, case.name, measured)
        accuracy.check(f"{kernel}, {SHORT[dtype]}, {case.name}", measured)


@pytest.mark.parametrize("case", STEP_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", SHORT, ids=SHORT.get)
@pytest.mark.parametrize("info", [x for x in all_kernels(("step",)) if runs_here(x)], ids=lambda info: info.name)
def test_step(info: KernelInfo, dtype: torch.dtype, case: Case, report: Report) -> None:
    for normalize in (True, False) if info.gate == "sigmoid" else (True,):
        measured = accuracy.measure(info, case, dtype, normalize)
        name = f"step {info.name}" + ("" if normalize else ", normalize=False")
        report.add(name, dtype, case.name, measured)
        accuracy.check(f"{name}, {SHORT[dtype]}, {case.name}", measured)


def test_every_kernel_has_rows(report: Report) -> None:
    for info in all_kernels(("chunkwise", "parallel", "sequence")):
        assert not runs_here(info) or list(cases_of(info)), info.name
