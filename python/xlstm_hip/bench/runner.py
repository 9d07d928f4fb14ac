# SPDX-License-Identifier: Apache-2.0
"""Goes through the points: inputs, truth, every implementation held to it, then the rounds in which they take turns."""

from __future__ import annotations

import gc
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..progress import Tasks
from . import metrics, models, result_files, selection
from .environment import environment
from .machine import Machine, copy_rate, matmul_rate
from .memory import MemoryUnknown, growth_of
from .operators import OPERATORS
from .registry import OURS, PROVIDERS, Call, Implementation, Operator, Point, Scale, Tensors
from .timing import Pace, Samples, interleaved, paired_ratio
from .trial import before_triton, compiling, not_survived, trials_of, work_of

Advance = Callable[[float], None]
LATE = "left out for time"
LEAST_ROUNDS, MOST_ROUNDS = 5, 31
LONGEST_SHARE = 4.0  # seconds of rounds for a point, where there is time enough
ROUNDS_PART = 0.6  # of a point's time; the rest is for inputs, truth, checks
COLD_SAMPLES = 20  # a flush is not counted, and takes as long as many a call: samples are so many times shorter
SLOW_SECONDS = 3.0  # the rounds of a contender may take so long, however short time is
GUESS = 3.0  # how far off a guess from another point may be: small ones are mostly overhead
WORDS = 160  # characters of a reason


@dataclass(frozen=True)
class Settings:
    operators: tuple[str, ...]
    providers: tuple[str, ...] = tuple(PROVIDERS)
    device: str = "cpu"
    dtypes: tuple[str, ...] = ("fp32",)
    seconds: float = math.inf
    quick: bool = False
    peers: Path | None = None

    @property
    def scale(self) -> Scale:
        return Scale(torch.device(self.device).type == "cuda", self.quick, self.dtypes)

    def as_json(self) -> dict[str, Any]:
        return {
            "operators": list(self.operators),
            "providers": list(self.providers),
            "device": self.device,
            "dtypes": list(self.dtypes),
            "seconds": None if math.isinf(self.seconds) else self.seconds,
            "quick": self.quick,
        }


