# SPDX-License-Identifier: Apache-2.0
"""A call, predicted kernel by kernel, and what its waves execute: what calls of this package and of others are compared
by. Times are predicted; counts are of executed code, scaled up from the workgroups that ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import device
import roofline
import timing
from timing import Launch

PRODUCT_CYCLES = 16  # of a 16x16x16 product in bfloat16
LINE = 128
CAUSES = 3  # that a kernel's row keeps
INSTRUCTIONS = 1_000_000  # of waves, a launch
# Where parts of the keys have two lengths: a sample of few workgroups has them in another proportion.
INSTRUCTIONS_OF_UNEVEN_PARTS = 8_000_000


@dataclass(frozen=True)
class Counts:
    """Wave instructions of all waves; products of 16x16x16; bytes."""

    products: float = 0
    vector: float = 0
    scalar: float = 0
    waits: float = 0
    lds: float = 0
    memory: float = 0
    barriers: float = 0
    moved: float = 0  # to and from waves, whatever a cache kept
    far: float = 0  # from the Infinity Cache and from HBM, and stored

    def __add__(self, other: Counts) -> Counts:
        mine, others = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + others[name] for name in mine})


@dataclass(frozen=True)
class KernelTime:
    """A kernel's launches in one call."""

    kernel: str
    launches: int
    microseconds: float
    mhz: float  # of the longest of them, as what follows
    matrix_busy: float
    workgroups: int
    waves: float  # of a SIMD at once
    error: float  # of the sampling
    binds: str
    causes: dict[str, float]  # where waves' cycles go: the largest shares
    counts: Counts

    @classmethod
    def of(cls, name: str, launches: Sequence[Launch], counted: device.Counters) -> KernelTime:
        longest = max(launches, key=lambda x: x.microseconds)
        causes = sorted(longest.shares().items(), key=lambda item: -item[1])[:CAUSES]
        return cls(
            kernel=name,
            launches=len(launches),
            microseconds=round(sum(x.microseconds for x in launches), 3),
            mhz=round(longest.mhz),
            matrix_busy=round(longest.matrix_busy, 4),
            workgroups=longest.workgroups,
            waves=round(longest.resident * -(-prod(longest.block) // 64) / roofline.SIMDS, 2),
            error=round(longest.error, 4),
            binds=longest.binds(),
            causes={what: round(share, 3) for what, share in causes},
            counts=counts_of(counted, launches),
        )

    @property
    def causes_text(self) -> str:
        """Where waves' cycles go, in words."""
        return ", ".join(f"{what} {share:.0%}" for what, share in self.causes.items())

    @classmethod
    def read(cls, x: dict[str, Any]) -> KernelTime:
        return cls(**x | {"counts": Counts(**x["counts"])})


def counts_of(counted: device.Counters, launches: Sequence[Launch]) -> Counts:
    launched = sum(prod(shape.grid) * shape.launches for shape in counted.shapes)
    scale = launched / counted.workgroups
    by_unit: dict[str, float] = {}
    for i in counted.instructions:
        by_unit[i.unit] = by_unit.get(i.unit, 0) + scale * i.executed
    executed = sum(by_unit.values())
    played = sum(x.instructions for x in launches)
    far = sum(x.lines[where] for x in launches for where in ("mall", "hbm", "stored"))
    matrix = sum(i.executed * i.cycles for i in counted.instructions if i.unit == "matrix")
    found = Counts(
        products=scale * matrix / PRODUCT_CYCLES,
        vector=by_unit.get("vector", 0) + by_unit.get("transcendental", 0),
        scalar=by_unit.get("scalar", 0) + by_unit.get("scalar_memory", 0) + by_unit.get("branch", 0),
        waits=by_unit.get("wait", 0),
        lds=by_unit.get("lds", 0),
        memory=by_unit.get("memory", 0),
        barriers=by_unit.get("barrier", 0),
        moved=scale * sum(i.bytes for i in counted.instructions),
        far=LINE * far * executed / max(1, played),
    )
    return Counts(**{name: round(x) for name, x in asdict(found).items()})


def predicted(
    call: Callable[[], object], instructions: int, names: Callable[[list[str]], list[str]], **options: Any
) -> list[KernelTime]:
    """The longest first. names: of kernels, as people write them; options: those of timing.timed."""
    device.reset_counters()
    launches = timing.predict(call, instructions, **options)
    counted = {c.kernel.name: c for c in device.counters()}
    by_kernel: dict[str, list[Launch]] = {}
    for launch in launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    shown = names(list(by_kernel))
    found = [KernelTime.of(name, of, counted[k]) for name, (k, of) in zip(shown, by_kernel.items(), strict=True)]
    return sorted(found, key=lambda x: -x.microseconds)


def combined(terms: Sequence[tuple[int, Sequence[KernelTime]]]) -> list[KernelTime]:
    """A sum of calls, each so many times. What a term takes away must be in the others."""
    sums: dict[str, dict[str, Any]] = {}
    for times, kernels in terms:
        for x in kernels:
            found = sums.setdefault(
                x.kernel, asdict(x) | {"launches": 0, "microseconds": 0, "counts": asdict(Counts())}
            )
            found["launches"] += times * x.launches
            found["microseconds"] += times * x.microseconds
            found["counts"] = {name: y + times * getattr(x.counts, name) for name, y in found["counts"].items()}
    rows = [KernelTime.read(x | {"microseconds": round(x["microseconds"], 3)}) for x in sums.values() if x["launches"]]
    return sorted(rows, key=lambda x: -x.microseconds)


def joined(calls: Sequence[KernelTime]) -> list[KernelTime]:
    """Launches that were predicted one by one, those of a kernel together; the rest of a row is the longest's."""
    return combined([(1, sorted(calls, key=lambda x: -x.microseconds))])


def total(kernels: Sequence[KernelTime]) -> float:
    return sum(x.microseconds for x in kernels)


def all_counts(kernels: Sequence[KernelTime]) -> Counts:
    return sum((x.counts for x in kernels), Counts())
