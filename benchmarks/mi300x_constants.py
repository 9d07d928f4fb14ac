# SPDX-License-Identifier: Apache-2.0
"""Measures the constants by which tests/gfx942/clock predicts times on an MI300X, on an MI300X: about ten minutes.

    python benchmarks/mi300x_constants.py                      prints constant | now in mi300x.json | measured | spread
    python benchmarks/mi300x_constants.py --list               the microbenchmarks, and which constants each gives
    python benchmarks/mi300x_constants.py --only lds memory    those whose names hold one of these
    python benchmarks/mi300x_constants.py --out FOLDER         writes measured.json there, and a corrected mi300x.json

The compiler is hipcc. On an NVIDIA GPU the microbenchmarks run that nvcc compiles too, to see that this program works:
then, as on other AMD chips of the same code (MI300A, MI325X), only measured.json is written.
exit code: 1 where a microbenchmark failed, 77 where this machine cannot run them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mi300x.formulas import MICROBENCHMARKS, RATES, AtLeast, Known, Machine, Microbenchmark, find
from mi300x.gpu import CannotRun, Gpu
from xlstm_hip._core.atomic_files import write_atomically
from xlstm_hip._core.device import MI300X_COMPUTE_UNITS, DeviceFacts, device_facts, is_mi300x
from xlstm_hip._core.progress import Tasks
from xlstm_hip.bench.environment import environment
from xlstm_hip.cli.common import at_least

CHIP = Path(__file__).resolve().parents[1] / "tests" / "gfx942" / "clock" / "mi300x.json"
CANNOT_RUN = 77
REPEATS = 5
DIGITS = 4
FAR = 0.1  # relative: a clock this far from what the runtime reports needs an explanation


@dataclass(frozen=True)
class Result:
    """What the repetitions of a formula gave."""

    value: float  # the median
    spread: float  # the largest less the smallest
    at_least: bool = False  # in one of them something else was the limit

    @classmethod
    def of(cls, found: Sequence[float | AtLeast]) -> Result:
        values = [x.value if isinstance(x, AtLeast) else x for x in found]
        limited = any(isinstance(x, AtLeast) for x in found)
        return cls(statistics.median(values), max(values) - min(values), limited)

    @property
    def is_constant(self) -> bool:
        """Whether it may stand in the model, where nothing is less than 0."""
        return not self.at_least and self.value >= 0


def chip() -> dict[str, Any]:
    return json.loads(CHIP.read_text(encoding="utf-8"))


def known_before(content: Mapping[str, Any]) -> dict[str, float]:
    return {name: x["value"] for name, x in content["constants"].items()} | RATES


def chosen(texts: Sequence[str], facts: DeviceFacts | None = None) -> list[Microbenchmark]:
    for text in texts:
        if not any(text in x.name for x in MICROBENCHMARKS):
            raise ValueError(f"--only: no name of --list holds {text!r}")
    found = [x for x in MICROBENCHMARKS if not texts or any(text in x.name for text in texts)]
    if facts is None or facts.kind == "amd":
        return found
    found = [x for x in found if x.everywhere]
    if not found:
        raise ValueError("--only: expected a microbenchmark that runs on NVIDIA GPUs as well; --list says which do")
    return found


def checked_facts() -> DeviceFacts:
    """Of the GPU. Raises CannotRun where it cannot run the microbenchmarks."""
    try:
        facts = device_facts("cuda:0")
    except ValueError:
        raise CannotRun("torch sees no GPU; xlstm-hip doctor says why") from None
    if facts.kind == "amd" and facts.arch != "gfx942":
        raise CannotRun(f"expected an MI300X (gfx942), got {facts.name} ({facts.arch})")
    if facts.kind == "amd" and is_mi300x("cuda:0") and facts.compute_units != MI300X_COMPUTE_UNITS:
        raise CannotRun(
            f"expected all {MI300X_COMPUTE_UNITS} compute units of an MI300X, got a partition of {facts.compute_units}"
        )
    return facts


def measure(
    machine: Machine, benchmarks: Sequence[Microbenchmark], repeats: int, before: Known
) -> tuple[dict[str, Result], dict[str, str]]:
    """What was found, and of the microbenchmarks that failed why. A formula uses what those before it found."""
    known, results, failed = dict(before), {}, {}
    with Tasks(len(benchmarks)) as tasks:
        for benchmark in benchmarks:
            tasks.begin(f"{benchmark.name}: {', '.join(benchmark.gives)}")
            try:
                found = []
                for _ in range(repeats):
                    found.append(find(machine, benchmark, known))
                    tasks.advance(1 / repeats)
            except (RuntimeError, ArithmeticError) as error:  # times too short to divide by are a failure, too
                failed[benchmark.name] = str(error)
                continue
            for name in found[0]:
                results[name] = Result.of([x[name] for x in found if name in x])
                if results[name].is_constant:
                    known[name] = results[name].value
    return results, failed


def number(x: float) -> str:
    return f"{x:.{DIGITS}g}" if abs(x) < 10**DIGITS else f"{x:.0f}"


def table(results: Mapping[str, Result], before: Known) -> str:
    rows = [("constant", "now in mi300x.json", "measured", "spread")]
    for name, x in results.items():
        now = number(before[name]) + (" (the interpreter's)" if name in RATES else "")
        rows.append((name, now, ("at least " if x.at_least else "") + number(x.value), number(x.spread)))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def doubt(results: Mapping[str, Result], reported_mhz: float) -> str:
    """Why cycles may not be cycles; nothing where the clock is as reported."""
    x = results.get("peak_mhz")
    if x is None or abs(x.value / reported_mhz - 1) <= FAR:
        return ""
    return (
        f"the chain of vector_issue says {number(x.value)} MHz, the runtime {number(reported_mhz)}: either the clock is"
        " another, or a vector instruction does not take issue_cycles, in which all cycles here count"
    )


def corrected(content: Mapping[str, Any], results: Mapping[str, Result], machine: Mapping[str, Any]) -> dict[str, Any]:
    """mi300x.json with what was measured instead of what was fitted, assumed or published."""
    constants = {name: dict(x) for name, x in content["constants"].items()}
    spreads = {}
    for name, x in results.items():
        if name in constants and x.is_constant:
            constants[name] = {"value": float(number(x.value)), "from": "measured"}
            spreads[name] = {"spread": float(number(x.spread)), "before": content["constants"][name]["value"]}
    made = dict(content) | {"constants": constants, "measured": {"machine": dict(machine), "constants": spreads}}
    for kind in ("fitted", "assumed"):
        made[kind] = {name: why for name, why in content[kind].items() if name not in spreads}
    return made


def as_text(content: Mapping[str, Any]) -> str:
    """As mi300x.json is written: a line for each constant and source."""
    parts = []
    for name, x in content.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in x.items())
        parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}" if x else f" {json.dumps(name)}: {{}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(folder: Path, results: Mapping[str, Result], facts: DeviceFacts, machine: Mapping[str, Any]) -> list[Path]:
    """The files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = {"machine": dict(machine), "results": {name: asdict(x) for name, x in results.items()}}
    files = {folder / "measured.json": as_text(measured)}
    if facts.kind == "amd" and is_mi300x("cuda:0"):
        files[folder / CHIP.name] = as_text(corrected(chip(), results, machine))
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def listing() -> str:
    lines = []
    for x in MICROBENCHMARKS:
        lines.append(f"{x.name:24} {x.title()}" + (" (also on NVIDIA GPUs)" if x.everywhere else ""))
        lines.append(f"{'':24} {', '.join(x.gives)}")
    return "\n".join(lines)