@dataclass
class Run:
    settings: Settings
    machine: Machine
    out: Path
    results: dict[str, Any]
    lost: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (implementation, trial) to a reason
    rates: dict[tuple[str, str], float] = field(default_factory=dict)  # seconds an operation, as last seen
    began: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.settings.seconds - (time.monotonic() - self.began)

    # ---- one implementation

    def prepared(
        self,
        operator: Operator,
        implementation: Implementation,
        cell: Any,
        inputs: Tensors,
        truth: Tensors,
        share: float,
    ) -> tuple[dict[str, Any], Call | None]:
        """What is known before the rounds, and the call to time; None where there is nothing to time."""
        entry: dict[str, Any] = {"name": implementation.name, "provider": implementation.provider}
        missing = implementation.missing(self.machine.device)
        missing = missing or self.lost.get((implementation.name, work_of(operator, cell)))
        missing = missing or implementation.beyond(cell) or None
        needs, free = implementation.needs(cell), self.machine.free_bytes()
        if missing is None and needs > free:
            missing = f"needs {needs / 1e9:.0f} GB of the {free / 1e9:.0f} GB that are free"
        if missing is not None:
            return entry | {"missing": missing}, None
        ours = implementation.provider == OURS
        limit = math.inf if ours else max(4 * share, SLOW_SECONDS) / LEAST_ROUNDS  # seconds of a call
        kind, amount = (operator.name, implementation.name), cell.flops or cell.bytes
        if self.rates.get(kind, 0.0) * amount > GUESS * limit:
            return entry | {"missing": f"{LATE}: too slow"}, None
        try:
            with compiling(implementation):
                call = implementation.prepare(cell, inputs)
                begin = time.monotonic()
                results = call()
                self.machine.synchronize()
                taken = time.monotonic() - begin
            if implementation.exact:
                entry["errors"] = (implementation.errors or operator.errors)(cell, results, truth)
                most = operator.exact[cell.dtype]
                entry["inexact"] = [name for name, x in entry["errors"].items() if not x <= most]
            del results
            if ours and entry.get("inexact"):
                return entry | {"failed": f"wrong: {', '.join(entry['inexact'])}; not timed"}, None
            if taken < limit or implementation.triton:  # whose first call compiles
                begin = time.monotonic()
                entry["peak_bytes"] = self.peak_bytes(call)
                taken = time.monotonic() - begin
            self.rates[kind] = taken / amount
        except Exception as error:  # a peer's failure is a result, and so is ours
            return entry | failure(implementation.provider, error), None
        if taken > limit:
            return entry | {"missing": f"{LATE}: too slow", "call_seconds": taken}, None
        return entry, call

    def peak_bytes(self, call: Call) -> int | None:
        if self.machine.gpu:
            return self.machine.peak_bytes(call)
        try:
            return growth_of(call)
        except MemoryUnknown:
            call()
            return None

    # ---- one point

    def measure(self, operator: Operator, point: Point, share: float, advance: Advance) -> dict[str, Any]:
        cell = point.cell
        inputs = operator.inputs(cell, self.machine.device)
        truth = operator.truth(cell, inputs)
        entries: list[dict[str, Any]] = []
        calls: dict[str, Call] = {}
        for implementation in operator.implementations:
            if implementation.provider not in self.settings.providers:
                continue
            entry, call = self.prepared(operator, implementation, cell, inputs, truth, share)
            entries.append(entry)
            if call is not None:
                calls[implementation.name] = call
        del truth
        broken: dict[str, Exception] = {}
        samples = self.rounds(operator, calls, share, advance, broken.__setitem__)
        for entry in entries:
            if entry["name"] in broken:
                entry |= failure(entry["provider"], broken[entry["name"]])
            elif entry["name"] in samples:
                entry["ms"] = samples[entry["name"]].as_json()
        timed = [entry for entry in entries if "ms" in entry]
        ours = next((e for e in timed if e["provider"] == OURS), None)  # the first of the operator's table
        for entry in timed:
            if ours is not None:
                entry["times_ours"] = paired_ratio(entry["ms"]["samples"], ours["ms"]["samples"])
            entry["metrics"] = metrics.of(cell, entry, self.results["ceilings"])
        return {"flops": cell.flops, "bytes": cell.bytes, "entries": entries}

    def rounds(
        self,
        operator: Operator,
        calls: Mapping[str, Call],
        share: float,
        advance: Advance,
        failed: Callable[[str, Exception], None],
    ) -> dict[str, Samples]:
        cold = operator.cold and self.machine.gpu
        sample = 0.01 if self.machine.gpu else 0.02
        pace = Pace(share, LEAST_ROUNDS, MOST_ROUNDS, sample / COLD_SAMPLES if cold else sample)
        if self.settings.quick:
            pace = Pace(0.05, 2, 3, 0.0005)
        return interleaved(calls, pace, advance, self.machine.cold_seconds if cold else self.machine.seconds, failed)

    def clean(self) -> None:
        gc.collect()
        if self.machine.gpu:
            torch.cuda.empty_cache()

    # ---- all of them

    def go(self) -> None:
        """Operators have their parts of the time by their numbers of points. Where time is limited, the points of an
        operator come in an order by chance, so that what is late is not all of one kind; the file has them in order.
        """
        scale = self.settings.scale
        plan = [(OPERATORS[name], OPERATORS[name].points(scale)) for name in self.settings.operators]
        left_over = sum(len(points) for _, points in plan)
        with Tasks(left_over) as progress:
            for operator, points in plan:
                ends = self.left() - self.left() * len(points) / left_over if self.limited else -math.inf
                left_over -= len(points)
                self.all_of(operator, points, ends, progress)
                models.forget()  # whole models are large

    @property
    def limited(self) -> bool:
        return not math.isinf(self.settings.seconds)

    def all_of(self, operator: Operator, points: list[Point], ends: float, progress: Tasks) -> None:
        """ends: how much of all the time is to be left."""
        order = list(range(len(points)))
        if self.limited:
            random.Random(0).shuffle(order)
        before, measured, began = list(self.results["points"]), {}, time.monotonic()
        late = False
        for done, place in enumerate(order):
            point = points[place]
            progress.begin(f"{operator.name} {point.cell.title}")
            left = self.left() - ends
            usual = (time.monotonic() - began) / done if done else 0.0
            share = min(LONGEST_SHARE, ROUNDS_PART * left / (len(order) - done))
            facts: dict[str, Any] = {"operator": operator.name, "series": point.series, "x": point.x}
            facts["title"] = point.cell.title
            if point.series == "selection":
                facts["choices"] = selection.chosen(
                    operator.name.removeprefix("select-"), point.cell, self.machine.device
                )
            late = late or left <= usual  # it would not end in time
            own = {"missing": LATE} if late else self.guarded(operator, point, share, progress.advance)
            measured[place] = facts | {"shape": point.cell.as_json()} | own
            self.clean()
            self.results["points"] = before + [measured[n] for n in sorted(measured)]
            result_files.save(self.results, self.out)

    def guarded(self, operator: Operator, point: Point, share: float, advance: Advance) -> dict[str, Any]:
        """A point whose inputs or truth do not fit is a result too."""
        try:
            return self.measure(operator, point, share, advance)
        except (torch.OutOfMemoryError, MemoryError) as error:
            return {"missing": words_of(error)}


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:WORDS]


