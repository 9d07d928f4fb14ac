# SPDX-License-Identifier: Apache-2.0
"""Times several calls in one process, round-robin, so that what drifts in the machine drifts for all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Call = Callable[[], Any]
Clock = Callable[[Call, int], float]  # how long so many calls, one after the other, take
# A flush of L2 is not counted, and takes as long as many a call: samples with one are so many times shorter.
COLD_SAMPLES = 20


@dataclass(frozen=True)
class Pace:
    """The time for which a set of calls is measured."""

    seconds: float  # the rounds take about this long
    least_rounds: int
    most_rounds: int
    sample_seconds: float  # a sample repeats its call until it lasts this long


QUICK = Pace(seconds=0.05, least_rounds=2, most_rounds=3, sample_seconds=0.0005)  # of smoke runs


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
    seconds: Clock = _seconds,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Samples]:
    """Every round takes one sample of every call; each_round gets the fraction of the whole that it was.

    failed: told of a call that raises, which then has no samples, while the others go on; without it the error is the
    caller's.
    """
    names = list(calls)

    def taken(name: str, call: Callable[[], float]) -> float | None:
        try:
            return call()
        except Exception as error:
            if failed is None:
                raise
            failed(name, error)
            names.remove(name)
            return None

    def once_of(name: str) -> float:
        first = seconds(calls[name], 1)  # pays for allocations and caches
        return first if first > pace.sample_seconds else seconds(calls[name], 1)

    def sample_of(name: str) -> float:
        if warm[name]:
            calls[name]()
        return seconds(calls[name], repeats[name]) / repeats[name] * 1e3

    once = {}
    for name in calls:
        if (one := taken(name, partial(once_of, name))) is not None:
            once[name] = one
    if not names:
        return {}
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
            start = number % max(1, len(names))
            for name in names[start:] + names[:start]:
                if (sample := taken(name, partial(sample_of, name))) is not None:
                    ms[name].append(sample)
            each_round(1 / rounds)
    finally:
        gc.enable()
    return {name: Samples(ms[name], repeats[name]) for name in names}
