# SPDX-License-Identifier: Apache-2.0
"""The figure of a result file of mlstm_cpu.py, drawn from the file alone.

python benchmarks/plot.py results/mlstm_cpu.json [picture.png]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import save, subplots
from xlstm_hip.bench.result_files import redraw

Results = dict[str, Any]
# Label and colour of each kernel; colours that stay apart for colour-blind readers, ours are the blues.
STYLES = {
    "ours": ("ours", "#0072B2"),
    "ours, in place": ("ours, in place", "#56B4E9"),
    "native_autograd": ("mlstm_kernels native_autograd", "#D55E00"),
    "native_custbw": ("mlstm_kernels native_custbw", "#E69F00"),
    "native step": ("mlstm_kernels native", "#D55E00"),
    "transformers": ("HF transformers, native", "#999999"),
}
AIM_COLOUR, MATMUL_COLOUR = "black", "#CC3399"
PANELS = {"forward": "µs per token", "forward+backward": "µs per token", "step": "ms per sequence"}
GROUP = 0.8  # of the distance between two groups
SMALL = 7  # points, fits four digits on a bar


def _per_work(cell: Results, ms: float) -> float:
    """Microseconds per token, of a step milliseconds per sequence, so that lengths and batches share an axis."""
    return ms / cell["batch"] if cell["work"] == "step" else ms * 1e3 / (cell["batch"] * cell["tokens"])


def _short(value: float) -> str:
    """Few digits, never an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def _panel(axes: Any, results: Results, work: str) -> None:
    from matplotlib.patheffects import withStroke

    cells = [cell for cell in results["cells"] if cell["work"] == work]
    names = [kernel["name"] for kernel in cells[0]["kernels"]]
    width = GROUP / len(names)
    for group, cell in enumerate(cells):
        left = group - GROUP / 2
        for place, kernel in enumerate(cell["kernels"]):
            x = left + (place + 0.5) * width
            if "missing" in kernel:
                axes.text(x, 0, " n/a", rotation=90, ha="center", va="bottom", fontsize=8, color="0.4")
                continue
            low, middle, high = (_per_work(cell, kernel["ms"][key]) for key in ("min", "median", "max"))
            label, colour = STYLES[kernel["name"]]
            axes.bar(x, middle, width * 0.92, color=colour, label=label if group == 0 else None)
            axes.errorbar(x, middle, [[middle - low], [high - middle]], color="0.25", capsize=2, linewidth=0.8)
            text = axes.annotate(
                _short(middle), (x, middle), (0, 2), textcoords="offset points", ha="center", fontsize=SMALL, zorder=5
            )
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])  # readable where a line crosses it
        _aims(axes, results, cell, left)
    axes.set_xticks(range(len(cells)), [f"{cell['dtype']}\n{cell['size']}" for cell in cells])
    axes.set_title(work)
    axes.set_ylabel(PANELS[work])
    # By the medians: one disturbed round must not flatten the bars.
    medians = [
        _per_work(cell, kernel["ms"]["median"]) for cell in cells for kernel in cell["kernels"] if "ms" in kernel
    ]
    axes.set_ylim(0, 1.25 * max(medians))
    axes.margins(x=0.02)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _aims(axes: Any, results: Results, cell: Results, left: float) -> None:
    """Our bars should end below these lines."""
    peers = [kernel["ms"]["median"] for kernel in cell["kernels"] if kernel["side"] != "xlstm_hip" and "ms" in kernel]
    if peers:
        aim = results["aims"][cell["work"]][cell["dtype"]]
        y = _per_work(cell, min(peers) / aim)
        axes.hlines(y, left, left + GROUP, colors=AIM_COLOUR, linewidth=1.4)
        beside = (left + GROUP, y), (2, 0)
        axes.annotate(f"{aim:g}x", *beside, textcoords="offset points", va="center", fontsize=SMALL)
    if cell["yardstick"]["name"].startswith("torch.matmul"):
        rate = cell["yardstick"]["giga_per_second"]["median"] * results["aims"]["share of matmul"]
        y = _per_work(cell, cell["gflop"] / rate * 1e3)
        axes.hlines(y, left, left + GROUP, colors=MATMUL_COLOUR, linestyles="dashed", linewidth=1.4)


def draw(results: Results, path: Path) -> None:
    from matplotlib.lines import Line2D

    figure, panels = subplots(1, len(PANELS), (17, 6))
    for axes, work in zip(panels, PANELS, strict=True):
        _panel(axes, results, work)
        handles, labels = axes.get_legend_handles_labels()
        handles.append(Line2D([], [], color=AIM_COLOUR))
        labels.append("aim: this many times faster than the fastest peer")
        if work != "step":
            handles.append(Line2D([], [], color=MATMUL_COLOUR, linestyle="dashed"))
            labels.append(f"{results['aims']['share of matmul']:.0%} of torch.matmul fp32")
        axes.legend(handles, labels, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12))
    first = results["cells"][0]
    shape = f"NH{first['heads']}, head dims {first['dqk']}/{first['dhv']}"
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}mLSTM on the CPU, {shape}: median time, whiskers min to max; lower is better", fontsize=13)
    figure.supxlabel(summary(results["environment"]), fontsize=8, color="0.35")
    save(figure, path, dpi=130)


if __name__ == "__main__":
    redraw(draw)
