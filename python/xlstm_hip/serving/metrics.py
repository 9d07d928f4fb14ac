# SPDX-License-Identifier: Apache-2.0
"""What an Engine counts, and the copy of it that a reader gets."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "rows_per_step": ROWS,
    "step_seconds": SECONDS,
    "time_to_first_token": SECONDS,
    "inter_token_latency": SECONDS,
}


@dataclass(frozen=True)
class HistogramSnapshot:
    """counts[n] values up to bounds[n] and above the bound before; the last count is of those above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    count: int


@dataclass(frozen=True)
class Snapshot:
    """An Engine at a moment, or the sum of several. Counts are of the time since it was made."""

    healthy: bool
    waiting: int  # requests in the queue
    running: int  # requests that have a slot
    slots_used: int
    slots_total: int
    requests_accepted: int
    requests_refused: int  # QueueFull
    requests_finished: dict[str, int]  # by finish reason
    prefix_cache_hits: int  # requests that began with a kept state
    prefix_cache_misses: int
    prefix_cache_tokens_saved: int
    prefix_cache_bytes: int
    prefix_cache_limit: int  # bytes at most: prefix_cache_bytes of the configuration, less where memory ran out
    prefix_cache_states: int
    tokens_prefilled: int
    tokens_generated: int
    steps: int
    preemptions: int
    swapped_out: int  # states to host memory, of sessions and preempted requests
    swapped_in: int
    swap_failures: int  # states of sessions that were lost: not written, damaged, or no room for them
    swap_host_bytes: int
    swap_folder_bytes: int
    out_of_memory: int  # steps that ran out of memory
    rows_per_step: HistogramSnapshot  # that decoded
    step_seconds: HistogramSnapshot
    time_to_first_token: HistogramSnapshot
    inter_token_latency: HistogramSnapshot
    tokens_guessed: int = 0  # by speculation
    tokens_guessed_right: int = 0
    replicas: int = 1  # processes with an engine
    replicas_up: int = 1
    replica_restarts: int = 0  # after processes that ended by themselves
    requests_continued: int = 0  # in another process than the one that ended

    def of_the_past(self) -> Snapshot:
        """What an engine that is gone has counted; it holds nothing."""
        nothing: dict[str, Any] = dict.fromkeys(HELD, 0)
        return replace(self, healthy=False, **nothing)


HELD = (
    "waiting", "running", "slots_used", "slots_total", "prefix_cache_bytes", "prefix_cache_limit",
    "prefix_cache_states", "swap_host_bytes", "swap_folder_bytes",
)  # fmt: skip


def summed(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Of several engines together; healthy if one is."""
    return Snapshot(**{one.name: _sum([getattr(x, one.name) for x in snapshots], one.name) for one in fields(Snapshot)})


def _sum(values: list[Any], name: str) -> Any:
    if name == "healthy":
        return any(values)
    if name == "requests_finished":
        return {
            reason: sum(one.get(reason, 0) for one in values) for reason in sorted({r for one in values for r in one})
        }
    if name in HISTOGRAMS:
        bounds = HISTOGRAMS[name]
        counts = [sum(column) for column in zip(*(one.counts for one in values), strict=True)] or [0] * (
            len(bounds) + 1
        )
        return HistogramSnapshot(bounds, tuple(counts), sum(one.sum for one in values), sum(counts))
    return sum(values)


class Histogram:
    """With the bounds of that name."""

    def __init__(self, name: str) -> None:
        self._bounds = bounds = HISTOGRAMS[name]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum, sum(self._counts))


@dataclass
class Counts:
    """What the engine's own thread counts; its parts count for themselves what they do."""

    accepted: int = 0
    refused: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    prefix_hits: int = 0
    prefix_misses: int = 0
    tokens_saved: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    steps: int = 0
    preemptions: int = 0
    out_of_memory: int = 0
    guessed: int = 0
    guessed_right: int = 0
    rows_per_step: Histogram = field(default_factory=lambda: Histogram("rows_per_step"))
    step_seconds: Histogram = field(default_factory=lambda: Histogram("step_seconds"))
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram("time_to_first_token"))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram("inter_token_latency"))
