# SPDX-License-Identifier: Apache-2.0
"""A trial: checks a plan's results against float64, then compares its time with the shipped plan's, round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from .._core.plans import Plan
from ..bench.machine import Machine
from .problem import Judged, Problem, WrongResult

LEAST_GAIN = 1.02  # a plan that gains less is no gain
WON_ROUNDS = 0.75  # of the rounds

OK, WRONG, FAILED = "ok", "wrong", "failed"


@dataclass(frozen=True)
class Pace:
    rounds: int
    sample_seconds: float  # a sample on a CPU repeats its call until it lasts so long


SEARCH_PACE, FINAL_PACE = Pace(7, 0.02), Pace(21, 0.05)


@dataclass(frozen=True)
class Result:
    """How a trial went. ms, shipped_ms: of a call in each round; a round's two were taken one after the other."""

    status: str
    error: str = ""
    arch: str = ""
    seconds: float = 0.0  # that the trial took
    share_of_tolerance: float = 0.0
    ms: tuple[float, ...] = ()
    shipped_ms: tuple[float, ...] = ()

    @property
    def speedup(self) -> float | None:
        """The median of the rounds' ratios; None where it failed."""
        return statistics.median(self.ratios) if self.status == OK else None

    @property
    def ratios(self) -> list[float]:
        return [shipped / tuned for shipped, tuned in zip(self.shipped_ms, self.ms, strict=True)]

    @property
    def wins(self) -> bool:
        """Whether it is faster than the shipped plan beyond what the machine's noise can make it look."""
        faster = sum(ratio > 1 for ratio in self.ratios)
        return self.status == OK and self.speedup_or_zero >= LEAST_GAIN and faster >= WON_ROUNDS * len(self.ms)

    @property
    def speedup_or_zero(self) -> float:
        return self.speedup or 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"speedup": self.speedup}

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Result:
        fields = {name: record[name] for name in cls.__dataclass_fields__}
        return cls(**fields | {"ms": tuple(record["ms"]), "shipped_ms": tuple(record["shipped_ms"])})


Measure = Callable[[Problem, Plan, Pace, int], Result]  # the last: threads


def measure(problem: Problem, plan: Plan, pace: Pace, threads: int) -> Result:
    """A trial, whatever becomes of it: errors are results too."""
    began = time.perf_counter()
    torch.set_num_threads(threads)
    arch = problem.arch
    try:
        judged = _judged(problem)
        shipped, tuned = judged.call(problem.shipped()), judged.call(plan)
        share = judged.check(tuned())
        shipped_ms, ms = paired_ms((shipped, tuned), problem.on, pace)
    except WrongResult as error:
        return Result(WRONG, str(error), arch, time.perf_counter() - began)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Result(FAILED, text[:500], arch, time.perf_counter() - began)
    return Result(OK, "", arch, time.perf_counter() - began, share, tuple(ms), tuple(shipped_ms))


@lru_cache(maxsize=1)
def _judged(problem: Problem) -> Judged:
    return Judged(problem)


def paired_ms(calls: Sequence[Callable[[], Any]], device: torch.device, pace: Pace) -> list[list[float]]:
    """The times of each call, one per round. Rounds begin with another call each time; the first is not counted."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # whose stream events are of
    machine = Machine(str(device))
    repeats = [1 for _ in calls]
    if not machine.gpu:
        for call in calls:
            call()
        repeats = [max(1, round(pace.sample_seconds / machine.seconds(call, 1))) for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    for number in range(-1, pace.rounds):
        for n in sorted(range(len(calls)), reverse=number % 2 == 1):
            ms = 1e3 * machine.cold_seconds(calls[n], repeats[n]) / repeats[n]
            if number >= 0:
                taken[n].append(ms)
    return taken
