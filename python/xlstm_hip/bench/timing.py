# SPDX-License-Identifier: Apache-2.0
"""Times several calls in one process, round-robin, so that what drifts in the machine drifts for all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]


@dataclass(frozen=True)
class Pace:
    """How long to measure a set of calls."""

    seconds: float  # the rounds take about this long
    least_rounds: int
    most_rounds: int
    sample_seconds: float  # a sample repeats its call until it lasts this long


@dataclass(frozen=True)
class Samples:
    """The time of one call in each round; index j of two calls of one set is the same round."""

    ms: list[float]
    calls_per_sample: int

    def as_json(self) -> dict[str, Any]:
        return {**spread(self.ms), "samples": self.ms, "calls_per_sample": self.calls_per_sample}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def paired_ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """The spread of the rounds' own ratios: both of a round saw the same machine."""
    return spread([a / b for a, b in zip(numerator, denominator, strict=True)])


def _seconds(call: Call, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - begin


def interleaved(
    calls: Mapping[str, Call],
    pace: Pace,
    each_round: Callable[[float], None],
    seconds: Callable[[Call, int], float] = _seconds,
) -> dict[str, Samples]:
    """Every round takes one sample of every call; each_round gets the fraction of the whole that it was.

    seconds: how long so many calls, one after the other, take.
    """
    names = list(calls)
    once = {}
    for name in names:
        first = seconds(calls[name], 1)  # pays for allocations and caches
        once[name] = first if first > pace.sample_seconds else seconds(calls[name], 1)
    repeats = {name: max(1, math.ceil(pace.sample_seconds / once[name])) for name in names}
    # One more call per sample is not timed: it brings back the caches that the other calls emptied.
    warm = {name: repeats[name] > 1 for name in names}
    round_seconds = sum(once[name] * (repeats[name] + warm[name]) for name in names)
    rounds = min(pace.most_rounds, max(pace.least_rounds, int(pace.seconds / round_seconds)))

    ms: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            # Another order each round, so that no call always follows the same one.
            start = number % len(names)
            for name in names[start:] + names[:start]:
                if warm[name]:
                    calls[name]()
                ms[name].append(seconds(calls[name], repeats[name]) / repeats[name] * 1e3)
            each_round(1 / rounds)
    finally:
        gc.enable()
    return {name: Samples(ms[name], repeats[name]) for name in names}
