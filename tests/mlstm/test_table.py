# SPDX-License-Identifier: Apache-2.0
"""Every registered kernel, over the table of shapes and the dtypes, against the float64 truth.

By default each kernel runs in each case and in each dtype, and each case in each dtype; `--rows everything` runs all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from support import accuracy
from support.report import SHORT, Report
from support.representative import marked
from support.shapes import CASES, FEW, HALF, STEP_CASES, WITHOUT_NORMALISER, Case
from xlstm_hip.mlstm.registry import KernelInfo, all_kernels, kernel_info

# Kernels of these modules are tried on a few cases: what torch compiles at run time is slow to start and works in
# float32 for every dtype below, and the Triton names are here the fused kernels by another name.
COMPILED, PEERS = ".compiled.", ".triton_peers"
REFERENCE = ".reference."


def dtypes_of(info: KernelInfo) -> tuple[torch.dtype, ...]:
    return (torch.float32, torch.bfloat16) if COMPILED in info.function.__module__ else info.dtypes


def runs_on_cpu(info: KernelInfo) -> bool:
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


Row = tuple[KernelInfo, Case, torch.dtype]


def axes(row: Row) -> dict[str, Any]:
    info, case, dtype = row
    kernel, module = (info.kind, info.name), info.function.__module__
    if COMPILED in module:  # test_compiled*.py have their dtypes and shapes
        return {"kernel": kernel}
    if REFERENCE in module or PEERS in module:  # tests/mlstm/test_reference.py has the cases of plain torch
        return {"kernel": kernel, "dtype": dtype}
    return {"kernel": kernel, "case": case.name, "dtype": dtype}


def name(row: Row) -> str:
    info, case, dtype = row
    return f"{case.name}-{info.name}-{SHORT[dtype]}"


def slow(row: Row) -> bool:
    info, case, _ = row
    return case.long or COMPILED in info.function.__module__


def late(row: Row) -> bool:
    """Compiling takes 15 to 60 s a row. One kernel is enough outside CI: all go through the same call."""
    info = row[0]
    return COMPILED in info.function.__module__ and "native" not in info.name


def rows() -> Iterator[Row]:
    kernels = [info for info in all_kernels(("chunkwise", "parallel", "sequence")) if runs_on_cpu(info)]
    cases = {info.name: set(cases_of(info)) for info in kernels}
    for case in CASES:  # the case outermost: its truth is computed once
        for gate in ("exp", "sigmoid"):
            for dtype in SHORT:
                for info in kernels:
                    if info.gate != gate or case not in cases[info.name] or dtype not in dtypes_of(info):
                        continue
                    if not (case.long and dtype in HALF and REFERENCE in info.function.__module__):
                        yield info, case, dtype


@pytest.mark.parametrize("info, case, dtype", marked(list(rows()), axes, name, slow=slow, late=late))
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


STEP_KERNELS = [info for info in all_kernels(("step",)) if runs_on_cpu(info)]


@pytest.mark.parametrize(
    "info, case, dtype", marked(list(itertools.product(STEP_KERNELS, STEP_CASES, SHORT)), axes, name)
)
def test_step(info: KernelInfo, case: Case, dtype: torch.dtype, report: Report) -> None:
    for normalize in (True, False) if info.gate == "sigmoid" else (True,):
        measured = accuracy.measure(info, case, dtype, normalize)
        name = f"step {info.name}" + ("" if normalize else ", normalize=False")
        report.add(name, dtype, case.name, measured)
        accuracy.check(f"{name}, {SHORT[dtype]}, {case.name}", measured)


def test_every_kernel_has_rows(report: Report) -> None:
    for info in all_kernels(("chunkwise", "parallel", "sequence")):
        assert not runs_on_cpu(info) or list(cases_of(info)), info.name
