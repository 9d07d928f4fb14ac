# SPDX-License-Identifier: Apache-2.0
"""Predicted times of the calls of docs/amd_roofline.md: docs/amd_time.md, from docs/amd_time.json.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support:tests/gfx942/roofline:tests/gfx942/clock
python tests/gfx942/clock/time_page.py                  shows the tables
python tests/gfx942/clock/time_page.py --write          and writes docs/amd_time.*
python tests/gfx942/clock/time_page.py --write 'MLA'    of the tables with this in their title; the others stay
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import hypot
from statistics import median

import builds
import calibrate
import timing
from timing import Launch

PAGE, DATA = (builds.ROOT / "docs" / f"amd_time.{end}" for end in ("md", "json"))
INSTRUCTIONS = 1_000_000  # of waves, a launch
SHOWN = 0.02  # of a call's time: what takes less is summed up
LIKE_THE_MEASURED = 0.2  # share of the time that matrix units work, from which the measured kernels say something


@dataclass(frozen=True)
class Row:
    kernel: str
    launches: int
    microseconds: float  # of all launches
    mhz: float
    matrix_busy: float
    workgroups: int
    sampled: int
    resident: int
    error: float  # of the sampling
    binds: str
    waits: str  # the three largest shares of waves' cycles

    @classmethod
    def of(cls, kernel: str, launches: Sequence[Launch]) -> Row:
        longest = max(launches, key=lambda x: x.microseconds)
        largest = sorted(longest.shares().items(), key=lambda item: -item[1])[:3]
        return cls(
            kernel=kernel,
            launches=len(launches),
            microseconds=round(sum(x.microseconds for x in launches), 2),
            mhz=round(longest.mhz),
            matrix_busy=round(longest.matrix_busy, 3),
            workgroups=longest.workgroups,
            sampled=longest.sampled,
            resident=longest.resident,
            error=round(longest.error, 4),
            binds=longest.binds(),
            waits=", ".join(f"{what} {share:.0%}" for what, share in largest),
        )


def rows_of(launches: list[Launch]) -> list[Row]:
    from rooflines import demangled

    by_kernel: dict[str, list[Launch]] = {}
    for name, launch in zip(demangled([x.kernel for x in launches]), launches, strict=True):
        by_kernel.setdefault(name, []).append(launch)
    return sorted((Row.of(name, found) for name, found in by_kernel.items()), key=lambda row: -row.microseconds)


def read() -> dict[str, list[Row]]:
    return {title: [Row(**row) for row in rows] for title, rows in json.loads(DATA.read_text(encoding="utf-8")).items()}


# ---- the page


def held_out() -> list[calibrate.Point]:
    role = json.loads(calibrate.MEASURED.read_text(encoding="utf-8"))["held out"]
    return [p for p in calibrate.results() if p.kernel == role]


def error_bar(row: Row) -> str:
    """The largest error of the kernel that was held out, and twice the sampling's."""
    if row.matrix_busy < LIKE_THE_MEASURED:
        return "unknown"
    return f"+-{hypot(max(abs(p.error) for p in held_out()), 2 * row.error):.0%}"


def errors() -> str:
    lines = ["| measured by others on an MI300X | points | predicted / measured | median error | largest |"]
    lines.append("|---|---:|---|---:|---:|")
    roles = json.loads(calibrate.MEASURED.read_text(encoding="utf-8"))
    for role in ("calibration", "held out"):
        of_role = [p for p in calibrate.results() if p.kernel == roles[role]]
        sizes = [abs(p.error) for p in of_role]
        ratios = [1 + p.error for p in of_role]
        lines.append(
            f"| {roles[role]}, attention forward ({role}) | {len(of_role)} | {min(ratios):.2f} to {max(ratios):.2f} | "
            f"{median(sizes):.0%} | {max(sizes):.0%} |"
        )
    return "\n".join(lines)


