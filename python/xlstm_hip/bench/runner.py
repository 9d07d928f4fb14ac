# SPDX-License-Identifier: Apache-2.0
"""Goes through the points: inputs, truth, every implementation held to it, then the rounds in which they take turns."""

from __future__ import annotations

import gc
import math
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .._core.progress import Tasks
from . import metrics, models, result_files, selection
from .contest import LATE, Advance, Contest, Entry, failure, race, words_of
from .environment import environment
from .machine import Machine, copy_rate, matmul_rate
from .memory import MemoryUnknown, growth_of
from .operators import OPERATORS
from .registry import PLAIN, PROVIDERS, XLSTM_HIP, Call, Implementation, Operator, Point, Scale
from .timing import COLD_SAMPLES, QUICK, Pace
from .trial import lost_in_trials
from .triton_compiler import before_triton

LEAST_ROUNDS, MOST_ROUNDS = 5, 31
LEAST_ROUNDS_OF_MODELS = 3  # a call of theirs lasts for many an operator's
LONGEST_SHARE = 4.0  # seconds of rounds for a point, where there is time enough
ROUNDS_PART = 0.6  # of a point's time; the rest is for inputs, truth, checks
SLOW_SECONDS = 3.0  # the rounds of a contender may take so long, however short time is
BENCHMARK = "xlstm-hip bench"  # what result files say that they are of
READY_PART = 0.4  # of an operator's time, for peers' models
GUESS = 3.0  # how far off a guess from another point may be: small ones are mostly overhead


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
    lost: dict[tuple[str, str], str] = field(default_factory=dict)  # (implementation, trial) to a reason
    rates: dict[tuple[str, str], float] = field(default_factory=dict)  # seconds an operation, as last seen
    began: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.settings.seconds - (time.monotonic() - self.began)

    # ---- one implementation

    def prepared(self, contest: Contest, implementation: Implementation, share: float) -> tuple[Entry, Call | None]:
        """As Contest.enter, but for what would take too long."""
        is_fused, cell = implementation.provider == XLSTM_HIP, contest.cell
        least = least_rounds(contest.operator)
        limit = math.inf if is_fused else max(4 * share, SLOW_SECONDS) / least  # seconds of a call
        kind, amount = (contest.operator.name, implementation.name), cell.flops or cell.bytes
        if self.rates.get(kind, 0.0) * amount > GUESS * limit and contest.absent(implementation) is None:
            late = {"missing": f"{LATE}: too slow"}
            return {"name": implementation.name, "provider": implementation.provider} | late, None
        entry, call = contest.enter(implementation)
        if call is None:
            return entry, None
        taken = contest.first_seconds[implementation.name]
        if taken < limit or implementation.triton:  # whose first call compiles
            begin = time.monotonic()
            try:
                entry["peak_bytes"] = self.peak_bytes(call)
            except Exception as error:
                return failure(self.machine, entry, error), None
            taken = time.monotonic() - begin
        self.rates[kind] = taken / amount
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
        contest = Contest(operator, cell, self.machine, self.lost)
        _ = contest.truth  # made here: what does not fit is the point's, not an implementation's
        entries: list[Entry] = []
        calls: dict[str, Call] = {}
        for implementation in self.selected(operator):
            entry, call = self.prepared(contest, implementation, share)
            entries.append(entry)
            if call is not None:
                calls[implementation.name] = call
        contest.forget_truth()
        broken: dict[str, Exception] = {}
        cold = operator.cold and self.machine.gpu
        clock = self.machine.cold_seconds if cold else self.machine.seconds
        race(entries, calls, self.pace(operator, share), advance, clock, broken.__setitem__)
        by_name = {entry["name"]: entry for entry in entries}
        for name, error in broken.items():  # in the order of time: the first is the one that may have lost the GPU
            by_name[name] |= failure(self.machine, by_name[name], error)
        for entry in entries:
            if "ms" in entry:
                entry["metrics"] = metrics.of(cell, entry, self.results["ceilings"])
        return {"flops": cell.flops, "bytes": cell.bytes, "entries": entries}

    def selected(self, operator: Operator) -> list[Implementation]:
        return [x for x in operator.implementations if x.provider in self.settings.providers]

    def pace(self, operator: Operator, share: float) -> Pace:
        sample = 0.01 if self.machine.gpu else 0.02
        cold = operator.cold and self.machine.gpu
        pace = Pace(share, least_rounds(operator), MOST_ROUNDS, sample / COLD_SAMPLES if cold else sample)
        return QUICK if self.settings.quick else pace

    # ---- all of them

    def go(self) -> None:
        """Operators have their parts of the time by their numbers of points. If time is limited, the points of an
        operator are measured in random order, so that the points that come too late are not all of one kind; the file
        has them in order.
        """
        scale = self.settings.scale
        plan = [(operator, points) for name in self.settings.operators for operator, points in parts(name, scale)]
        left_over = sum(len(points) for _, points in plan)
        with Tasks(left_over) as progress:
            for operator, points in plan:
                if operator.ready is None:
                    models.forget()  # whole models are large
                ends = self.left() - self.left() * len(points) / left_over if self.limited else -math.inf
                left_over -= len(points)
                self.make_ready(operator, points[0].cell, (self.left() - ends) * READY_PART)
                self.all_of(operator, points, ends, progress)
            models.forget()

    def make_ready(self, operator: Operator, cell: Any, seconds: float) -> None:
        """Makes once the things that implementations need at all points: models, and their compiled code. This
        package's and the plain one (the truth) are always made; peers, in the table's order, only within so many
        seconds, so that time is left to measure."""
        if operator.ready is None:
            return
        self.lost = {key: why for key, why in self.lost.items() if key[1] != operator.name}  # of another dtype
        began = time.monotonic()
        for x in sorted(self.selected(operator), key=lambda x: x.provider not in (XLSTM_HIP, PLAIN)):
            if x.missing(self.machine.device) is not None:
                continue
            if x.provider not in (XLSTM_HIP, PLAIN) and time.monotonic() - began > seconds:
                self.lost[x.name, operator.name] = f"{LATE}: its model was not made"
                continue
            try:
                operator.ready(x.name, cell, self.machine.device)
            except Exception as error:  # a peer's is not tried again at each point; ours is, and then fails there
                if x.provider != XLSTM_HIP:
                    self.lost[x.name, operator.name] = words_of(error)

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
        for done, index in enumerate(order):
            point = points[index]
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
            result = {"missing": LATE} if late else self.guarded(operator, point, share, progress.advance)
            measured[index] = facts | {"shape": point.cell.as_json()} | result
            self.machine.clean()
            self.results["points"] = before + [measured[n] for n in sorted(measured)]
            result_files.save(self.results, self.out)

    def guarded(self, operator: Operator, point: Point, share: float, advance: Advance) -> dict[str, Any]:
        """A point whose inputs or truth do not fit is a result too; that ours breaks in making them is a failure."""
        try:
            return self.measure(operator, point, share, advance)
        except (torch.OutOfMemoryError, MemoryError) as error:
            return {"missing": words_of(error)}
        except Exception as error:
            return {"failed": words_of(error)}


