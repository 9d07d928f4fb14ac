# SPDX-License-Identifier: Apache-2.0
"""The Markdown table and the picture of a result file of mlstm_gpu.py, from the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlstm_hip.bench.mlstm_contenders import COMMON
from xlstm_hip.bench.plot import save, subplots
from xlstm_hip.bench.table import lines_of

Results = dict[str, Any]
MIB = 1 << 20
LATE_COLUMNS = ("shape", "contender", "why")
# What is aimed at on an H200, by shape: times faster than mlstm_kernels' fastest here and than FLA; "common" is for the
# schedule that AMD users get, a contender of its own. MiB: of h, the gradients and all between. A step: us, one replay.
AIMS: dict[str, dict[str, dict[str, float]]] = {
    "B8 NH8 S8192 256/512": {
        "forward": {"common mlstm_kernels": 3.6, "common FLA": 1.4, "mlstm_kernels": 8.5, "FLA": 3.3},
        "forward+backward": {"mlstm_kernels": 5.8, "MiB": 1.5 * 1024},
    },
    "B1 NH8 S8192 256/512": {
        "forward": {"common mlstm_kernels": 3, "mlstm_kernels": 5.5, "FLA": 2},
        "forward+backward": {"mlstm_kernels": 4.5},
    },
    "B1 NH8 S2048 256/512": {
        "forward": {"common mlstm_kernels": 2.5, "mlstm_kernels": 3, "FLA": 1.9},
        "forward+backward": {"mlstm_kernels": 6.5},
    },
    "B8 NH16 S8192 128/256": {
        "forward": {"common mlstm_kernels": 3, "mlstm_kernels": 6, "FLA": 2.5},
        "forward+backward": {"mlstm_kernels": 4.5},
    },
}
STEP_AIMS = {"B1 NH8 256/512": 5.0, "B8 NH8 256/512": 18.0, "B64 NH8 256/512": 132.0}
COLOURS = {"xlstm_hip": "#0072B2", "mlstm_kernels": "#D55E00", "FLA": "#999999"}


def shape_of(cell: Results) -> str:
    return cell["title"].removeprefix(cell["work"]).strip()


def _text(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _median(kernel: Results, mode: str, scale: float = 1) -> float | None:
    return kernel[mode]["median"] * scale if mode in kernel else None


def ratio_to(cell: Results, ours: str, side: str, mode: str) -> Results | None:
    """Against the fastest kernel of that side."""
    own = [r for r in cell["ratios"] if (r["ours"], r["side"], r["mode"]) == (ours, side, mode)]
    return min(own, key=lambda r: r["median"], default=None)


def _verdict(value: float, aim: float, least: bool) -> str:
    return "met" if (value >= aim if least else value <= aim) else "MISSED"


def _ratio_text(cell: Results, kernel: str, side: str, aims: dict[str, float]) -> str:
    """As called, then in graphs, where the host does not count. Each is held to the aim."""
    ratios = {mode: ratio_to(cell, kernel, side, mode) for mode in ("eager", "graph")}
    medians = {mode: ratio["median"] for mode, ratio in ratios.items() if ratio}
    texts = [f"{median:.2f}x" for median in medians.values()]
    aim = aims.get({"ours": side, COMMON: f"common {side}"}.get(kernel, ""))
    if aim is not None and medians:
        verdicts = {mode: _verdict(median, aim, True) for mode, median in medians.items()}
        agreed = len(set(verdicts.values())) == 1
        texts.append(f"aim {aim:g} " + ("{eager}" if agreed else "{eager}, in a graph {graph}").format(**verdicts))
    return ", ".join(texts)


def _sequence_rows(cell: Results) -> list[tuple[str, ...]]:
    aims = AIMS.get(shape_of(cell), {}).get(cell["work"], {})
    rows = []
    for kernel in (k for k in cell["kernels"] if "missing" not in k):
        lead = (shape_of(cell), cell["work"], kernel["name"])
        times = (_text(_median(kernel, "eager")), _text(_median(kernel, "graph")), _text(kernel["host_ms"]))
        ratios = [_ratio_text(cell, kernel["name"], side, aims) for side in ("mlstm_kernels", "FLA")]
        peak = kernel["peak_bytes"]
        memory = "n/a" if peak is None else f"{peak / MIB:.0f} (results {cell['result_bytes'] / MIB:.0f})"
        if peak is not None and "MiB" in aims and kernel["name"] == "ours":
            within = cell["result_bytes"] / MIB <= aims["MiB"]
            memory += f", aim {aims['MiB']:g} {_verdict(peak / MIB, aims['MiB'], False)}"
            memory += "" if within else ", which the results alone are"
        floors = f"{_text(cell['floors_ms']['bytes'])}, {_text(cell['floors_ms']['flops'])}"
        rows.append((*lead, *times, *ratios, floors, memory))
    return rows


def _step_rows(cell: Results) -> list[tuple[str, ...]]:
    rows = []
    for kernel in (k for k in cell["kernels"] if "missing" not in k):
        once = _median(kernel, "one replay", 1e3)
        ratio = ratio_to(cell, kernel["name"], "mlstm_kernels", "one replay")
        verdict = ""
        if once is not None and kernel["side"] == "xlstm_hip" and shape_of(cell) in STEP_AIMS:
            aim = STEP_AIMS[shape_of(cell)]
            verdict = f"aim {aim:g} {_verdict(once, aim, False)}"
        replays = [ms * 1e3 for ms in cell.get("replay_floors_ms", {}).values()]
        floors = ", ".join(map(_text, (cell["floors_ms"]["bytes"] * 1e3, *replays)))
        times = (_text(once), _text(_median(kernel, "graph", 1e3)), _text(kernel["host_ms"] * 1e3))
        rows.append(
            (shape_of(cell), kernel["name"], *times, f"{ratio['median']:.2f}x" if ratio else "", floors, verdict)
        )
    return rows


def _length_rows(results: Results) -> list[tuple[str, ...]]:
    rows = []
    for point in results["lengths"]:
        if "missing" in point:
            rows.append((point["work"], str(point["tokens"]), point["missing"], "", "", ""))
            continue
        ms, peak = point["ms"]["median"], point["peak_bytes"]
        memory = ("n/a", "n/a")
        if peak is not None:
            beyond = peak - point["result_bytes"]
            memory = (f"{peak / MIB:.0f}", f"{beyond / point['tokens']:.1f}")
        rows.append((point["work"], str(point["tokens"]), _text(ms), _text(ms * 1e6 / point["tokens"]), *memory))
    return rows


def _missing_rows(results: Results) -> list[tuple[str, ...]]:
    rows = []
    for cell in results["cells"]:
        if "missing" in cell:
            rows.append((cell["title"], "all", cell["missing"]))
        for kernel in cell.get("kernels", ()):
            for what in ("missing", "no graph"):
                if what in kernel:
                    rows.append((cell["title"], kernel["name"], f"{what}: {kernel[what]}"))
    return rows


def _error_rows(results: Results) -> list[tuple[str, ...]]:
    rows = []
    for cell in results["cells"]:
        for kernel in cell.get("kernels", ()):
            for name, error in kernel.get("errors", {}).items():
                wrong = "" if error <= results["settings"]["exact"] else "INEXACT"
                rows.append((cell["title"], kernel["name"], name, f"{error:.2g}", wrong))
    return rows


def _header(results: Results) -> str:
    facts = results["environment"]
    gpu = facts["gpu"]
    device = f"{gpu['name']}, {gpu['units']} units" if gpu else facts["cpu"]
    versions = [f"{name} {version}" for name, version in results.get("peers", {}).items()]
    return ", ".join([device, f"torch {facts['packages']['torch']}", *versions]) + f"; {facts['date'][:10]}"


def markdown(results: Results) -> str:
    rates = results["ceilings"]
    measured = [cell for cell in results["cells"] if "missing" not in cell]
    sequences = [row for cell in measured if cell["work"] != "step" for row in _sequence_rows(cell)]
    steps = [row for cell in measured if cell["work"] == "step" for row in _step_rows(cell)]
    lines = ["# mLSTM on a GPU", "", _header(results) + "."]
    lines.append(
        f"Device copy {rates['copy_bytes_per_second'] / 1e12:.2f} TB/s; bf16 matmul {rates['bf16_flops'] / 1e12:.0f} "
        "TFLOP/s: the floors are by these."
    )
    days = sorted(
        {day for cell in measured if (day := cell.get("date", "")[:10])} - {results["environment"]["date"][:10]}
    )
    for day in days:
        titles = (cell["title"] for cell in measured if cell.get("date", "")[:10] == day)
        lines += ["", f"Measured on {day}, by the kernels of then: {'; '.join(titles)}."]
    if results["settings"]["quick"]:
        lines += ["", "**A smoke run: small shapes and too few rounds to be figures.**"]
    columns = ("shape", "work", "kernel", "ms", "in a graph", "host ms", "to mlstm_kernels", "to FLA")
    lines += ["", "## Sequences, bf16", "", *lines_of((*columns, "floors ms: bytes, flops", "peak MiB"), sequences)]
    lines += [
        "",
        "Medians. ms: called as a user calls it, back to back; in a graph: the GPU's part alone. A ratio is the median",
        "of the rounds' own, as called then in graphs, against the fastest kernel of that side; aims are for an H200,",
        "and both are held to them. host ms: what the host needs for a call; where it is not below ms, it binds.",
        f"Flops: the products that the definition needs in chunks of {results['settings']['floor_chunk']}, a backward",
        "pass as two forward ones. peak MiB: beyond the inputs; results are h and gradients. FLA has no normaliser.",
    ]
    step_columns = ("shape", "kernel", "one replay us", "in a row us", "host us", "to mlstm_kernels", "floors us", "")
    lines += ["", "## Step, float32 states, in a graph", "", *lines_of(step_columns, steps)]
    lines += [
        "",
        "One replay of one step with a cold L2; in a row: many steps in one graph, over states that fill L2. Floors:",
        "the states' bytes at the rate of a long copy; one replay of an empty kernel; one replay of a copy of C.",
    ]
    length_columns = ("work", "S", "ms", "ns per token", "peak MiB", "bytes per token beyond results")
    lines += ["", "## Ours over the length", "", *lines_of(length_columns, _length_rows(results))]
    lines += ["", "## Relative errors to float64", ""]
    lines += lines_of(("shape", "kernel", "of", "error", ""), _error_rows(results))
    missing = _missing_rows(results)
    lines += ["", "## Not measured", "", *(lines_of(LATE_COLUMNS, missing) if missing else ["Nothing."])]
    return "\n".join(lines) + "\n"


def draw(results: Results, path: Path) -> None:

    panels = ("forward", "forward+backward", "step", "over the length")
    figure, axes = subplots(1, len(panels), (20, 6))
    for panel, work in zip(axes, panels[:3], strict=False):
        mode = "one replay" if work == "step" else "eager"
        cells = [cell for cell in results["cells"] if cell["work"] == work and "missing" not in cell]
        for group, cell in enumerate(cells):
            for place, kernel in enumerate(cell["kernels"]):
                x = group + (place + 0.5) * 0.8 / len(cell["kernels"]) - 0.4
                if mode not in kernel:
                    panel.text(x, 0, " n/a", rotation=90, ha="center", va="bottom", fontsize=8, color="0.4")
                    continue
                # Of the shape's slowest kernel, so that shapes share an axis.
                slowest = max(k[mode]["median"] for k in cell["kernels"] if mode in k)
                median = kernel[mode]["median"]
                ours = kernel["side"] == "xlstm_hip"
                panel.bar(x, median / slowest, 0.72 / len(cell["kernels"]), color=COLOURS[kernel["side"]])
                label = f" {kernel['name']} {_text(median * (1e3 if work == 'step' else 1))}"
                where = median / slowest if median < 0.6 * slowest else 0
                colour = "black" if where else "white"
                panel.text(
                    x, where, label, rotation=90, ha="center", va="bottom", fontsize=7, color=colour,
                    weight="bold" if ours else "normal",
                )  # fmt: skip
        panel.set_xticks(range(len(cells)), [shape_of(cell).replace(" ", "\n") for cell in cells], fontsize=8)
        panel.set_title(f"{work}, {'us, one replay of a graph' if work == 'step' else 'ms'}")
        panel.set_ylabel("time, of the slowest")
    last = axes[-1]
    for work in ("forward", "forward+backward"):
        points = [p for p in results["lengths"] if p["work"] == work and "missing" not in p]
        last.plot([p["tokens"] for p in points], [p["ms"]["median"] for p in points], marker="o", label=work)
        if points:
            last.set_xscale("log", base=2)
            last.set_yscale("log")
    last.set_title("ours over the length, ms")
    last.grid(color="0.9")
    last.legend(frameon=False)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}mLSTM in bf16 on {_header(results)}; lower is better", fontsize=12)
    save(figure, path)
