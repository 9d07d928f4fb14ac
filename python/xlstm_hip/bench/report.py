# SPDX-License-Identifier: Apache-2.0
"""The tables of a result file of `xlstm-hip bench`, from the file alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from . import metrics, selection
from .environment import summary
from .table import heading, lines_of, section

Results = dict[str, Any]
SELECTED_METRICS = ("ms", "times_ours", "error")  # the table of choices says the rest


def timed(results: Results) -> Iterable[tuple[Results, Results]]:
    """Points and entries that have a time."""
    return ((p, e) for p in results["points"] for e in p.get("entries", ()) if "ms" in e)


def markdown(results: Results, columns: Sequence[str] = tuple(metrics.METRICS)) -> str:
    """wanted: names of metrics."""
    top = results["ceilings"]
    rates = ", ".join(f"{dtype} {rate / 1e12:.3g} TFLOP/s" for dtype, rate in top["flops_per_second"].items())
    lines = heading(
        "xlstm-hip bench",
        results,
        f"{summary(results['environment'])}; device {results['settings']['device']}.",
        f"Its own copy: {top['copy_bytes_per_second'] / 1e9:.0f} GB/s; its own matmul: {rates}.",
    )
    for operator in dict.fromkeys(p["operator"] for p in results["points"]):
        points = [p for p in results["points"] if p["operator"] == operator]
        shown = SELECTED_METRICS if points[0]["series"] == "selection" else columns
        rows = [row for p in points for row in _rows(p, [name for name in columns if name in shown])]
        if rows:
            headings = [metrics.METRICS[name].heading for name in columns if name in shown]
            lines += section(operator, *lines_of(("series", "shape", "dtype", "", *headings, "note"), rows))
    lines += _selection(results)
    lines += section("Not measured", *_missing(results)) + section("What the columns say")
    lines += [f"- {x.heading}: {x.text}" for x in metrics.METRICS.values() if x.name in columns]
    lines += [
        "",
        "Medians (min..max). Implementations take turns; every result but another function's is held to a truth before",
        "it is timed: float64, of whole models the plain kernels in the same dtype. On a GPU operators are timed by",
        "events with an empty L2, whole models with all that the host does. A share of the roofline above 100% is the",
        "cache's.",
    ]
    return "\n".join(lines) + "\n"


def _rows(point: Results, columns: Sequence[str]) -> list[tuple[str, ...]]:
    rows = []
    for entry in point.get("entries", ()):
        if "ms" not in entry:
            continue
        note = f"inexact: {', '.join(entry['inexact'])}" if entry.get("inexact") else ""
        if "errors" not in entry:
            note = "another function"
        lead = (point["series"], point["shape"]["size"], point["shape"]["dtype"], entry["name"])
        rows.append((*lead, *(metrics.words(name, entry) for name in columns), note))
    return rows


def _missing(results: Results) -> list[str]:
    """By reason, so that what was never to be had here takes a line each."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for point in results["points"]:
        for entry in (point, *point.get("entries", ())):
            subject = "all" if entry is point else f"{entry['provider']}: {entry['name']}"
            if "missing" in entry:
                reasons.setdefault((subject, entry["missing"]), []).append(point["operator"])
            if "failed" in entry:
                where = f"{point['operator']} {point['title']}"
                reasons.setdefault((subject, f"FAILED: {entry['failed']}"), []).append(where)
    rows = [
        (subject, ", ".join(f"{x} ({n} points)" if n > 1 else x for x, n in Counter(where).items()), why)
        for (subject, why), where in reasons.items()
    ]
    return lines_of(("implementation", "of", "why"), rows) if rows else ["Nothing is missing."]


def _selection(results: Results) -> list[str]:
    found = list(selection.choices(results))
    if not found:
        return []
    rows = []
    for regime in dict.fromkeys(x.regime for x in found):
        of_regime = [x for x in found if x.regime == regime]
        near = sum(x.near for x in of_regime)
        worst = max(of_regime, key=lambda x: x.times_best)
        verdict = "" if regime != "auto" else "met" if near >= selection.AIM * len(of_regime) else "MISSED"
        share = f"{near} of {len(of_regime)} ({near / len(of_regime):.1%})"
        rows.append((regime, share, f"{worst.times_best:.2f}x at {worst.operator} {worst.dtype} {worst.size}", verdict))
    percent = f"{selection.NEAR - 1:.0%}"
    lines = ["", "## Selection", "", f"How often a regime's choice is within {percent} of the fastest kernel."]
    lines += ["", *lines_of(("regime", f"within {percent}", "worst", f"aim {selection.AIM:.0%}"), rows)]
    far = [x for x in found if x.regime == "auto" and not x.near]
    if far:
        missed = [(x.operator, x.dtype, x.size, x.kernel, x.best, f"{x.times_best:.2f}x") for x in far]
        columns = ("work", "dtype", "shape", "auto", "fastest", "times the fastest")
        lines += ["", 'Where "auto" is further off:', "", *lines_of(columns, missed)]
    return lines
