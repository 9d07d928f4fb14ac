# SPDX-License-Identifier: Apache-2.0
"""The mLSTM on a CPU, held to aims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.sides import error_table, fastest, ratio_to
from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import GROUP, SMALL, Bar, colours_of, finish, groups_of_bars, panels
from xlstm_hip.bench.registry import HUGGING_FACE, OFFICIAL, XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import UNKNOWN, heading, lines_of, section, short, spread_text, verdict

MATMUL = "torch.matmul fp32"
SHARE = "share of matmul"  # the aim of that name
MB = 1e6


def fused_entries(results: Results) -> Iterator[tuple[Results, Results]]:
    return ((cell, k) for cell in results["cells"] for k in cell["kernels"] if k["side"] == XLSTM_HIP)


def aimed(results: Results, cell: Results, kernel: Results) -> tuple[str, str]:
    """The verdicts: against the fastest peer, and as a share of the machine's own rate."""
    aim = results["aims"][cell["work"]][cell["dtype"]]
    ratios = [ratio_to(cell["kernels"], kernel, side) for side in (OFFICIAL, HUGGING_FACE)]
    least = min((ratio["median"] for ratio in ratios if ratio), default=None)
    share = cell["yardstick"]["share"][kernel["name"]]["median"]
    of = "of copy" if cell["work"] == "step" else f"({verdict(share >= results['aims'][SHARE])})"
    return f"{aim:g}x {UNKNOWN if least is None else verdict(least >= aim)}", f"{share:.0%} {of}"


def time_row(results: Results, cell: Results, kernel: Results, brief: bool) -> tuple[str, ...]:
    """brief: medians alone."""
    times, ratios = [short(kernel["ms"]["median"]) if brief else spread_text(kernel["ms"])], []
    for side in (OFFICIAL, HUGGING_FACE):
        peer, ratio = fastest(cell["kernels"], side), ratio_to(cell["kernels"], kernel, side)
        if side == OFFICIAL or not brief:
            variant = f" {peer['name'].rpartition('_')[2]}" if peer and "_" in peer["name"] else ""
            time_text = short(peer["ms"]["median"]) if peer and brief else spread_text(peer["ms"]) if peer else UNKNOWN
            times.append(time_text + variant)
        least_most = "" if brief or ratio is None else f" ({ratio['min']:.2f}..{ratio['max']:.2f})"
        ratios.append(UNKNOWN if ratio is None else f"{ratio['median']:.2f}x{least_most}")
    work = cell["work"] + (", in place" if "in place" in kernel["name"] else "")
    return (work, cell["dtype"], cell["size"], *times, *ratios, *aimed(results, cell, kernel))


def time_table(results: Results, brief: bool = False) -> list[str]:
    """brief: the table of docs/benchmarks.md."""
    times = ["ours ms", "mlstm_kernels ms", *([] if brief else ["HF ms"])]
    columns = ("work", "dtype", "size", *times, "to mlstm_kernels", "to HF", "aim", "matmul")
    return lines_of(columns, [time_row(results, cell, kernel, brief) for cell, kernel in fused_entries(results)])


def memory_table(cells: list[Results]) -> list[str]:
    names = [kernel["name"] for kernel in cells[0]["kernels"]]
    rows = []
    for cell in cells:
        grown = [f"{k['bytes'] / MB:.0f}" if "bytes" in k else f"n/a: {k['missing']}" for k in cell["kernels"]]
        states, result_bytes = cell["segment_state_bytes"], cell["result_bytes"]
        allowed = UNKNOWN if states is None else f"{(result_bytes + states) / MB:.0f}"
        rows.append((cell["dtype"], cell["size"], *grown, f"{result_bytes / MB:.0f}", allowed))
    return lines_of(("dtype", "size", *names, "outputs and gradients", "and a state per segment"), rows)


