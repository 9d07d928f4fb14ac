# SPDX-License-Identifier: Apache-2.0
"""What pictures share: matplotlib without a screen, colours, plain axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# They stay apart for colour-blind readers; ours is the first.
COLOURS = (
    "#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999", "#882255", "#44AA99", "#000000",
    "#999933", "#F0E442",
)  # fmt: skip


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its axes; `save` ends it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, layout="constrained", **options)


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=dpi)
    pyplot.close(figure)


def bare(*panels: Any) -> None:
    """Without a box, on a light grid."""
    for axes in panels:
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
