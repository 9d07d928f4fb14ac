# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM beside plain torch, and beside a copy of as many bytes as each must move.

    python benchmarks/layers.py                 on the CPU; results/layers_cpu.json, .md and .png beside this file
    python benchmarks/layers.py --device cuda   on the GPU
    python benchmarks/layers.py --quick         a smoke run at small shapes
    python benchmarks/layers.py --redraw FILE   the table and the picture of a result file once more

Memory binds these layers, so the copy is the aim: every input read once and every result written once, by torch's own
copy of a tensor of half that many bytes. On a GPU many tokens are the replay of a graph of the call, since a call with
gradients may take the host longer than the GPU; one token shows what a call costs. Contenders take turns, and ratios
are the medians of the rounds' own; the calls of a turn, the copy's too, come back to back, so what fits L2 is read from
there. Every result is held to float64 first.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from xlstm_hip.bench.environment import environment, summary
from xlstm_hip.bench.layers import LAYERS, Cell, bytes_of, call_of, error_of, inputs_of, layer_of
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.operators import LAYER_EXACT as EXACT
from xlstm_hip.bench.plot import save, subplots
from xlstm_hip.bench.result_files import Results, keeps_what_there_is, write
from xlstm_hip.bench.timing import Pace, interleaved, paired_ratio
from xlstm_hip.progress import Tasks

FOLDER = Path(__file__).resolve().parent / "results"
OURS, PLAIN, COPY = "xlstm_hip", "plain torch", "copy"
COLOURS = {OURS: "#0072B2", PLAIN: "#D55E00"}
FULL = Pace(seconds=1.5, least_rounds=5, most_rounds=21, sample_seconds=0.02)
QUICK = Pace(seconds=0.05, least_rounds=2, most_rounds=3, sample_seconds=0.001)