def ceilings(machine: Machine, dtypes: Sequence[str], quick: bool) -> dict[str, Any]:
    return {
        "copy_bytes_per_second": copy_rate(machine, quick),
        "flops_per_second": {dtype: matmul_rate(machine, dtype, quick) for dtype in dtypes},
    }


def parts(name: str, scale: Scale) -> list[tuple[Operator, list[Point]]]:
    """An operator's points; where models are made for them, those of one dtype at a time."""
    operator = OPERATORS[name]
    points = operator.points(scale)
    if operator.ready is None:
        return [(operator, points)]
    return [(operator, [p for p in points if p.cell.dtype == dtype]) for dtype in scale.dtypes]


def least_rounds(operator: Operator) -> int:
    return LEAST_ROUNDS if operator.ready is None else LEAST_ROUNDS_OF_MODELS


def run(settings: Settings, out: Path) -> dict[str, Any]:
    """The result file, which is written after each point too, so that a run which is cut short leaves what it has."""
    before_triton()
    warnings.filterwarnings("ignore", module="(mlstm_kernels|transformers|torch|xlstm)")
    machine = Machine(settings.device)
    providers = [PROVIDERS[name] for name in settings.providers]
    results: dict[str, Any] = {
        "benchmark": BENCHMARK,
        "environment": environment(settings.device),
        "settings": settings.as_json(),
        "providers": {x.name: {"text": x.text, "missing": x.missing()} for x in providers},
        "exact": {name: dict(OPERATORS[name].exact) for name in settings.operators},
        "ceilings": ceilings(machine, settings.dtypes, settings.quick),
        "ended_early": True,  # until it did not
        "points": [],
    }
    lost = lost_in_trials(settings.operators, settings.device, settings.scale, settings.providers, settings.peers)
    session = Run(
        settings, machine, out, results, lost
    )  # its seconds begin here: trials last as long as peers' compilers
    gc.freeze()  # what is imported by now stays: each point collects several times
    try:
        with result_files.keeps_partial_results():
            session.go()
            results["ended_early"] = False
    finally:
        gc.unfreeze()
    result_files.save(results, out)
    return results


def failures(results: dict[str, Any]) -> list[str]:
    """Ours that were wrong or did not run: what makes a run fail."""
    return [
        f"{point['operator']} {point['title']}: {entry.get('name', 'inputs')}: {entry['failed']}"
        for point in results["points"]
        for entry in (point, *point.get("entries", ()))
        if "failed" in entry
    ]


def why_nothing_was_measured(results: dict[str, Any]) -> str | None:
    """The reasons of a run that took no time of anything; None where it took some."""
    entries = [entry for point in results["points"] for entry in point.get("entries", ())]
    if any("ms" in entry for entry in entries):
        return None
    reasons = [f"{entry['name']}: {entry['missing']}" for entry in entries if "missing" in entry]
    reasons += [point["missing"] for point in results["points"] if "missing" in point]
    settings = results["settings"]
    none = f"of {', '.join(settings['providers'])} there is no implementation of {', '.join(settings['operators'])}"
    return "; ".join(dict.fromkeys(reasons)) or none
