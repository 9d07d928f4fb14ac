# SPDX-License-Identifier: Apache-2.0
"""What each unit of an MI300X would need alone for the kernels that ran, from the interpreter's counters.

It is a bound, not a time: an interpreter has no clock, no caches and no HBM. Work is taken to spread evenly over as
many compute units as there are workgroups, and waves to hide all latency.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path

from device import Counters
from occupancy import FAMILIES, SHARED_LDS, SIMDS

HZ = 2.1e9
MEMORY = 5.3e12  # bytes a second
CUS = 304
L1_BYTES = 64  # a clock, of a CU
LINE = 128
ISSUE = 4  # cycles between two instructions of one kind on a SIMD


@dataclass
class Row:
    """A kernel at one shape. Times in microseconds, for all its launches together."""

    kernel: str
    launches: int
    workgroups: int
    waves_of_workgroup: int
    vgprs: int
    lds_bytes: int
    waves_of_simd: int  # at once, by registers and LDS
    instructions: int  # of waves
    active: float  # share of lanes that were on, in vector and memory instructions
    matrix: float
    vector: float
    transcendental: float
    scalar: float
    lds: float
    conflicts: float  # share of LDS cycles
    l1: float
    moved_bytes: int  # to and from memory by all waves, whatever a cache kept
    counted: float = 1.0  # share of the workgroups that ran
    executed: dict[str, int] = field(default_factory=dict)  # wave instructions by unit

    def units(self) -> dict[str, float]:
        """Vector and transcendental instructions leave through the same port."""
        valu = self.vector + self.transcendental
        return {"MFMA": self.matrix, "VALU": valu, "SALU": self.scalar, "LDS": self.lds, "L1": self.l1}

    @property
    def memory(self) -> float:
        """What memory would take if no cache kept a byte: a bound where each is used once."""
        return self.moved_bytes / MEMORY * 1e6

    @property
    def binds(self) -> str:
        return max(self.units().items(), key=lambda item: item[1])[0]

    @property
    def overlapped(self) -> float:
        """Share of MFMA peak if every unit worked at the same time."""
        most = max(self.units().values())
        return self.matrix / most if most else 0.0

    @property
    def serial(self) -> float:
        """And if only one unit worked at a time."""
        total = sum(self.units().values())
        return self.matrix / total if total else 0.0


def waves_of_simd(vgprs: int, waves: int, lds: int) -> int:
    """Of a workgroup's own, and of as many others as registers and LDS leave room for."""
    by_registers = FAMILIES["cdna"].waves(vgprs) * SIMDS // max(waves, 1)
    by_lds = SHARED_LDS["cdna"] // lds if lds else by_registers
    return max(1, min(by_registers, by_lds) * waves // SIMDS)


def row_of(c: Counters, name: str) -> Row:
    """Waves, LDS and compute units are those of the largest of its launches."""
    launched = sum(prod(shape.grid) * shape.launches for shape in c.shapes)
    largest = max(c.shapes, key=lambda shape: prod(shape.grid))
    waves = -(-prod(largest.block) // 64)
    lds_bytes = c.kernel.lds_bytes + largest.dynamic_lds
    cus = min(CUS, prod(largest.grid))
    # SIMDs that have a wave: where a workgroup has a CU to itself and fewer waves than SIMDs, some are idle.
    simds = cus * (min(SIMDS, waves) if prod(largest.grid) <= CUS else SIMDS)
    scale = launched / c.workgroups  # where only a sample ran

    def on_simds(count: float) -> float:
        return count * scale / simds / HZ * 1e6

    def on_cus(count: float) -> float:
        return count * scale / cus / HZ * 1e6

    executed: dict[str, int] = defaultdict(int)
    cycles: dict[str, int] = defaultdict(int)
    for i in c.instructions:
        executed[i.unit] += i.executed
        cycles[i.unit] += i.executed * i.cycles
    by_lanes = [i for i in c.instructions if i.unit in ("vector", "transcendental", "memory", "lds")]
    slots = 64 * sum(i.executed for i in by_lanes)
    lds = sum(i.lds_cycles for i in c.instructions)
    return Row(
        kernel=name,
        launches=c.launches,
        workgroups=launched,
        waves_of_workgroup=waves,
        vgprs=c.kernel.vgprs,
        lds_bytes=lds_bytes,
        waves_of_simd=waves_of_simd(c.kernel.vgprs, waves, lds_bytes),
        instructions=round(sum(executed.values()) * scale),
        active=sum(i.lanes for i in by_lanes) / slots if slots else 1.0,
        matrix=on_simds(cycles["matrix"]),
        vector=on_simds(cycles["vector"]),
        transcendental=on_simds(cycles["transcendental"]),
        scalar=on_simds(ISSUE * (executed["scalar"] + executed["branch"])),
        lds=on_cus(lds),
        conflicts=1 - sum(i.lds_ideal_cycles for i in c.instructions) / lds if lds else 0.0,
        l1=on_cus(sum(i.lines for i in c.instructions) * LINE / L1_BYTES),
        moved_bytes=round(sum(i.bytes for i in c.instructions) * scale),
        counted=1 / scale,
        executed={unit: round(count * scale) for unit, count in executed.items()},
    )


COLUMNS = [
    *("kernel", "workgroups", "waves a SIMD", "MFMA", "VALU", "SALU", "LDS", "L1", "memory", "binds"),
    *("MFMA peak, overlapped", "MFMA peak, serial", "LDS conflicts", "lanes on"),
]


def markdown(rows: list[Row]) -> str:
    """Times in microseconds."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * 8 + "---|" + "---:|" * 4]
    for row in rows:
        times = (f"{us:.1f}" for us in (*row.units().values(), row.memory))
        matrix = [f"{row.overlapped:.0%}", f"{row.serial:.0%}"] if row.matrix else ["", ""]
        shares = (*matrix, f"{row.conflicts:.0%}", f"{row.active:.0%}")
        cells = (f"`{row.kernel}`", str(row.workgroups), str(row.waves_of_simd), *times, row.binds, *shares)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(path: Path, tables: dict[str, list[Row]]) -> None:
    """JSON: the rows of each shape."""
    chip = {"name": "MI300X", "cus": CUS, "simds": SIMDS, "hz": HZ, "l1_bytes_a_clock": L1_BYTES, "memory": MEMORY}
    content = {"chip": chip, "shapes": {title: [asdict(row) for row in rows] for title, rows in tables.items()}}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, list[Row]]:
    shapes = json.loads(path.read_text(encoding="utf-8"))["shapes"]
    return {title: [Row(**row) for row in rows] for title, rows in shapes.items()}


def rows_that_count(rows: list[Row]) -> list[Row]:
    """Those that need a twentieth or more of what the largest does."""
    need = [max(row.units().values()) for row in rows]
    return [row for row, of_row in zip(rows, need, strict=True) if of_row >= 0.05 * max(need)]


def plot(path: Path, tables: dict[str, list[Row]]) -> None:
    """A group of bars per kernel that counts: what each unit needs, the one that binds in full colour."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = {title: rows_that_count(rows) for title, rows in tables.items()}
    units = ["MFMA", "VALU", "SALU", "LDS", "L1"]
    colours = ["#c0392b", "#2980b9", "#8e44ad", "#27ae60", "#7f8c8d"]
    height = sum(0.55 * len(rows) + 1.2 for rows in tables.values())
    figure, panels = plt.subplots(
        len(tables), 1, figsize=(10, height), squeeze=False, height_ratios=[len(rows) + 1 for rows in tables.values()]
    )
    for panel, (title, rows) in zip(panels[:, 0], tables.items(), strict=True):
        for k, (unit, colour) in enumerate(zip(units, colours, strict=True)):
            positions = [y + (k - 2) * 0.16 for y in range(len(rows))]
            bars = panel.barh(positions, [row.units()[unit] for row in rows], 0.15, color=colour, label=unit)
            for bar, row in zip(bars, rows, strict=True):
                bar.set_alpha(1.0 if row.binds == unit else 0.45)
        panel.set_yticks(range(len(rows)), [row.kernel for row in rows], fontsize=8)
        panel.invert_yaxis()
        panel.set_title(title, fontsize=10, loc="left")
        panel.set_xlabel("µs that the unit needs alone: a bound from counted instructions, not a time", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(fontsize=8, ncols=5, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
