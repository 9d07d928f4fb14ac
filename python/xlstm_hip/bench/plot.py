# SPDX-License-Identifier: Apache-2.0
"""Helpers for all plots: matplotlib without a display, colours, panels, bars and captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._core.extras import optional_module
from .environment import summary
from .table import short

# They stay apart for colour-blind readers; ours is the first.
COLOURS = (
    "#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999", "#882255", "#44AA99", "#000000",
    "#999933", "#F0E442",
)  # fmt: skip
PANEL = (4.6, 3.6)  # inches
MOST_COLUMNS = 4
LEAST_WIDTH = 9.5  # what the line below needs
GROUP = 0.8  # of the distance between two groups of bars
SMALL = 7  # points
FLAT = 4  # so many bars of a group have room for figures that lie


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """ "ours" first, so that it has the same one everywhere."""
    ordered = sorted(dict.fromkeys(names), key=lambda name: name != "ours")
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(ordered)}


def panels(count: int, columns: int = MOST_COLUMNS, size: tuple[float, float] = PANEL) -> tuple[Any, list[Any]]:
    """A figure and so many axes of this size; `finish` ends it."""
    optional_module("matplotlib", "drawing pictures").use("Agg")
    from matplotlib import pyplot

    columns = min(count, columns)
    rows = -(-count // columns)
    inches = (max(LEAST_WIDTH, size[0] * columns), size[1] * rows + 0.6)
    figure, axes = pyplot.subplots(rows, columns, figsize=inches, layout="constrained", squeeze=False)
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    for used in flat[:count]:
        used.grid(color="0.9")
        used.set_axisbelow(True)
        used.spines[["top", "right"]].set_visible(False)
    return figure, flat[:count]


def finish(results: dict[str, Any], figure: Any, title: str, path: Path) -> list[Path]:
    """Writes a title above and the machine below, saves the picture and returns its path."""
    from matplotlib import pyplot

    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}{title}", fontsize=11)
    figure.supxlabel(summary(results["environment"]), fontsize=SMALL, color="0.35")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return [path]


def over(axes: Any, points: Sequence[tuple[float, float]], **style: Any) -> None:
    """A line over what grows by factors of two; nothing where there are no points."""
    if points:
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, **style)
        axes.set_xscale("log", base=2)


def rows_of_bars(axes: Any, groups: Sequence[str], values: Mapping[str, Sequence[float]], colours: Any) -> list[Any]:
    """Lying bars, a group for each name on the left; values: of all groups by what the bars are."""
    bars = []
    for index, (name, lengths) in enumerate(values.items()):
        at = [group + GROUP * (index + 0.5) / len(values) - GROUP / 2 for group in range(len(groups))]
        bars.append(axes.barh(at, lengths, height=0.95 * GROUP / len(values), color=colours[name], label=name))
    axes.set_yticks(range(len(groups)), groups, fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return bars


def labelled_bars(axes: Any, values: Mapping[str, float], labels: Sequence[str], colours: Sequence[str]) -> None:
    """Lying bars, the first on top, each with a word at its end."""
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, labels, fontsize=8, padding=2)
    axes.tick_params(labelsize=SMALL)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.grid(axis="y", visible=False)


Bar = tuple[str, "dict[str, float] | None", float]  # a name, what it took, and what that is called in a word


def groups_of_bars(axes: Any, groups: Mapping[str, Sequence[Bar]], colours: Mapping[str, str]) -> None:
    """Standing bars with whiskers from least to most, a group for each name below; n/a where nothing was taken."""
    from matplotlib.patheffects import withStroke

    known: set[str] = set()
    for group, bars in enumerate(groups.values()):
        width = GROUP / len(bars)
        for index, (name, taken, value) in enumerate(bars):
            x = group - GROUP / 2 + (index + 0.5) * width
            if taken is None:
                axes.text(x, 0, " n/a", rotation=90, ha="center", va="bottom", fontsize=8, color="0.4")
                continue
            low, middle, high = (taken[key] for key in ("min", "median", "max"))
            axes.bar(x, middle, width * 0.92, color=colours[name], label=None if name in known else name)
            axes.errorbar(x, middle, [[middle - low], [high - middle]], color="0.25", capsize=2, linewidth=0.8)
            text = axes.annotate(
                short(value), (x, middle), (0, 2), textcoords="offset points", ha="center", fontsize=SMALL, zorder=5,
                rotation=90 if len(bars) > FLAT else 0,
            )  # fmt: skip
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])  # readable where a line crosses it
            known.add(name)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
    # By the medians: one disturbed round must not flatten the bars.
    medians = [taken["median"] for bars in groups.values() for _, taken, _ in bars if taken]
    axes.set_ylim(0, 1.25 * max(medians, default=1))
    axes.margins(x=0.02)
    axes.grid(axis="x", visible=False)
