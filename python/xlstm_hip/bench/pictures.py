# SPDX-License-Identifier: Apache-2.0
"""The pictures of a result file of `xlstm-hip bench`: one for each series, and a roofline, from the file alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import metrics
from .plot import COLOURS, colours_of, finish, over, panels, rows_of_bars
from .registry import XLSTM_HIP
from .report import timed

Results = dict[str, Any]


@dataclass(frozen=True)
class Series:
    name: str
    title: str
    x: str
    metric: str
    log_y: bool = True


SERIES = (
    Series("length", "over the length, as many tokens in all", "tokens of a sequence", "ms"),
    Series("head dim", "over the head dim, as wide in all", "head dim", "ms"),
    Series("chunk size", "over the chunk size", "tokens of a chunk", "ms"),
    Series("shapes", "heads of models over the length, as many tokens in all", "tokens of a sequence", "ms"),
    Series("heads", "over the number of heads", "heads", "ms"),
    Series("batch", "a step over the batch", "sequences", "ms"),
    Series("rows", "drawing a token of each row", "rows", "ms"),
    Series("keys", "one token against a cache", "keys in the cache", "ms"),
    Series("prompt", "time to the first token", "tokens of the prompt", "ms"),
    Series("context", "writing after ever more text", "tokens before", "tokens_per_second", log_y=False),
)

BARS = (  # of a series whose x are names: the file, its title, and the metric
    ("layer", "layers", "layers; higher is better", "roofline"),
    ("packed", "packed", "packed sequences; lower is better", "ms"),
)


def draw(results: Results, base: Path) -> list[Path]:
    """base: the result file; pictures lie beside it, named by their series."""
    files = []
    points = list(timed(results))
    for series in SERIES:
        selected = [(p, e) for p, e in points if p["series"] == series.name]
        if selected:
            files += _lines(
                results, series, selected, base.with_name(f"{base.stem}_{series.name.replace(' ', '_')}.png")
            )
    for name, stem, title, metric in BARS:
        selected = [(p, e) for p, e in points if p["series"] == name]
        if selected:
            files += _bars(results, selected, title, metric, base.with_name(f"{base.stem}_{stem}.png"))
    fused = [(p, e) for p, e in points if e["provider"] == XLSTM_HIP and p["series"] != "selection" and p["flops"]]
    if any(p["series"] != "selection" and p["flops"] for p, _ in points):
        files += _roofline(results, fused, base.with_name(f"{base.stem}_roofline.png"))
    return files


Points = list[tuple[Results, Results]]  # with an entry each


def _operator_of(point: Results) -> str:
    """With the heads, where those are what differs between points of a length."""
    shape = point["shape"]
    if point["series"] != "shapes":
        return str(point["operator"])
    dims = f"{shape['dqk']}/{shape['dhv']}" if "dqk" in shape else shape["head_dim"]
    return f"{point['operator']}, {shape['heads']} x {dims}"


def _by_panel(points: Points) -> dict[tuple[str, str], Points]:
    """A panel for each operator and dtype."""
    panels: dict[tuple[str, str], Points] = {}
    for p, e in points:
        panels.setdefault((_operator_of(p), p["shape"]["dtype"]), []).append((p, e))
    return panels


def _lines(results: Results, series: Series, points: Points, path: Path) -> list[Path]:
    colours = colours_of(e["name"] for _, e in points)
    by_panel = _by_panel(points)
    figure, axes = panels(len(by_panel))
    for panel, ((operator, dtype), panel_points) in zip(axes, by_panel.items(), strict=True):
        for name in dict.fromkeys(e["name"] for _, e in panel_points):
            marks = sorted(((p["x"], e) for p, e in panel_points if e["name"] == name), key=lambda mark: mark[0])
            over(panel, [(x, e["metrics"][series.metric]) for x, e in marks], color=colours[name], label=name)
            if series.metric == "ms":
                low, high = ([e["ms"][key] for _, e in marks] for key in ("min", "max"))
                panel.fill_between([x for x, _ in marks], low, high, color=colours[name], alpha=0.15, linewidth=0)
        if series.log_y:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.set(title=f"{operator}, {dtype}", xlabel=series.x, ylabel=metrics.METRICS[series.metric].heading)
        panel.legend(fontsize=7, frameon=False)
    better = "higher" if series.metric == "tokens_per_second" else "lower"
    return finish(results, figure, f"{series.title}; {better} is better", path)


def _bars(results: Results, points: Points, title: str, metric: str, path: Path) -> list[Path]:
    colours = colours_of(e["name"] for _, e in points)
    by_panel = _by_panel(points)
    figure, axes = panels(len(by_panel))
    for panel, ((operator, dtype), panel_points) in zip(axes, by_panel.items(), strict=True):
        groups = list(dict.fromkeys(p["x"] for p, _ in panel_points))
        share = metric == "roofline"
        lengths = {(p["x"], e["name"]): (100 if share else 1) * e["metrics"][metric] for p, e in panel_points}
        names = dict.fromkeys(e["name"] for _, e in panel_points)
        values = {name: [lengths.get((group, name), 0.0) for group in groups] for name in names}
        rows_of_bars(panel, groups, values, colours)
        if share:
            panel.axvline(100, color="0.5", linewidth=0.8)
        panel.set(title=f"{operator}, {dtype}", xlabel="% of a copy's bandwidth" if share else "ms")
        panel.legend(fontsize=7, frameon=False)
    return finish(results, figure, title, path)


def _roofline(results: Results, points: Points, path: Path) -> list[Path]:
    """Ours alone, each operator a colour: what the machine allows at so many products a byte, and what is reached."""
    top = results["ceilings"]
    dtypes = list(top["flops_per_second"])
    figure, axes = panels(len(dtypes))
    operators = list(dict.fromkeys(p["operator"] for p, _ in points))
    for panel, dtype in zip(axes, dtypes, strict=True):
        of_dtype = [(p, e) for p, e in points if p["shape"]["dtype"] == dtype]
        reached = [(e["metrics"]["tflops"], e["metrics"]["gb_per_second"], p["operator"]) for p, e in of_dtype]
        spots = [(1e3 * tflops / moved, tflops, name) for tflops, moved, name in reached]
        rate, copy = top["flops_per_second"][dtype] / 1e12, top["copy_bytes_per_second"] / 1e12
        xs = sorted([*(x for x, _, _ in spots), rate / copy / 8, rate / copy, rate / copy * 8])
        panel.plot(xs, [min(rate, copy * x) for x in xs], color="0.4", linewidth=1.2)
        for index, operator in enumerate(operators):
            marks = [(x, y) for x, y, name in spots if name == operator]
            if marks:
                panel.scatter(*zip(*marks, strict=True), s=14, color=COLOURS[index % len(COLOURS)], label=operator)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set(title=dtype, xlabel="operations a byte", ylabel="TFLOP/s")
        panel.legend(fontsize=7, frameon=False)
    return finish(results, figure, "ours under this machine's own copy and matmul", path)
