# SPDX-License-Identifier: Apache-2.0
"""The clock against what others measured on an MI300X (measured.json). Families whose role is "calibration" fitted
constants of mi300x.json; the others are held out.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support:tests/gfx942/clock
export MOONMATH_AMD_KERNELS=FOLDER                              a clone, as support/moonmath.py says
python tests/gfx942/clock/calibrate.py                          predicts every point
python tests/gfx942/clock/calibrate.py BabelStream --write      of the families with this in their name; the others stay
python tests/gfx942/clock/calibrate.py --constant lds_latency=64

AITER's wheel is downloaded. --write: calibration.json, which docs/amd_time.md shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import attention_runs
import device
import measured
import stream_runs
import timing
from measured import Errors, Family, Point


@dataclass(frozen=True)
class Runs:
    """How points of some families are run, and what their launch's time makes of each: milliseconds and MHz."""

    run: Callable[[Point], None]
    time_of: Callable[[Point, timing.Launch, dict[str, float]], tuple[float, float]]
    instructions: int


ATTENTION = Runs(attention_runs.run, attention_runs.time_of, attention_runs.INSTRUCTIONS)
STREAMS = Runs(stream_runs.run, stream_runs.time_of, stream_runs.INSTRUCTIONS)


def predicted(p: Point, chip: dict[str, float]) -> Point:
    runs = ATTENTION if p.family in attention_runs.RUNS else STREAMS
    with timing.recording(runs.instructions):
        runs.run(p)
    (launch,) = timing.timed(chip=chip)
    device.forget_recordings()
    return p.with_prediction(*runs.time_of(p, launch, chip))


def summary(f: Family, points: list[Point]) -> str:
    errors, goal = Errors.of(points), measured.goals()[f.bound]
    held = "" if f.role == "calibration" else " within its goal" if goal.holds(errors) else " OUTSIDE its goal"
    return (
        f"{f.name} ({f.role}, {f.bound}): {len(points)} points, error {errors.least:+.0%} to {errors.most:+.0%}, "
        f"median size {errors.median:.1%}, largest {errors.largest:.1%}{held}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="?", default="", help="what is in a family's name")
    parser.add_argument("--constant", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    chip = timing.constants(**{name: float(value) for name, value in (x.split("=") for x in options.constant)})
    if options.constant and options.write:
        parser.error("--write: expected no --constant, as the results are of mi300x.json")
    for f in measured.families():
        if options.family not in f.name:
            continue
        found = []
        for p in f.points:
            found.append(predicted(p, chip))
            print(f.name, p.shape, f"{p.measured:.4f} {found[-1].predicted:.4f} ms {found[-1].error:+.1%}", flush=True)
            if options.write:
                measured.write(found)
        print(summary(f, found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
