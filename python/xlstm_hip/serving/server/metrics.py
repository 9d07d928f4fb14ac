# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: what the server counts of HTTP requests, and the engine's Snapshot, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..metrics import HistogramSnapshot, Snapshot
from .logs import Record

PREFIX = "xlstm_hip"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
GAUGES = {
    "waiting": ("requests_waiting", "Requests that wait for a slot"),
    "running": ("requests_running", "Requests that have a slot"),
    "slots_used": ("slots_used", "Slots of state in use"),
    "slots_total": ("slots", "Slots of state"),
    "prefix_cache_bytes": ("prefix_cache_bytes", "Bytes of kept states"),
    "prefix_cache_limit": ("prefix_cache_limit_bytes", "Bytes that they may have"),
    "prefix_cache_states": ("prefix_cache_states", "Kept states of prompts"),
    "swap_host_bytes": ("swap_host_bytes", "Host memory of states that left their slot"),
    "swap_folder_bytes": ("swap_folder_bytes", "Bytes of files of states of sessions"),
}
COUNTERS = {
    "requests_accepted": ("requests_accepted", "Requests that the engine took"),
    "requests_refused": ("requests_refused", "Requests that the engine refused: its queue was full"),
    "prefix_cache_hits": ("prefix_cache_hits", "Requests that began with a kept state"),
    "prefix_cache_misses": ("prefix_cache_misses", "Requests that began with none"),
    "prefix_cache_tokens_saved": ("prefix_cache_tokens_saved", "Prompt tokens that were not read again"),
    "tokens_prefilled": ("prompt_tokens", "Prompt tokens that were read"),
    "tokens_generated": ("generated_tokens", "Tokens that were generated"),
    "tokens_guessed": ("guessed_tokens", "Tokens that speculation guessed"),
    "tokens_guessed_right": ("guessed_right_tokens", "Those of them that were right"),
    "steps": ("engine_steps", "Steps of the engine"),
    "preemptions": ("preemptions", "Running requests that gave up their slot to one of higher priority"),
    "swapped_out": ("swapped_out", "States that left their slot for host memory"),
    "swapped_in": ("swapped_in", "States that came back to a slot"),
    "swap_failures": ("swap_failures", "States of sessions that were lost"),
    "out_of_memory": ("out_of_memory", "Steps that ran out of memory"),
    "restarts": ("engine_restarts", "Processes of this replica that ended and were followed by another"),
    "requests_continued": ("requests_continued", "Requests that another replica had begun"),
}
HISTOGRAMS = {
    "time_to_first_token": ("time_to_first_token_seconds", "From a request's submission to its first token"),
    "inter_token_latency": ("inter_token_latency_seconds", "Between tokens of a request"),
    "step_seconds": ("engine_step_seconds", "Of a step of the engine"),
    "rows_per_step": ("engine_step_rows", "Requests that a step generated tokens of"),
}


class ServerMetrics:
    """Of one server: two in a process do not count together.

    snapshots    of the engine, by replica; one that is named "" is written without a label
    """

    def __init__(self, snapshots: Callable[[], Mapping[str, Snapshot]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(snapshots))
        self._requests = Counter(
            f"{PREFIX}_http_requests", "HTTP requests by what became of them", ("route", "status", "outcome"),
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            f"{PREFIX}_http_request_seconds", "From a request's arrival to the end of its answer", ("route",),
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.open = Gauge(f"{PREFIX}_http_requests_open", "Requests that are being answered", registry=self.registry)

    def ended(self, record: Record, seconds: float) -> None:
        self._requests.labels(record.route, str(record.status), record.outcome).inc()
        self._seconds.labels(record.route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Asks the engine when Prometheus asks."""

    def __init__(self, snapshots: Callable[[], Mapping[str, Snapshot]]) -> None:
        self._snapshots = snapshots

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        snapshots = self._snapshots()
        yield GaugeMetricFamily(f"{PREFIX}_model_loaded", "Whether the model is loaded", float(bool(snapshots)))
        if not snapshots:
            return
        names = () if "" in snapshots else ("replica",)
        of = [(() if not names else (replica,), snapshot) for replica, snapshot in sorted(snapshots.items())]
        healthy = GaugeMetricFamily(f"{PREFIX}_engine_healthy", "Whether the engine runs", labels=names)
        for labels, snapshot in of:
            healthy.add_metric(labels, float(snapshot.healthy))
        yield healthy
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (written, text) in table.items():
                family = kind(f"{PREFIX}_{written}", text, labels=names)
                for labels, snapshot in of:
                    family.add_metric(labels, getattr(snapshot, name))
                yield family
        finished = CounterMetricFamily(
            f"{PREFIX}_requests_finished", "Requests that ended, by why", labels=(*names, "finish_reason")
        )
        for labels, snapshot in of:
            for reason, count in sorted(snapshot.requests_finished.items()):
                finished.add_metric((*labels, reason), count)
        yield finished
        for name, (written, text) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"{PREFIX}_{written}", text, labels=names)
            for labels, snapshot in of:
                values: HistogramSnapshot = getattr(snapshot, name)
                histogram.add_metric(labels, _buckets(values), values.sum)
            yield histogram


def _buckets(values: HistogramSnapshot) -> list[tuple[str, float]]:
    """Prometheus' buckets count all values up to their bound."""
    below, buckets = 0, []
    for bound, count in zip((*values.bounds, float("inf")), values.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(below)))
    return buckets