def constants_list() -> str:
    content = json.loads(timing.CHIP.read_text(encoding="utf-8"))
    lines = []
    for kind in ("fitted", "assumed"):
        for name, why in content[kind].items():
            lines.append(f"| `{name}` | {content['constants'][name]['value']} | {kind} | {why} |")
    return "\n".join(["| constant | value | | why |", "|---|---:|---|---|", *lines])


HEAD = """\
# AMD: predicted times on an MI300X

Made by `tests/gfx942/clock/time_page.py --write`. **Every time here is predicted by a model; nothing was measured on
AMD hardware.** An interpreter runs the package's calls as gfx942 code
([AMD without an AMD GPU](amd-without-amd.md)) and records what waves do; the model (`tests/gfx942/clock`) gives each
instruction its time on one compute unit, and the launch its share of caches and memory.

## How far to trust it

{errors}

- The clock under load was fitted by AITER's times. Two constants, `matrix_blocks_vector` and `lds_latency`, were chosen
  by an earlier trial that saw both kernels; nothing else of the held-out kernel's times was used.
- The kernels above are bound by the matrix units. No measured time of a memory-bound kernel was at hand whose code
  object could be run here: for these the model stands on published bandwidths and assumed latencies alone.
- What a comparison of two builds shows is steadier than a time: the same constants stand behind both.
- The calls are those of the roofline: cached keys and values are one tensor there, or all sequences share 16 pages, so
  that caches hold more of them than in earnest.
- *error bar*: the largest error of the held-out kernel, with two standard deviations of the sampling, since a kernel is
  simulated for some of its workgroups. It is given where matrix units work a fifth of the time or more; of other
  kernels it is unknown.
- Repeated calls: what fits into the 256 MB of Infinity Cache is there from the call before. Latency of a launch is in
  each time; the host is not.
- Not modelled: translation of addresses, channels of HBM and of L2 that collide, atomics on one address by several
  compute units, fetch of instructions beyond the cache's lines, and power but for the matrix units' share.

## Constants that no document gives

{constants}

The others, with their sources, are in `tests/gfx942/clock/mi300x.json`.
"""

COLUMNS = (
    *("kernel", "launches", "predicted, us", "error bar", "MHz", "MFMA busy", "workgroups", "at once", "binds"),
    "where waves' cycles go",
)


def markdown(rows: list[Row]) -> str:
    total = sum(row.microseconds for row in rows)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * 7 + "---|---|"]
    small = [row for row in rows if row.microseconds < SHOWN * total]
    for row in (row for row in rows if row not in small):
        cells = (
            *(f"`{row.kernel}`", str(row.launches), f"{row.microseconds:.1f}", error_bar(row), f"{row.mhz:.0f}"),
            *(f"{row.matrix_busy:.0%}", str(row.workgroups), str(row.resident), row.binds, row.waits),
        )
        lines.append("| " + " | ".join(cells) + " |")
    if small:
        rest = f"{sum(row.microseconds for row in small):.1f}"
        lines.append(f"| {len(small)} others | {sum(row.launches for row in small)} | {rest} |" + " |" * 7)
    lines.append(f"| **all** | {sum(row.launches for row in rows)} | **{total:.1f}** |" + " |" * 7)
    return "\n".join(lines) + "\n"


def page(tables: dict[str, list[Row]]) -> str:
    lines = [HEAD.format(errors=errors(), constants=constants_list())]
    for title, rows in tables.items():
        lines += [f"## {title}", "", markdown(rows)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    if arguments[:1] not in ([], ["--write"]) or len(arguments) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    import emulated_torch

    emulated_torch.import_package()
    from roofline_shapes import SHAPES

    before = read() if DATA.exists() else {}
    tables = {}
    for shape in SHAPES:
        if arguments[1:] and arguments[1] not in shape.title:
            if shape.title in before:
                tables[shape.title] = before[shape.title]
            continue
        print(shape.title, flush=True)
        tables[shape.title] = rows_of(timing.predict(shape.run, INSTRUCTIONS))
        print(markdown(tables[shape.title]), flush=True)
        if arguments:
            rows = {title: [asdict(row) for row in found] for title, found in {**before, **tables}.items()}
            DATA.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments:
        PAGE.write_text(page(tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
