# SPDX-License-Identifier: Apache-2.0
"""The pictures of a result file of `xlstm-hip bench`: one for each series, and a roofline, from the file alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import metrics
from .environment import summary
from .plot import COLOURS, bare, save, subplots
from .registry import OURS
from .report import timed

Results = dict[str, Any]
PANEL = (4.6, 3.6)  # inches
MOST_COLUMNS = 4
LEAST_WIDTH = 9.5  # what the line below needs


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
    Series("batch", "a step over the batch", "sequences", "ms"),
    Series("rows", "drawing a token of each row", "rows", "ms"),
    Series("keys", "one token against a cache", "keys in the cache", "ms"),
    Series("prompt", "time to the first token", "tokens of the prompt", "ms"),
    Series("context", "writing after ever more text", "tokens before", "tokens_per_second", log_y=False),
)


def colour_of(entries: Iterable[Results]) -> dict[str, str]:
    """By implementation; "ours" first, so that it has the same one everywhere."""
    names = sorted(dict.fromkeys(e["name"] for e in entries), key=lambda name: name != "ours")
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def draw(results: Results, base: Path) -> list[Path]:
    """base: the result file; pictures lie beside it, named by their series."""
    made = []
    points = list(timed(results))
    for series in SERIES:
        own = [p for p, _ in points if p["series"] == series.name]
        panels = list(dict.fromkeys((p["operator"], p["shape"]["dtype"]) for p in own))
        if panels:
            path = base.with_name(f"{base.stem}_{series.name.replace(' ', '_')}.png")
            _lines(results, series, panels, path)
            made.append(path)
    if any(p["series"] == "layer" for p, _ in points):
        made.append(base.with_name(f"{base.stem}_layers.png"))
        _layers(results, made[-1])
    if any(p["series"] != "selection" and p["flops"] for p, _ in points):
        made.append(base.with_name(f"{base.stem}_roofline.png"))
        _roofline(results, made[-1])
    return made


def _figure(count: int) -> tuple[Any, list[Any]]:
    columns = min(count, MOST_COLUMNS)
    rows = -(-count // columns)
    figure, axes = subplots(rows, columns, (max(LEAST_WIDTH, PANEL[0] * columns), PANEL[1] * rows + 0.6), squeeze=False)
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    return figure, flat[:count]


def _finish(results: Results, figure: Any, title: str, path: Path) -> None:
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}{title}", fontsize=11)
    figure.supxlabel(summary(results["environment"]), fontsize=7, color="0.35")
    save(figure, path)


def _lines(results: Results, series: Series, panels: list[tuple[str, str]], path: Path) -> None:
    colours = colour_of(e for p, e in timed(results) if p["series"] == series.name)
    figure, axes = _figure(len(panels))
    for panel, (operator, dtype) in zip(axes, panels, strict=True):
        own = [
            (p, e)
            for p, e in timed(results)
            if (p["operator"], p["shape"]["dtype"], p["series"]) == (operator, dtype, series.name)
        ]
        for name in dict.fromkeys(e["name"] for _, e in own):
            marks = sorted((p["x"], e) for p, e in own if e["name"] == name)
            xs, entries = [x for x, _ in marks], [e for _, e in marks]
            ys = [e["metrics"][series.metric] for e in entries]
            panel.plot(xs, ys, marker="o", markersize=3, color=colours[name], label=name)
            if series.metric == "ms":
                low, high = [e["ms"]["min"] for e in entries], [e["ms"]["max"] for e in entries]
                panel.fill_between(xs, low, high, color=colours[name], alpha=0.15, linewidth=0)
        panel.set_xscale("log", base=2)
        if series.log_y:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.set(title=f"{operator}, {dtype}", xlabel=series.x, ylabel=metrics.METRICS[series.metric].heading)
        panel.legend(fontsize=7, frameon=False)
    bare(*axes)
    better = "higher" if series.metric == "tokens_per_second" else "lower"
    _finish(results, figure, f"{series.title}; {better} is better", path)


def _layers(results: Results, path: Path) -> None:
    own = [(p, e) for p, e in timed(results) if p["series"] == "layer"]
    colours = colour_of(e for _, e in own)
    panels = list(dict.fromkeys((p["operator"], p["shape"]["dtype"]) for p, _ in own))
    figure, axes = _figure(len(panels))
    for panel, key in zip(axes, panels, strict=True):
        here = [(p, e) for p, e in own if (p["operator"], p["shape"]["dtype"]) == key]
        layers, names = (list(dict.fromkeys(x)) for x in zip(*((p["x"], e["name"]) for p, e in here), strict=True))
        for p, e in here:
            place = layers.index(p["x"]) + 0.8 * names.index(e["name"]) / len(names)
            label = e["name"] if p["x"] == layers[0] else None
            panel.barh(place, 100 * e["metrics"]["roofline"], 0.7 / len(names), color=colours[e["name"]], label=label)
        panel.set_yticks([n + 0.2 for n in range(len(layers))], layers, fontsize=8)
        panel.axvline(100, color="0.5", linewidth=0.8)
        panel.invert_yaxis()
        panel.set(title=f"{key[0]}, {key[1]}", xlabel="% of a copy's bandwidth")
        panel.legend(fontsize=7, frameon=False)
    bare(*axes)
    _finish(results, figure, "layers; higher is better", path)


def _roofline(results: Results, path: Path) -> None:
    """Ours alone, each operator a colour: what the machine allows at so many products a byte, and what is reached."""
    top = results["ceilings"]
    dtypes = list(top["flops_per_second"])
    figure, axes = _figure(len(dtypes))
    own = [(p, e) for p, e in timed(results) if e["provider"] == OURS and p["series"] != "selection" and p["flops"]]
    operators = list(dict.fromkeys(p["operator"] for p, _ in own))
    for panel, dtype in zip(axes, dtypes, strict=True):
        here = [(p, e) for p, e in own if p["shape"]["dtype"] == dtype]
        spots = [(p["flops"] / p["bytes"], e["metrics"]["tflops"], p["operator"]) for p, e in here]
        rate, copy = top["flops_per_second"][dtype] / 1e12, top["copy_bytes_per_second"] / 1e12
        xs = sorted([*(x for x, _, _ in spots), rate / copy / 8, rate / copy, rate / copy * 8])
        panel.plot(xs, [min(rate, copy * x) for x in xs], color="0.4", linewidth=1.2)
        for place, operator in enumerate(operators):
            marks = [(x, y) for x, y, who in spots if who == operator]
            if marks:
                panel.scatter(*zip(*marks, strict=True), s=14, color=COLOURS[place % len(COLOURS)], label=operator)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set(title=dtype, xlabel="operations a byte", ylabel="TFLOP/s")
        panel.legend(fontsize=7, frameon=False)
    bare(*axes)
    _finish(results, figure, "ours under this machine's own copy and matmul", path)
