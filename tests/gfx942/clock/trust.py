# SPDX-License-Identifier: Apache-2.0
"""How far the clock's times are to be trusted: its errors against measured times, what follows for a kernel's time, and
the constants that no document gives. docs/amd_time.md shows this."""

from __future__ import annotations

import json
from math import hypot
from typing import Protocol

import measured
import timing
from measured import Errors

LIKE_THE_MEASURED = 0.2  # share of the time that matrix units work, from which compute-bound kernels say something


class Predicted(Protocol):
    """Of a kernel whose time is predicted."""

    @property
    def matrix_busy(self) -> float: ...
    @property
    def binds(self) -> str: ...
    @property
    def error(self) -> float: ...  # of the sampling, one standard deviation, relative


def bound_of(row: Predicted) -> str | None:
    """Which of the measured kernels say something of it."""
    if row.matrix_busy >= LIKE_THE_MEASURED:
        return "compute"
    return "memory" if row.binds == "memory" else None


def largest_error(bound: str) -> float:
    """Of all points that are held out."""
    held_out = [f for f in measured.predicted() if f.role == "held out" and f.bound == bound]
    return max(Errors.of(f.points).largest for f in held_out)


def error_bar(row: Predicted) -> str:
    """The largest error of the kernels that were held out and have its bound, and twice the sampling's."""
    bound = bound_of(row)
    return f"+-{hypot(largest_error(bound), 2 * row.error):.0%}" if bound else "unknown"


def errors() -> str:
    goals = measured.goals()
    lines = [
        "| kernels, measured on an MI300X | bound | role | points | predicted / measured | median error | largest |"
    ]
    lines.append("|---|---|---|---:|---:|---:|---:|")
    for f in measured.predicted():
        e = Errors.of(f.points)
        outside = " (outside its goal)" if f.role == "held out" and not goals[f.bound].holds(e) else ""
        lines.append(
            f"| {f.name} | {f.bound} | {f.role} | {len(f.points)} | {1 + e.least:.2f} to {1 + e.most:.2f} | "
            f"{e.median:.0%} | {e.largest:.0%}{outside} |"
        )
    return "\n".join(lines)


def goals() -> str:
    each = (f"{g.median:.0%} and {g.largest:.0%} where {bound} binds" for bound, g in measured.goals().items())
    return "median and largest error within " + ", ".join(each)


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

- Each role was given before the first prediction, and so were the goals of what is held out: {goals}.
- Times of held-out kernels fitted nothing, but three choices saw some: `matrix_blocks_vector`, by an earlier trial with
  moonmath's kernel among others; HBM's latency, for which two published measurements make 428 and 397 ns; and that of
  LDS, whose published value took the place of a fitted one.
- The clock under load is that of long runs. AITER's table has means of 10 launches after 10 others: short ones are over
  before the clock falls, which would explain why its forward is predicted too slow. No clock was published with these
  times. The largest error is that of a call of 75 us, with 128 workgroups for 304 compute units.
- AITER's backward is predicted too fast: the more so, the longer it runs, and at length 8192 and above more where dq is
  added up in float32 than in bfloat16. Additions to one dq by all XCDs are modelled as loads, and backward's power as
  that of forward. No source was found that says where eight L2s add to one line, and at which rate. The one measurement
  found is of a histogram on an MI300X, about 5 ns for each lane's addition (sarchlab/mgpusim, issue 278): there, lanes
  add to the same few addresses, which they never do here. A constant fitted to these times would be no check.
- Reads: the three machines that timed them differ by a tenth for most kernels, but by 1.6 for the one with the largest
  error (one block of a compute unit, two loads at once). The others are within 15 %.
- What a comparison of two builds shows is steadier than a time: the same constants stand behind both.
- *error bar*: the largest error of the kernels that are held out and have the same bound, with two standard deviations
  of the sampling, since a kernel is simulated for some of its workgroups. The bound is "compute" where matrix units
  work a fifth of the time or more, else "memory" where waves wait for memory most. Of kernels that something else binds
  nothing was measured; their error is unknown.
- Repeated calls: what fits into the 256 MB of Infinity Cache is there from the call before. Latency of a launch is in
  each time; the host is not.
- Not modelled: translation of addresses (its misses are in the measured latencies), channels of HBM and of L2 that
  collide, atomics on one address by several compute units, fetch of instructions beyond the cache's lines, and power
  but for the matrix units' share.

What each family is, and who measured it, is in `tests/gfx942/clock/measured.json`.

## Constants that no document gives

{constants}
"""


def sections() -> str:
    return SECTIONS.format(errors=errors(), goals=goals(), constants=constants_list())