def failure(provider: str, error: Exception) -> dict[str, str]:
    """What an entry then has: a failure of ours is one of the run, a peer's is a result."""
    return {"failed" if provider == OURS else "missing": words_of(error)}


def ceilings(machine: Machine, dtypes: Sequence[str], quick: bool) -> dict[str, Any]:
    return {
        "copy_bytes_per_second": copy_rate(machine, quick),
        "flops_per_second": {dtype: matmul_rate(machine, dtype, quick) for dtype in dtypes},
    }


def tries(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Which Triton peers are to be tried in a process of their own, and at what."""
    found: dict[str, tuple[str, ...]] = {}
    for operator in (OPERATORS[name] for name in settings.operators):
        for x in operator.implementations:
            usable = x.provider in settings.providers and x.missing(torch.device(settings.device)) is None
            if x.triton and usable:
                found[x.name] = (*found.get(x.name, ()), *trials_of(operator, settings.scale))
    return found


def run(settings: Settings, out: Path) -> dict[str, Any]:
    """The result file, which is written after each point too, so that a run which is cut short leaves what it has."""
    before_triton()
    warnings.filterwarnings("ignore", module="(mlstm_kernels|transformers|torch|xlstm)")
    machine = Machine(settings.device)
    asked = [PROVIDERS[name] for name in settings.providers]
    results: dict[str, Any] = {
        "benchmark": "xlstm-hip bench",
        "environment": environment(settings.device),
        "settings": settings.as_json(),
        "providers": {x.name: {"text": x.text, "missing": x.missing()} for x in asked},
        "exact": {name: dict(OPERATORS[name].exact) for name in settings.operators},
        "ceilings": ceilings(machine, settings.dtypes, settings.quick),
        "ended_early": True,  # until it did not
        "points": [],
    }
    wanted, lost = tries(settings), {}
    if wanted:
        print(f"trying {', '.join(wanted)}, each in a process of its own", file=sys.stderr)
        command = [sys.executable, "-m", f"{__package__}.trial", "--device", settings.device]
        command += ["--dtypes", *settings.dtypes, "--operators", *settings.operators]
        command += ["--quick"] if settings.quick else []
        command += ["--peers", str(settings.peers)] if settings.peers else []
        lost = not_survived(command, os.environ, wanted)
    own = Run(settings, machine, out, results, lost)  # its seconds begin here: trials last as long as peers' compilers
    gc.freeze()  # what is imported by now stays: each point collects several times
    try:
        with result_files.keeps_what_there_is():
            own.go()
            results["ended_early"] = False
    finally:
        gc.unfreeze()
    result_files.save(results, out)
    return results


def failures(results: dict[str, Any]) -> list[str]:
    """Ours that were wrong or did not run: what makes a run fail."""
    return [
        f"{point['operator']} {point['title']}: {entry['name']}: {entry['failed']}"
        for point in results["points"]
        for entry in point.get("entries", ())
        if "failed" in entry
    ]


def why_nothing_was_measured(results: dict[str, Any]) -> str | None:
    """The reasons of a run that took no time of anything; None where it took some."""
    entries = [entry for point in results["points"] for entry in point.get("entries", ())]
    if any("ms" in entry for entry in entries):
        return None
    reasons = [f"{entry['name']}: {entry['missing']}" for entry in entries if "missing" in entry]
    reasons += [point["missing"] for point in results["points"] if "missing" in point]
    asked = results["settings"]
    none = f"of {', '.join(asked['providers'])} there is no implementation of {', '.join(asked['operators'])}"
    return "; ".join(dict.fromkeys(reasons)) or none
