# SPDX-License-Identifier: Apache-2.0
"""Shared by the pages of a whole model over a grid: names, tables of a point and a contender, reasons, curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, over
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import UNKNOWN, entry_of, heading, lines_of, section, short

Entry = dict[str, Any]
UNCHECKED = "not held to the plain kernels: the run ended before"


def head(title: str, results: Results, *lines: str) -> list[str]:
    settings, rates = results["settings"], results.get("ceilings")
    first = f"{summary(results['environment'])}; device {settings['device']}, {settings['dtype']}."
    if rates is None:
        return heading(title, results, first)
    model = results["model"]
    return heading(
        title,
        results,
        first,
        "",
        f"Model {model['name']}: {model['weights']:,} weights, {model['blocks']} blocks of {model['features']} "
        f"features, {model['heads']} heads; states of {short(model['state_bytes'] / 2**20)} MiB for each sequence, in "
        f"float32. A copy moves {short(rates['copy_bytes_per_second'] / 1e9)} GB/s, a matrix product does "
        f"{short(rates['flops_per_second'] / 1e12)} TFLOP/s. Contenders came one after the other, each with the device "
        "to itself.",
        *other_days(results),
        "",
        *lines,
    )


def names_in(results: Results) -> list[str]:
    """Of contenders that were timed at a point."""
    entries = (e for point in results["points"] for e in point["contenders"])
    return list(dict.fromkeys(e["name"] for e in entries if "ms" in e))


def table(results: Results, cell: Callable[[Results, Entry], str]) -> list[str]:
    """A row for each point, a column for each contender that was timed."""
    names, rows = names_in(results), []
    for point in results["points"]:
        entries = [entry_of(point["contenders"], name) for name in names]
        rows.append([point["title"], *(cell(point, e) if "ms" in e else UNKNOWN for e in entries)])
    return lines_of(["", *names], rows)


def rate(point: Results, entry: Entry) -> str:
    return f"{entry['tokens_per_s']:,.0f}"


def ms_text(point: Results, entry: Entry) -> str:
    return short(entry["ms"]["median"])


def share_of_floor(point: Results, entry: Entry) -> str:
    return f"{point['floors_ms'][entry['weights']] / entry['ms']['median']:.0%}"


def peak(point: Results, entry: Entry) -> str:
    return UNKNOWN if entry["peak_bytes"] is None else f"{entry['peak_bytes'] / 2**30:.2f}"


def errors(results: Results) -> list[str]:
    """The worst of each contender over the points."""
    found = (e["errors"] for point in results["points"] for e in point["contenders"] if "errors" in e)
    kinds = list(dict.fromkeys(kind for errors in found for kind in errors))
    rows: list[tuple[str, ...]] = []
    for name in names_in(results):
        entries = [e for point in results["points"] for e in point["contenders"] if e["name"] == name and "ms" in e]
        checked = [e for e in entries if "errors" in e]
        if not checked:
            rows.append((name, *("" for _ in kinds), UNCHECKED))
            continue
        worst = {kind: max(e["errors"].get(kind, 0.0) for e in checked) for kind in kinds}
        limit = checked[0]["limit"]
        note = "" if max(worst.values()) <= limit else f"inexact: more than {limit}"
        rows.append((name, *(f"{x:.1e}" for x in worst.values()), note))
    return lines_of(("", *kinds, "note"), rows)


def not_measured(results: Results) -> list[str]:
    """Why, for each contender and reason, with the points."""
    points: dict[tuple[str, str], list[str]] = {}
    for name, why, title in reasons(results):
        points.setdefault((name, why), []).append(title)
    every = len(results["points"])
    rows = [(name, "all" if len(at) == every else ", ".join(at), why) for (name, why), at in points.items()]
    return lines_of(("contender", "points", "why"), rows) if rows else ["Nothing."]


def reasons(results: Results) -> Iterator[tuple[str, str, str]]:
    for point in results["points"]:
        for entry in point["contenders"]:
            why = entry.get("missing") or entry.get("failed")
            if why:
                yield entry["name"], why, point["title"]


def other_days(results: Results) -> list[str]:
    """The lines about contenders that an earlier run left."""
    days: dict[str, dict[str, None]] = {}
    for point in results["points"]:
        for entry in point["contenders"]:
            if "date" in entry:
                days.setdefault(entry["date"][:10], {})[entry["name"]] = None
    return [line for day, names in days.items() for line in ("", f"Measured by a run of {day}: {', '.join(names)}.")]


def tail(results: Results) -> list[str]:
    known = any(e.get("peak_bytes") is not None for point in results["points"] for e in point["contenders"])
    return [
        *(section("Peak memory beyond the model, GiB", *table(results, peak)) if known else []),
        *section("Largest relative errors to the plain kernels", *errors(results)),
        *section("Not measured", *not_measured(results)),
    ]


def curves(panel: Any, results: Results, x: str, value: Callable[[Results, Entry], float]) -> None:
    """A line for each contender over x, a key of a point."""
    names = names_in(results)
    colours = colours_of(names)
    for name in names:
        entries = [(point, entry_of(point["contenders"], name)) for point in results["points"]]
        points = [(point[x], value(point, e)) for point, e in entries if "ms" in e]
        over(panel, points, label=name, color=colours[name], linewidth=1.8 if name.startswith(XLSTM_HIP) else 1)
