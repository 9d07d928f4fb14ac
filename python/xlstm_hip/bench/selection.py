# SPDX-License-Identifier: Apache-2.0
"""Whether get_optimal_kernel_config chooses well: every kernel that a regime may name, timed over a grid.

At each point the fastest kernel that gives right results is the oracle's; a regime's own choice is held to it by the
median of the rounds' ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..mlstm.select import AMD, FUSED, HYBRID, NATIVE, REGIMES, STOCK, get_optimal_kernel_config
from .mlstm_contenders import beyond_triton, by_kernel, by_step_kernel
from .mlstm_points import CHUNK, Cell
from .registry import OFFICIAL, PLAIN, XLSTM_HIP, Implementation, Point, Scale
from .timing import paired_ratio

NEAR = 1.05  # a choice that takes at most so many times the best one's time is as good
AIM = 0.95  # of the points
KEYS = ("chunkwise_kernel", "sequence_kernel", "step_kernel")
# The kernel of a config that does each work, and the name of that work in bench.mlstm.
WORKS = {
    "forward": ("chunkwise_kernel", "forward"),
    "backward": ("chunkwise_kernel", "forward+backward"),
    "sequence": ("sequence_kernel", "forward"),
    "step": ("step_kernel", "step"),
}


def _kernels(work: str) -> tuple[Implementation, ...]:
    index = KEYS.index(WORKS[work][0])
    prepare = by_step_kernel if work == "step" else by_kernel
    implementations = {}
    for config in (FUSED, NATIVE, STOCK, HYBRID, AMD):
        name = config[index]
        triton = "triton" in name
        provider = OFFICIAL if triton else XLSTM_HIP if "fused" in name else PLAIN
        # Elsewhere a Triton name is the fused kernel's.
        limits: dict[str, Any] = {"devices": ("cuda",), "beyond": beyond_triton} if triton else {}
        implementations[name] = Implementation(
            name, provider, prepare(name), triton=triton, llvm_opt="xl_chunk" not in name, **limits
        )
    return tuple(implementations.values())


KERNELS = {work: _kernels(work) for work in WORKS}


def points(scale: Scale, work: str) -> list[Point]:
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    dims: tuple[int, ...]
    if scale.quick:
        batches, lengths, dims, heads_wide, most = (1,), (32,), (64,), 128, 64
    elif scale.gpu:
        batches, lengths, dims, heads_wide, most = (1, 8, 64), (16, 64, 500, 2048, 8192), (128, 256, 512), 4096, 1 << 17
    else:
        batches, lengths, dims, heads_wide, most = (1, 4), (16, 100, 1024), (64, 128, 256), 512, 4096
    bench_work = WORKS[work][1]
    if work == "step":
        lengths = (1,)
    elif work == "sequence":  # what a chunkwise kernel leaves over, and short prompts
        lengths = tuple(x for x in lengths if x < 2 * CHUNK)
    return [
        Point("selection", f"B{b} S{s} {d // 2}/{d}", Cell(bench_work, dtype, b, heads_wide // d, s, d // 2, d, CHUNK))
        for dtype in scale.dtypes
        for b in batches
        for s in lengths
        for d in dims
        if b * s <= most
    ]


def chosen(work: str, cell: Cell, device: torch.device) -> dict[str, str]:
    """The kernel of each regime, here and now; a Triton name that is the fused kernel's here goes by that."""
    key, fused = WORKS[work][0], FUSED[KEYS.index(WORKS[work][0])]
    stand_ins = {x.name for x in KERNELS[work] if x.triton and x.missing(device) is not None}
    found = {}
    for regime in REGIMES:
        names = get_optimal_kernel_config(cell.batch, cell.tokens, max(cell.dqk, cell.dhv), regime, device)
        name = str({**names}[key])
        found[regime] = fused if name in stand_ins else name
    return found


# ---- from a result file


@dataclass(frozen=True)
class Choice:
    """The kernel that a regime names at a point, beside the oracle's."""

    operator: str
    size: str
    dtype: str
    regime: str
    kernel: str
    best: str
    times_best: float  # infinite where it was not timed

    @property
    def near(self) -> bool:
        return self.times_best <= NEAR


def choices(results: dict[str, Any]) -> Iterator[Choice]:
    for point in results["points"]:
        if point["series"] != "selection":
            continue
        timed = (entry for entry in point.get("entries", ()) if "ms" in entry and not entry.get("inexact"))
        entries = {entry["name"]: entry["ms"] for entry in timed}
        if len(entries) < 2:  # one alone proves nothing
            continue
        best = min(entries, key=lambda name: entries[name]["median"])
        for regime, kernel in point["choices"].items():
            ratio = math.inf  # of one that was wrong, did not run, or took too long
            if kernel in entries:
                ratio = max(1.0, paired_ratio(entries[kernel]["samples"], entries[best]["samples"])["median"])
            shape = point["shape"]
            yield Choice(point["operator"], shape["size"], shape["dtype"], regime, kernel, best, ratio)
