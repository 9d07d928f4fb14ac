# SPDX-License-Identifier: Apache-2.0
"""The search space of a problem: the values of each choice, the plan's own first."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from .._core.plans import BANDS, CHOICES, PATHS, Plan
from ..mlstm.registry import kernel_info
from ..mlstm.triton_peers import peers_usable
from .problem import Problem

SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_SEGMENT, LEAST_SPLIT, LEAST_PART = 16, 32, 16  # tokens, keys, rows of a key head
OWNED = 128  # keys of a block, of most kernels of attention's backward pass on a GPU
TASKS = 8  # of a compute unit or thread, beyond which more parts of the rows are not tried: each has sums in memory


@dataclass(frozen=True)
class Space:
    """Choices by name, each with its values; and the plan that is to be beaten."""

    values: dict[str, tuple]
    shipped: Plan = field(default_factory=dict)

    def candidates(self) -> list[Plan]:
        """Every plan but the shipped one, in one order. Kernels that are not fused have their chunk size alone, and
        kernels in bands what cuts those."""
        plans = [
            {name: value for name, value in zip(self.values, chosen, strict=True) if value}
            for chosen in itertools.product(*self.values.values())
        ]
        complete = [plan for plan in plans if "kernel" not in plan or set(plan) <= {"kernel", "chunk_size", *BANDS}]
        return [plan for plan in complete if plan != self.shipped]


def space_of(problem: Problem, threads: int, kernel: str | None = None) -> Space:
    """threads: of the CPU, whose segments shall fill them. kernel: one in bands, whose choices alone are tried."""
    if kernel is not None:
        return _in_bands(problem, threads, kernel)
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
        "row_panels": (0,) if gpu else (0, 1, 2, 3, 6, 8),
        "parts": (0, *_parts_of_rows(problem, threads)),
        "path": tuple(range(len(PATHS))),
        "common_schedule": (0, 1) if problem.arch.startswith("sm_90a") else (0,),
    }
    values = {name: possible[name] for name in CHOICES[problem.op] if len(possible.get(name, ())) > 1}
    return Space(values, problem.shipped())


def _in_bands(problem: Problem, threads: int, kernel: str) -> Space:
    """The plans of kernels whose heads go to workers in bands. torch.compile makes these kernels, so every trial begins
    with a minute of compiling, and other spaces do not contain them."""
    info = kernel_info(kernel, "chunkwise")
    options = [name for name in BANDS if name in info.options]
    if problem.op != "mlstm_chunkwise" or not options:
        raise ValueError(
            f"kernel: expected one of mlstm_chunkwise in bands (chunkwise--queued_compiled_steps, "
            f"chunkwise--ray_compiled_steps), got {kernel!r} for {problem.op}"
        )
    gpu = problem.on.type == "cuda"
    possible = {
        "heads_per_band": tuple(n for n in (1, 2, 4, 8, 16) if n < problem.heads),
        "workers": (1, 2, 4) if gpu else tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if n <= threads),
        "streams": (1, 2, 4, 8) if gpu else (),
    }
    chunks = tuple(n for n in (16, 32, 64, 128) if n // 2 < problem.length)
    values = {"kernel": (kernel,), "chunk_size": (0, *chunks)} | {name: (0, *possible[name]) for name in options}
    return Space({name: x for name, x in values.items() if x != (0,)}, problem.shipped())


def _parts_of_rows(problem: Problem, threads: int) -> tuple[int, ...]:
    heads_k = problem.heads_k or problem.heads
    rows = (problem.queries or problem.length) * problem.heads // heads_k
    tasks, at_once = problem.batch * heads_k, threads
    if problem.on.type == "cuda":
        tasks, at_once = tasks * -(-problem.length // OWNED), int(problem.arch.rpartition("/")[2])
    return tuple(n for n in PARTS if n == 1 or (n * LEAST_PART <= rows and n * tasks <= TASKS * at_once))


def _other_kernels(problem: Problem) -> tuple[str, ...]:
    triton = problem.on.type == "cuda" and peers_usable()
    if problem.op == "mlstm_chunkwise":
        return "chunkwise--native_autograd", *(("chunkwise--triton_xl_chunk",) if triton else ())
    if problem.op == "mlstm_step":
        return "native", *(("triton",) if triton else ())
    return ()
