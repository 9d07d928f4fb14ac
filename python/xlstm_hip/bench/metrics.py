# SPDX-License-Identifier: Apache-2.0
"""The metrics of an implementation at a point."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .table import short, spread_text

MIB = 1 << 20
Ceilings = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    name: str  # the key of a result file's "metrics"
    heading: str
    text: str  # what it is
    value: Callable[[Any, dict[str, Any], Ceilings], float | None]  # of a cell, an entry and the machine's ceilings
    words: Callable[[float], str] = short


def _bytes(cell: Any, entry: dict[str, Any]) -> float:
    """That must move: those of the cell, but where a contender's own weights are of fewer bits."""
    return cell.bytes_of(entry["name"]) if hasattr(cell, "bytes_of") else cell.bytes


def floor_ms(cell: Any, entry: dict[str, Any], ceilings: Ceilings) -> float:
    """The time that the machine itself needs: the bytes at a copy's rate or the products at a matmul's."""
    by_bytes = _bytes(cell, entry) / ceilings["copy_bytes_per_second"]
    return 1e3 * max(by_bytes, cell.flops / ceilings["flops_per_second"][cell.dtype])


Amount = Callable[[Any, dict[str, Any]], float]


def _per_ms(scale: float, amount: Amount) -> Callable[[Any, dict[str, Any], Ceilings], float | None]:
    def value(cell: Any, entry: dict[str, Any], ceilings: Ceilings) -> float | None:
        many = amount(cell, entry)
        return many * scale / entry["ms"]["median"] if "ms" in entry and many else None

    return value


def _flops(cell: Any, entry: dict[str, Any]) -> float:
    return cell.flops


def _tokens(cell: Any, entry: dict[str, Any]) -> float:
    return cell.tokens if getattr(cell, "work", "") == "write" else 0


METRICS = {
    metric.name: metric
    for metric in (
        Metric("ms", "ms", "median time of a call", lambda c, e, x: e["ms"]["median"] if "ms" in e else None),
        Metric("tflops", "TFLOP/s", "products that the definition needs, a second", _per_ms(1e-9, _flops)),
        Metric("gb_per_second", "GB/s", "bytes that must move, a second", _per_ms(1e-6, _bytes)),
        Metric("tokens_per_second", "tokens/s", "tokens that a model writes, a second", _per_ms(1e3, _tokens)),
        Metric(
            "peak_mib", "peak MiB", "memory that a call adds at its worst moment",
            lambda c, e, x: e["peak_bytes"] / MIB if e.get("peak_bytes") is not None else None,
        ),
        Metric(
            "roofline", "of roofline", "what the machine's own copy and matmul would need, as a share of the time",
            lambda c, e, x: floor_ms(c, e, x) / e["ms"]["median"] if "ms" in e else None, lambda value: f"{value:.0%}",
        ),
        Metric(
            "times_ours", "times ours", "how many times longer than the first of ours, by the rounds' own ratios",
            lambda c, e, x: e["times_ours"]["median"] if "times_ours" in e else None, lambda value: f"{value:.2f}x",
        ),
        Metric(
            "error", "error",
            "the largest relative error to the truth, by norm; of a text how far a token is below the truth's best one",
            lambda c, e, x: max(e["errors"].values()) if e.get("errors") else None, lambda value: f"{value:.1e}",
        ),
    )
}  # fmt: skip


def of(cell: Any, entry: dict[str, Any], ceilings: Ceilings) -> dict[str, float | None]:
    return {name: metric.value(cell, entry, ceilings) for name, metric in METRICS.items()}


def say(cell: Any, entry: dict[str, Any], names: Iterable[str], ceilings: Ceilings | None = None) -> None:
    """Some of them stand in the entry itself, where there is something to say."""
    for name in names:
        value = METRICS[name].value(cell, entry, ceilings or {})
        if value is not None:
            entry[name] = value


def words(name: str, entry: dict[str, Any]) -> str:
    """As a table has it: with the spread, where it is a time."""
    value = entry.get("metrics", {}).get(name)
    if value is None:
        return ""
    return spread_text(entry["ms"]) if name == "ms" else METRICS[name].words(value)
