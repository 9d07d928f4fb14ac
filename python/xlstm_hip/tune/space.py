# SPDX-License-Identifier: Apache-2.0
"""What may be chosen for a problem: for each choice the values that are tried, the plan's own first."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ..peers import peers_usable
from ..plans import CHOICES, Plan
from .problem import Problem

SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LEAST_SEGMENT, LEAST_SPLIT = 16, 32  # tokens, keys


@dataclass(frozen=True)
class Space:
    """Choices by name, each with its values; and the plan that is to be beaten."""

    values: dict[str, tuple]
    shipped: Plan = field(default_factory=dict)

    def candidates(self) -> list[Plan]:
        """Every plan but the shipped one, in one order. Kernels that are not fused have their chunk size alone."""
        plans = [
            {name: value for name, value in zip(self.values, chosen, strict=True) if value}
            for chosen in itertools.product(*self.values.values())
        ]
        whole = [plan for plan in plans if "kernel" not in plan or set(plan) <= {"kernel", "chunk_size"}]
        return [plan for plan in whole if plan != self.shipped]


def space_of(problem: Problem, threads: int) -> Space:
    """threads: of the CPU, whose segments shall fill them."""
    gpu = problem.on.type == "cuda"
    length = problem.length
    cuts = {0, *SEGMENTS} if gpu else {0, *SEGMENTS[:6], threads, 2 * threads, 4 * threads}
    possible: dict[str, tuple] = {
        "kernel": (0, *_other_kernels(problem)),
        "chunk_size": (0,) if gpu else (0, *(n for n in (16, 32, 128, 256) if n // 2 < length)),
        "segments": tuple(sorted(n for n in cuts if n * LEAST_SEGMENT <= length)),
        "walk_chunk": (0, 16, 32) if gpu else (0,),
        "step_columns": (0, 8, 16, 32) if gpu else (0,),
        "block_size": (0,) if gpu else (0, 32, 64, 128, 256),
        "splits": (0, *(n for n in SPLITS if n * LEAST_SPLIT <= length and (gpu or n <= 4 * threads))),
    }
    values = {name: possible[name] for name in CHOICES[problem.op] if len(possible[name]) > 1}
    return Space(values, problem.shipped())


def _other_kernels(problem: Problem) -> tuple[str, ...]:
    triton = problem.on.type == "cuda" and peers_usable()
    if problem.op == "mlstm_chunkwise":
        return "chunkwise--native_autograd", *(("chunkwise--triton_xl_chunk",) if triton else ())
    if problem.op == "mlstm_step":
        return "native", *(("triton",) if triton else ())
    return ()