def machine_facts(machine: Machine) -> dict[str, Any]:
    e = environment("cuda:0")
    facts = {name: e[name] for name in ("date", "system", "gpu")}
    return facts | {"reported_mhz": machine.reported_mhz(), "torch": e["packages"]["torch"]}


def main(
    words: Sequence[str] | None = None,
    facts_of: Callable[[], DeviceFacts] = checked_facts,
    machine_of: Callable[[DeviceFacts], Machine] = Gpu,
) -> int:
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        description=text.partition("\n")[0],
        epilog=text.partition("\n")[2],
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="list the microbenchmarks and run nothing")
    parser.add_argument("--only", nargs="+", default=(), metavar="TEXT", help="texts in the names of --list")
    parser.add_argument("--repeats", type=at_least(1), default=REPEATS, help=f"of each formula (default: {REPEATS})")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="writes the results there")
    options = parser.parse_args(words)
    try:
        chosen(options.only)
        if options.list:
            print(listing())
            return 0
        if options.out and options.out.exists() and not options.out.is_dir():
            raise ValueError(f"--out: expected a folder, {options.out} is a file")
        facts = facts_of()
        benchmarks = chosen(options.only, facts)
        machine = machine_of(facts)
    except ValueError as error:
        parser.error(str(error))
    except CannotRun as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    begun = time.monotonic()
    before = known_before(chip())
    results, failed = measure(machine, benchmarks, options.repeats, before)
    print(f"{facts.name} ({facts.arch}), {options.repeats} times, {time.monotonic() - begun:.0f} s")
    print(table(results, before))
    if why := doubt(results, machine.reported_mhz()):
        print(f"WARNING: {why}", file=sys.stderr)
    for name, why in failed.items():
        print(f"{name} FAILED: {why}", file=sys.stderr)
    if options.out:
        print("written:", *write(options.out, results, facts, machine_facts(machine)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
