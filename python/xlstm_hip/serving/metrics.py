# SPDX-License-Identifier: Apache-2.0
"""What an Engine counts, and the copy of it that a reader gets."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class HistogramSnapshot:
    """counts[n] values up to bounds[n] and above the bound before; the last count is of those above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    count: int


@dataclass(frozen=True)
class Snapshot:
    """An Engine at a moment. Counts are of the time since it was made."""

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
    restarts: int = 0  # of a replica: processes of its number before this one
    requests_continued: int = 0  # that another replica had begun


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
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
    rows_per_step: Histogram = field(default_factory=lambda: Histogram(ROWS))
    step_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