def markdown(results: Results) -> str:
    first, exact = results["cells"][0], results["settings"]["exact"]
    rates = {cell["yardstick"]["name"]: cell["yardstick"]["giga_per_second"]["median"] for cell in results["cells"]}
    machine = ", ".join(f"{name} {rate:.0f} {'GB/s' if 'copy' in name else 'GFLOP/s'}" for name, rate in rates.items())
    limits = " or ".join(f"{limit:g} in {dtype}" for dtype, limit in exact.items())
    lines = heading(
        "mLSTM on the CPU",
        results,
        f"{summary(results['environment'])}.",
        f"NH{first['heads']}, head dims {first['dqk']}/{first['dhv']}, chunks of {first['chunk_size']}; B1 where a row "
        "does not say.",
        f"{machine}, torch.matmul bf16 {results['bf16_matmul_gflops']:.0f} GFLOP/s.",
    )
    lines += section(
        "Times",
        *time_table(results),
        "",
        "Medians in ms (min..max). Of mlstm_kernels the faster of native_autograd and native_custbw stands here.",
        "A ratio is the median of the rounds' own; the aim counts against the fastest peer. matmul: the share of the",
        "rate of torch.matmul in fp32, on the products that the definition needs (a backward pass is two forward",
        "passes); of a step the share of copy bandwidth, which states that fit the cache exceed. A step's states are",
        "float32.",
    )
    leads = [((c["work"], c["dtype"], c["size"]), exact[c["dtype"]], c["kernels"]) for c in results["cells"]]
    lines += section(
        "Every kernel, and how exact it is",
        *error_table(("work", "dtype", "size"), leads, "ms"),
        "",
        "Relative errors (2-norm) to a float64 truth, at the shape that was timed (the last head of a sequence);",
        f"inexact means above {limits}. The gradient of native_custbw holds the normaliser constant, which",
        "is not the derivative; its time counts all the same.",
    )
    grown = results["memory"]
    if grown["cells"]:
        table = memory_table(grown["cells"])
        lines += section("Memory of forward and backward, MB", *table, "", f"Method: {grown['method']}.")
    return "\n".join(lines) + "\n"


# ---- the picture

PANELS = {"forward": "µs per token", "forward+backward": "µs per token", "step": "ms per sequence"}


def of_each(cell: Results) -> float:
    """The divisor of milliseconds that lets lengths and batches share an axis."""
    return cell["batch"] if cell["work"] == "step" else cell["batch"] * cell["tokens"] / 1e3


def draw_aims(axes: Any, results: Results, cells: list[Results]) -> None:
    aims = results["aims"]
    for group, cell in enumerate(cells):
        left, right = group - GROUP / 2, group + GROUP / 2
        peer = fastest(cell["kernels"], None)
        if peer:
            aim = aims[cell["work"]][cell["dtype"]]
            y = peer["ms"]["median"] / aim / of_each(cell)
            label = None if group else "aim: this many times faster than the fastest peer"
            axes.hlines(y, left, right, colors="black", linewidth=1.4, label=label)
            axes.annotate(f"{aim:g}x", (right, y), (2, 0), textcoords="offset points", va="center", fontsize=SMALL)
        if cell["work"] != "step":
            y = cell["gflop"] / (cell["yardstick"]["giga_per_second"]["median"] * aims[SHARE]) * 1e3 / of_each(cell)
            label = None if group else f"{aims[SHARE]:.0%} of {MATMUL}"
            axes.hlines(y, left, right, colors="#882255", linestyles="dashed", linewidth=1.4, label=label)


def draw(results: Results, base: Path) -> list[Path]:
    colours = colours_of(kernel["name"] for cell in results["cells"] for kernel in cell["kernels"])
    figure, axes = panels(len(PANELS), size=(5.6, 6))
    for panel, (work, unit) in zip(axes, PANELS.items(), strict=True):
        cells = [cell for cell in results["cells"] if cell["work"] == work]
        groups: dict[str, list[Bar]] = {}
        for cell in cells:
            bars = groups[f"{cell['dtype']}\n{cell['size']}"] = []
            for kernel in cell["kernels"]:
                each = (
                    {key: kernel["ms"][key] / of_each(cell) for key in ("min", "median", "max")}
                    if "ms" in kernel
                    else None
                )
                bars.append((kernel["name"], each, each["median"] if each else 0.0))
        groups_of_bars(panel, groups, colours)
        draw_aims(panel, results, cells)
        panel.set(title=work, ylabel=unit)
        panel.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12))
    title = "mLSTM on the CPU: median time, whiskers min to max; lower is better"
    return finish(results, figure, title, base.with_suffix(".png"))
