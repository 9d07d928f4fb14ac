# SPDX-License-Identifier: Apache-2.0
"""The tables and the figure of a result file of attention.py, made from the file alone.

python benchmarks/attention_report.py results/attention_cpu.json [picture.png]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import save, subplots
from xlstm_hip.bench.result_files import redraw
from xlstm_hip.bench.table import lines_of

Results = dict[str, Any]
OURS = "ours"
AIMED_AT = ("torch SDPA", "torch SDPA FLASH")  # on the CPU, and on a GPU
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#999999")  # ours first; they stay apart for colour-blind readers


def _mask(cell: Results) -> str:
    return "causal" if cell["causal"] else "full"


def _speed(entry: Results) -> str:
    if "missing" in entry:
        return "n/a"
    text = f"{entry['ms']['median']:.3g}"
    return (
        text if entry["name"] == OURS or "times_ours" not in entry else f"{text} ({entry['times_ours']['median']:.2f}x)"
    )


def _tflops(cell: Results) -> str:
    return next(f"{e['tflops']:.0f}" if "tflops" in e else "n/a" for e in cell["contenders"] if e["name"] == OURS)


def _below_aim(results: Results) -> list[str]:
    lines = []
    for cell in results["speed"]:
        aim = results["aims"].get(cell["work"], {}).get(cell["dtype"])
        for entry in cell["contenders"]:
            if aim and entry["name"] in AIMED_AT and entry.get("times_ours", {}).get("median", aim) < aim:
                ratio = entry["times_ours"]["median"]
                shape = f"D {cell['head_dim']}, {_mask(cell)}, S {cell['tokens']}"
                lines.append(f"- {cell['work']}, {cell['dtype']}, {shape}: {ratio:.2f}x")
    return lines


def _memory(cells: list[Results]) -> list[str]:
    if not cells:  # a run that was ended early
        return []
    first = cells[0]
    of = f"batch {first['batch']}, {first['heads']} heads of {first['head_dim']}"
    rows = [
        [
            str(cell["tokens"]),
            *(f"{e['bytes'] / 1e6:.0f}" if e.get("bytes") is not None else "n/a" for e in cell["contenders"]),
        ]
        for cell in cells
    ]
    text = f"MB that one forward and backward adds to its inputs, causal, {of}."
    return ["## Memory", "", text, "", *lines_of(["S", *(e["name"] for e in first["contenders"])], rows), ""]


def markdown(results: Results) -> str:
    names = [entry["name"] for entry in results["speed"][0]["contenders"]]
    first = results["speed"][0]
    dims = " and ".join(dict.fromkeys(str(cell["head_dim"]) for cell in results["speed"]))
    shape = f"batch {first['batch']}, {first['heads']} heads of {dims}"
    gpu = results["settings"]["device"] != "cpu"
    lines = ["# Attention beside torch's", ""]
    if results["settings"]["quick"]:
        lines += ["**A smoke run: its figures mean nothing.**", ""]
    lines += [f"{summary(results['environment'])}; device {results['settings']['device']}.", "", "## Speed", ""]
    lines += [
        f"Median ms of {shape}; in brackets how many times longer than ours, the median of the rounds' ratios.",
        "",
    ]
    rows = [
        [cell["work"], cell["dtype"], str(cell["head_dim"]), _mask(cell), str(cell["tokens"]),
         *map(_speed, cell["contenders"]), *([_tflops(cell)] if gpu else []),
         *(f"{entry['error']:.1e}" if "error" in entry else "n/a" for entry in cell["contenders"][:2])]
        for cell in results["speed"]
    ]  # fmt: skip
    head = [
        "work",
        "dtype",
        "D",
        "mask",
        "S",
        *names,
        *(["TFLOP/s of ours"] if gpu else []),
        *(f"error of {name}" for name in names[:2]),
    ]
    lines += [*lines_of(head, rows), ""]
    if results["aims"]:
        below = _below_aim(results)
        aims = "; ".join(f"{w} {d} {x:g}x" for w, by in results["aims"].items() for d, x in by.items())
        lines += [
            f"Aims, times faster than torch SDPA{', FLASH' if gpu else ''}: {aims}. "
            + ("Below them:" if below else "All are met."),
            "",
        ]
        lines += [*below, ""] if below else []
    lines += _memory(results["memory"])
    missing = {
        f"{e['name']}: {e['missing']}"
        for c in results["speed"] + results["memory"]
        for e in c["contenders"]
        if "missing" in e
    }
    lines += [f"n/a: {reason}" for reason in sorted(missing)]
    return "\n".join(lines).rstrip() + "\n"


def draw(results: Results, path: Path) -> None:
    unit, size = ("TFLOP/s", 1) if results["settings"]["device"] == "cuda" else ("GFLOP/s", 1e3)
    kinds = list(dict.fromkeys((c["work"], c["dtype"], c["head_dim"]) for c in results["speed"]))
    count = len(kinds) + 1
    columns = count if count <= 5 else 4
    lines = -(-count // columns)
    figure, grid = subplots(lines, columns, (4.2 * columns, 4.6 * lines), squeeze=False)
    panels = [axes for line in grid for axes in line]
    for axes in panels[count:]:
        axes.set_visible(False)
    panels = panels[:count]
    names = [entry["name"] for entry in results["speed"][0]["contenders"]]
    for axes, kind in zip(panels, kinds, strict=False):
        work, dtype, head_dim = kind
        for causal, style in ((False, "-"), (True, "--")):
            cells = [
                c for c in results["speed"] if (c["work"], c["dtype"], c["head_dim"], c["causal"]) == (*kind, causal)
            ]
            for name, colour in zip(names, COLOURS, strict=False):
                points = [
                    (c["tokens"], e["tflops"] * size)
                    for c in cells
                    for e in c["contenders"]
                    if e["name"] == name and "ms" in e
                ]
                label = f"{name}{', causal' if causal else ''}"
                if points:
                    axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3, label=label)
        axes.set_title(f"{work}, {dtype}, {head_dim}", fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens")
    panels[0].set_ylabel(f"{unit} of the products")
    panels[0].legend(fontsize=7, frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.14))
    for name, colour in zip(names, COLOURS, strict=False):
        points = [
            (c["tokens"], e["bytes"] / 1e6)
            for c in results["memory"]
            for e in c["contenders"]
            if e["name"] == name and e.get("bytes")
        ]
        if points:
            panels[-1].plot(*zip(*points, strict=True), color=colour, marker="o", label=name)
    panels[-1].set_title("forward+backward: memory, MB", fontsize=10)
    panels[-1].set_xscale("log", base=2)
    panels[-1].set_yscale("log")
    panels[-1].set_xlabel("tokens")
    for axes in panels:
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}attention, {summary(results['environment'])}", fontsize=9)
    save(figure, path, dpi=110)


if __name__ == "__main__":
    redraw(draw)