def measure(cell: Cell, machine: Machine, pace: Pace, advance: Callable[[float], None]) -> dict[str, Any]:
    layer, device = layer_of(cell), machine.device.type
    inputs = inputs_of(cell, device)
    calls: dict[str, Callable[[], Any]] = {}
    entries: dict[str, dict[str, Any]] = {}
    moved = 0
    for name, function in ((OURS, layer.ours), (PLAIN, layer.plain)):
        call = call_of(cell, function, inputs)
        results = call()
        moved = bytes_of(cell, inputs, results)
        entries[name] = {"name": name, "error": error_of(cell, results, inputs)}
        if name == OURS and not entries[name]["error"] <= EXACT[cell.dtype]:
            raise SystemExit(f"{cell.title}: error {entries[name]['error']:.3g}, expected at most {EXACT[cell.dtype]}")
        del results
        calls[name] = machine.graph_of([call]) if machine.gpu and cell.tokens > 1 else call
    source = torch.ones(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls[COPY] = lambda: target.copy_(source)
    entries[COPY] = {"name": COPY}
    samples = interleaved(calls, pace, advance, machine.seconds)
    for name, entry in entries.items():
        entry["ms"] = samples[name].as_json()
        entry["times_ours"] = paired_ratio(samples[name].ms, samples[OURS].ms)
    return asdict(cell) | {"bytes": moved, "contenders": list(entries.values())}


# ---- the table and the picture


def _entry(cell: Results, name: str) -> Results:
    return next(entry for entry in cell["contenders"] if entry["name"] == name)


HOST = 1.25  # a row that takes at most so many times what a call of one token does shows the host


def _shows_the_host(results: Results, cell: Results) -> bool:
    """Of calls that were made one by one: whether the host was slower than the GPU."""
    if cell["tokens"] == 1 or results["settings"].get("graphs", True):
        return False
    same = ("layer", "work", "dtype")
    one = next(c for c in results["cells"] if c["tokens"] == 1 and all(c[key] == cell[key] for key in same))
    took, call = (_entry(c, OURS)["ms"]["median"] for c in (cell, one))
    return bool(took < HOST * call)


def _share(results: Results, cell: Results) -> str:
    if cell["tokens"] == 1:
        return ""
    share = f"{100 * _entry(cell, COPY)['times_ours']['median']:.0f} %"
    return f"{share}, host" if _shows_the_host(results, cell) else share


def markdown(results: Results) -> str:
    lines = ["# The layers beside plain torch and a copy", ""]
    if results["settings"]["quick"]:
        lines += ["**A smoke run: its figures mean nothing.**", ""]
    lines += [
        f"{summary(results['environment'])}; device {results['settings']['device']}.",
        "",
        "Median us. *of a copy*: the time of a copy of the bytes that the layer must move, as a share of its own time. "
        "*host*: a call of one token takes about as long, so the row shows what the host needs, not the GPU.",
        "",
        "| layer | work | dtype | tokens x width | xlstm_hip | plain torch | times ours | of a copy | error | plain |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        ours, reference = (_entry(cell, name) for name in (OURS, PLAIN))
        lines.append(
            f"| {cell['layer']} | {cell['work']} | {cell['dtype']} | {cell['tokens']} x {cell['width']} "
            f"| {1e3 * ours['ms']['median']:.4g} | {1e3 * reference['ms']['median']:.4g} "
            f"| {reference['times_ours']['median']:.2f}x | {_share(results, cell)} "
            f"| {ours['error']:.1e} | {reference['error']:.1e} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: Results, path: Path) -> None:
    kinds = list(dict.fromkeys((c["work"], c["dtype"]) for c in results["cells"] if c["tokens"] > 1))
    figure, rows = subplots(1, len(kinds), (3.6 * len(kinds), 3.6), sharey=True, squeeze=False)
    panels = rows[0]
    for axes, (work, dtype) in zip(panels, kinds, strict=True):
        cells = [c for c in results["cells"] if (c["work"], c["dtype"]) == (work, dtype) and c["tokens"] > 1]
        for place, name in enumerate((OURS, PLAIN)):
            share = [100 * _entry(c, COPY)["ms"]["median"] / _entry(c, name)["ms"]["median"] for c in cells]
            at = [number + 0.4 * place for number in range(len(cells))]
            bars = axes.barh(at, share, height=0.38, color=COLOURS[name], label=name)
            for bar, cell in zip(bars, cells, strict=True):
                if name == OURS and _shows_the_host(results, cell):
                    bar.set(alpha=0.35, hatch="///")
        axes.set_yticks([n + 0.2 for n in range(len(cells))], [c["layer"] for c in cells], fontsize=8)
        axes.axvline(100, color="0.5", linewidth=0.8)
        axes.set_title(f"{work}, {dtype}", fontsize=9)
        axes.set_xlabel("% of a copy's bandwidth")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=7, frameon=False)
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    pale = "; pale: what the host needs" if any(_shows_the_host(results, c) for c in results["cells"]) else ""
    figure.suptitle(f"{quick}layers, {summary(results['environment'])}{pale}", fontsize=8)
    save(figure, path, dpi=110)


# ---- the run


def run(arguments: argparse.Namespace) -> Results:
    torch.set_num_threads(arguments.threads)
    machine = Machine(arguments.device)
    dtypes = ["bf16", "fp16"] if machine.gpu else ["fp32", "bf16"]
    tokens, width = (64, 256) if arguments.quick else (8192 if machine.gpu else 2048, arguments.width)
    cells = [
        Cell(layer.name, work, dtype, n, d)
        for work in ("forward", "forward+backward")
        for dtype in dtypes
        for n, d in ((tokens, width), (1, 128))
        for layer in LAYERS
    ]
    facts, measured = environment(arguments.device), []
    with keeps_what_there_is(), Tasks(len(cells)) as progress:
        for cell in cells:
            progress.begin(cell.title)
            measured.append(measure(cell, machine, QUICK if arguments.quick else FULL, progress.advance))
            gc.collect()
    return {
        "benchmark": "layers",
        "environment": facts,
        "settings": {
            "quick": arguments.quick,
            "device": arguments.device,
            "exact": dict(EXACT),
            "graphs": machine.gpu,
        },
        "cells": measured,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--out", type=Path, help="JSON; the table and the plot go beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: no figures, a smoke run")
    parser.add_argument("--redraw", type=Path, help="a result file, whose table and picture are made again")
    arguments = parser.parse_args()
    out: Path = arguments.redraw or arguments.out or FOLDER / f"layers_{arguments.device}.json"
    results = json.loads(out.read_text()) if arguments.redraw else run(arguments)
    write(results, out, markdown, draw)


if __name__ == "__main__":
    main()
