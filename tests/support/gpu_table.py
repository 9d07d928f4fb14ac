# SPDX-License-Identifier: Apache-2.0
"""The table of shapes for the fused kernels on a GPU: each row poisoned, run twice, and held to the float64 truth.

Truth and plain torch run on the GPU too, in full precision. Nothing here needs pytest, which the machine with the GPU
may lack (gpu_runner.py). It all runs on the CPU as well, to try it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from support import accuracy
from support.accuracy import Measured, Quantities
from support.poison import poisoned
from support.report import SHORT
from support.shapes import CASES, GPU_CASES, GPU_STEP_CASES, STEP_CASES, WITHOUT_NORMALISER, Case
from xlstm_hip import KernelInfo, kernel_info
from xlstm_hip._core.checks import GPU_DTYPES

SEQUENCE_KERNELS = ("chunkwise--fused", "chunkwise--fused_siging", "fused", "fused_siging")
STEP_KERNELS = ("fused", "fused_siging")


@dataclass(frozen=True)
class Row:
    case: Case
    info: KernelInfo
    dtype: torch.dtype
    normalize: bool = True

    @property
    def kernel(self) -> str:
        kind = "step " if self.info.kind == "step" else ""
        return f"{kind}{self.info.name}{'' if self.normalize else ', normalize=False'}"

    def __str__(self) -> str:
        return f"{self.case.name}-{self.kernel}-{SHORT[self.dtype]}"


def rows() -> Iterator[Row]:
    """The most at risk first: what GPU plans tell apart, then the table that every kernel is held to.

    The case is outermost, then gate and dtype, so that truth and tolerance are computed once.
    """
    sequence = [kernel_info(name, ("chunkwise", "sequence")) for name in SEQUENCE_KERNELS]
    step = [kernel_info(name, "step") for name in STEP_KERNELS]
    short = [case for case in GPU_CASES if not case.long]
    for case in (*GPU_STEP_CASES, *short, *(c for c in GPU_CASES if c.long), *STEP_CASES, *CASES):
        for gate in ("exp", "sigmoid"):
            kernels = [info for info in (step if case in (*STEP_CASES, *GPU_STEP_CASES) else sequence)]
            for dtype in GPU_DTYPES:
                yield from (Row(case, info, dtype) for info in kernels if info.gate == gate)
                if gate == "sigmoid" and (kernels is step or case in WITHOUT_NORMALISER or case in short[::4]):
                    yield from (Row(case, info, dtype, False) for info in kernels if info.gate == gate)


def full_precision() -> None:
    """Plain torch at its best: no TF32, no sums in half precision."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def same_bits(label: str, actual: Quantities | dict[str, Tensor], expected: Quantities | dict[str, Tensor]) -> None:
    """NaN is never the same."""
    for name, x in expected.items():
        y = actual[name]
        assert y.shape == x.shape and y.dtype == x.dtype, f"{label}: {name}: {y.dtype} {y.shape}, {x.dtype} {x.shape}"
        wrong = int((y != x).sum())
        assert not wrong, (
            f"{label}: {name}: {wrong} of {x.numel()} values have other bits, "
            f"{float((y.double() - x.double()).abs().max()):.3g} apart at most"
        )


def measure(row: Row, device: str, truth_on: str | None = None) -> tuple[Measured, list[str]]:
    """Errors and tolerances, and what is wrong in words. Truth and plain torch may run on another device."""
    truth_on = truth_on or device
    inputs, cotangents = accuracy.inputs_on(row.case, row.dtype, device)
    call = accuracy.call_of(row.info, row.case, row.normalize)
    with poisoned():
        actual = accuracy.quantities(call, inputs, cotangents)
    moved = {name: x.to(truth_on) for name, x in actual.items()}
    measured = accuracy.judge(row.info, row.case, row.dtype, moved, row.normalize, truth_on)
    problems = []
    for check in (
        lambda: accuracy.check(str(row), measured),
        lambda: same_bits(f"{row}, again", accuracy.quantities(call, inputs, cotangents), actual),
    ):
        try:
            check()
        except AssertionError as error:
            problems.append(str(error))
    return measured, problems
