# SPDX-License-Identifier: Apache-2.0
"""How long a call's kernels would take on an MI300X, as the model of this folder has it, or on an MI250X or MI355X,
where GFX942_CHIP chooses their code. Nothing here was measured on AMD hardware: every time is predicted, and only the
error of an MI300X's is known.

for launch in predict(lambda: xlstm_hip.mlstm_interface(q, k, v, i, f)):
    print(launch.kernel, launch.microseconds, launch.waits())
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import builds
import device

HERE = Path(__file__).parent
CHIPS = {"gfx942": HERE / "mi300x.json", "gfx90a": HERE / "mi250x.json", "gfx950": HERE / "mi355x.json"}
CHIP = CHIPS[builds.CHIP]
INSTRUCTIONS = 2_000_000  # of waves, a launch: about ten seconds


@dataclass(frozen=True)
class Stall:
    """An instruction, and the cycles that waves waited before they issued it."""

    offset: int
    text: str
    executed: int
    stall: int
    reason: str
    source: str


@dataclass(frozen=True)
class Launch:
    """A launch, predicted. Cycles and counts are of the one compute unit that was simulated."""

    kernel: str
    microseconds: float
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    mhz: float
    error: float  # of the sampling, one standard deviation, relative
    workgroups: int
    sampled: int
    resident: int  # workgroups of a compute unit at once
    room: int  # and how many it has room for
    busy_cus: float
    group_cycles: float
    alone: float  # what a workgroup takes by itself, relative to that
    matrix_busy: float  # share of the time that the chip's matrix units work
    near_overlap: float  # share of lines that two workgroups of an XCD have in common at about the same time
    far_overlap: float  # and any two
    first_of_xcd: float
    first_of_chip: float
    warm: int
    lines: dict[str, int]  # of 128 bytes, by where they were found
    unit_cycles: int
    instructions: int
    wave_cycles: int
    unit_matrix_cycles: int
    unit_vector_cycles: int
    unit_lds_cycles: float
    spent: dict[str, int]
    stalls: tuple[Stall, ...]
    trace: tuple[tuple[int, ...], ...]  # workgroup, wave, SIMD, begin, end, which of `spent`

    def shares(self) -> dict[str, float]:
        """Of all waves' cycles."""
        return {name: cycles / max(1, self.wave_cycles) for name, cycles in self.spent.items()}

    def binds(self) -> str:
        """What most cycles of waves are spent on or wait for."""
        groups = {
            "MFMA": ("MFMA", "wait: MFMA unit", "wait: MFMA result"),
            "VALU": ("VALU", "wait: VALU port", "wait: result"),
            "memory": ("memory", "wait: memory", "wait: scalar memory"),
            "LDS": ("LDS", "wait: LDS"),
            "queues": ("wait: full queue",),
            "barriers": ("wait: barrier",),
            "instructions": ("SALU", "other", "wait: issue port", "wait: instructions", "s_nop, s_sleep"),
        }
        return max(groups, key=lambda group: sum(self.spent[name] for name in groups[group]))


def values_of(file: Path) -> dict[str, float]:
    """The constants of a chip. A file that is "like" another has those that differ."""
    content = json.loads(file.read_text(encoding="utf-8"))
    others = values_of(file.with_name(content["like"])) if "like" in content else {}
    return others | {name: x["value"] for name, x in content["constants"].items()}


def constants(**other: float) -> dict[str, float]:
    """Those of the chip, with others in the place of some."""
    found = values_of(CHIP)
    unknown = set(other) - set(found)
    if unknown:
        raise ValueError(f"constants: expected names of {CHIP.name}, got {', '.join(sorted(unknown))}")
    return found | other


@contextmanager
def recording(instructions: int = INSTRUCTIONS) -> Iterator[None]:
    """Launches in here are recorded: as many workgroups as make about so many wave instructions. Results of the call
    are then incomplete, so it must not decide by them what to do."""
    device.forget_recordings()
    device.set_recording(instructions)
    try:
        yield
    finally:
        device.set_recording(0)


def timed(*, mhz: float = 0, warm: bool = True, trace: int = 0, chip: dict[str, float] | None = None) -> list[Launch]:
    """The launches that were recorded. mhz: of the compute units, or what power leaves them; warm: the call was made
    before, and what fits into the Infinity Cache is there; trace: how many stretches of waves' time are kept."""
    lines = "\n".join(f"{name} {value}" for name, value in (chip or constants()).items())
    found = device.described("gfx942_time_json", lines.encode(), f"mhz {mhz}\nwarm {int(warm)}\ntrace {trace}".encode())
    return [launch_of(x) for x in found]


def launch_of(x: dict[str, Any]) -> Launch:
    stalls = tuple(Stall(**s) for s in x.pop("stalls"))
    trace = tuple(tuple(t) for t in x.pop("trace"))
    return Launch(**x | {"grid": tuple(x["grid"]), "block": tuple(x["block"]), "stalls": stalls, "trace": trace})


def predict(call: Callable[[], object], instructions: int = INSTRUCTIONS, **options: Any) -> list[Launch]:
    with recording(instructions):
        call()
    found = timed(**options)
    device.forget_recordings()
    return found
