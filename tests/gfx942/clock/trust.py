# SPDX-License-Identifier: Apache-2.0
"""How far the clock's times are to be trusted: its errors against measured times, what follows for a kernel's time, and
the constants that no document gives. docs/amd_time.md shows this."""

from __future__ import annotations

import json
from math import hypot
from statistics import median
from typing import Protocol

import calibrate
import timing

LIKE_THE_MEASURED = 0.2  # share of the time that matrix units work, from which the measured kernels say something


class Predicted(Protocol):
    """Of a kernel whose time is predicted."""

    @property
    def matrix_busy(self) -> float: ...
    @property
    def error(self) -> float: ...  # of the sampling, one standard deviation, relative


def held_out() -> list[calibrate.Point]:
    role = json.loads(calibrate.MEASURED.read_text(encoding="utf-8"))["held out"]
    return [p for p in calibrate.results() if p.kernel == role]


def error_bar(row: Predicted) -> str:
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


SECTIONS = """\
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
"""


def sections() -> str:
    return SECTIONS.format(errors=errors(), constants=constants_list())
