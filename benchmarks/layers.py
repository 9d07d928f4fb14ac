# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM beside plain torch, and beside a copy of as many bytes as each must move.

    python benchmarks/layers.py                 on the CPU; results/layers_cpu.json, .md and .png beside this file
    python benchmarks/layers.py --device cuda   on the GPU
    python benchmarks/layers.py --quick         a smoke run at small shapes
    python benchmarks/layers.py --redraw FILE   the table and the picture of a result file once more

Memory binds these layers, so the copy is the aim: every input read once and every result written once, by torch's own
copy of a tensor of half that many bytes. One token shows what a call costs. Contenders take turns, and ratios are the
medians of the rounds' own. Every result is held to float64 first.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xlstm_hip import layers
from xlstm_hip.bench.environment import environment, summary
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.plot import save, subplots
from xlstm_hip.bench.result_files import Results, write
from xlstm_hip.bench.timing import Pace, Progress, interleaved, paired_ratio
from xlstm_hip.reference import layers as plain

FOLDER = Path(__file__).resolve().parent / "results"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OURS, PLAIN, COPY = "xlstm_hip", "plain torch", "copy"
COLOURS = {OURS: "#0072B2", PLAIN: "#D55E00"}
EXACT = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 4e-3}
FULL = Pace(seconds=1.5, least_rounds=5, most_rounds=21, sample_seconds=0.02)
QUICK = Pace(seconds=0.05, least_rounds=2, most_rounds=3, sample_seconds=0.001)
EPS, CAP = 1e-6, 30.0


@dataclass(frozen=True)
class Layer:
    name: str
    ours: Callable[..., Any]
    plain: Callable[..., Any]
    shapes: Callable[[int, int], list[tuple[int, ...]]]  # of the arguments, for so many tokens and features

    def sizes(self, tokens: int, width: int) -> list[tuple[int, ...]]:
        return self.shapes(tokens, width)


def _head(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda h, o, w: function(h, o, w, None, EPS, True)


def _loss(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(logits: Tensor) -> Tensor:
        targets = torch.arange(logits.shape[0], device=logits.device) % logits.shape[1]
        return function(logits, targets, CAP, -100, "mean")

    return call


LAYERS = (
    Layer(
        "RMSNorm",
        lambda x, w: layers.rms_norm(x, w, None, EPS),
        lambda x, w: plain.rms_norm(x, w, None, EPS),
        lambda n, d: [(n, d), (d,)],
    ),
    Layer(
        "add + RMSNorm",
        lambda x, y, w: layers.add_rms_norm(x, y, w, None, EPS),
        lambda x, y, w: plain.add_rms_norm(x, y, w, None, EPS),
        lambda n, d: [(n, d), (n, d), (d,)],
    ),
    Layer(
        "head norm + gate",
        _head(layers.head_norm_gate),
        _head(plain.head_norm_gate),
        lambda n, d: [(n, 8, d // 8), (n, d), (d,)],
    ),
    Layer("soft cap", lambda x: layers.soft_cap(x, CAP), lambda x: plain.soft_cap(x, CAP), lambda n, d: [(n, d)]),
    Layer("SwiGLU", layers.swiglu, plain.swiglu, lambda n, d: [(n, d), (n, d)]),
    Layer(
        "cross entropy", _loss(layers.capped_cross_entropy), _loss(plain.capped_cross_entropy), lambda n, d: [(n, d)]
    ),
)


@dataclass(frozen=True)
class Cell:
    layer: str
    work: str  # forward, forward+backward
    dtype: str
    tokens: int
    width: int

    @property
    def title(self) -> str:
        return f"{self.layer}, {self.work}, {self.dtype}, {self.tokens} x {self.width}"


def layer_of(cell: Cell) -> Layer:
    return next(layer for layer in LAYERS if layer.name == cell.layer)


def results_of(cell: Cell, function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    if cell.work == "forward":
        with torch.no_grad():
            out = function(*inputs)
        return list(out) if isinstance(out, tuple) else [out]
    out = function(*inputs)
    outputs = list(out) if isinstance(out, tuple) else [out]
    return outputs + list(torch.autograd.grad(outputs, inputs, [torch.ones_like(x) for x in outputs]))


def bytes_of(cell: Cell, inputs: list[Tensor], results: list[Tensor]) -> int:
    """Inputs and cotangents read once by each pass that needs them, results written once."""

    def size(tensors: list[Tensor]) -> int:
        return sum(x.numel() * x.element_size() for x in tensors)

    if cell.work == "forward":
        return size(inputs) + size(results)
    outputs = results[: len(results) - len(inputs)]
    return 2 * size(inputs) + 2 * size(outputs) + size(results[len(outputs) :])


def error_of(cell: Cell, results: list[Tensor], inputs: list[Tensor]) -> float:
    """The largest relative error by norm."""
    truth = results_of(cell, layer_of(cell).plain, [x.detach().double().requires_grad_() for x in inputs])
    pairs = zip(results, truth, strict=True)
    return max(float((x.double() - y).norm() / y.norm()) for x, y in pairs)


def measure(cell: Cell, machine: Machine, pace: Pace, advance: Callable[[float], None]) -> dict[str, Any]:
    layer, device = layer_of(cell), machine.device.type
    rng = torch.Generator().manual_seed(0)
    made = (torch.randn(shape, generator=rng) for shape in layer.sizes(cell.tokens, cell.width))
    inputs = [x.to(device, DTYPES[cell.dtype]).requires_grad_() for x in made]
    calls: dict[str, Callable[[], Any]] = {}
    entries: dict[str, dict[str, Any]] = {}
    moved = 0
    for name, function in ((OURS, layer.ours), (PLAIN, layer.plain)):
        results = results_of(cell, function, inputs)
        moved = bytes_of(cell, inputs, results)
        entries[name] = {"name": name, "error": error_of(cell, results, inputs)}
        if name == OURS and not entries[name]["error"] <= EXACT[cell.dtype]:
            raise SystemExit(f"{cell.title}: error {entries[name]['error']:.3g}, expected at most {EXACT[cell.dtype]}")
        calls[name] = lambda function=function: results_of(cell, function, inputs)
        del results
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


def markdown(results: Results) -> str:
    lines = ["# The layers beside plain torch and a copy", ""]
    if results["settings"]["quick"]:
        lines += ["**A smoke run: its figures mean nothing.**", ""]
    lines += [
        f"{summary(results['environment'])}; device {results['settings']['device']}.",
        "",
        "Median us. *of a copy*: the time of a copy of the bytes that the layer must move, as a share of its own time.",
        "",
        "| layer | work | dtype | tokens x width | xlstm_hip | plain torch | times ours | of a copy | error | plain |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        ours, reference, copy = (_entry(cell, name) for name in (OURS, PLAIN, COPY))
        share = f"{100 * copy['times_ours']['median']:.0f} %" if cell["tokens"] > 1 else ""
        lines.append(
            f"| {cell['layer']} | {cell['work']} | {cell['dtype']} | {cell['tokens']} x {cell['width']} "
            f"| {1e3 * ours['ms']['median']:.4g} | {1e3 * reference['ms']['median']:.4g} "
            f"| {reference['times_ours']['median']:.2f}x | {share} | {ours['error']:.1e} | {reference['error']:.1e} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: Results, path: Path) -> None:

    kinds = list(dict.fromkeys((c["work"], c["dtype"]) for c in results["cells"] if c["tokens"] > 1))
    figure, panels = subplots(1, len(kinds), (3.6 * len(kinds), 3.6), sharey=True)
    for axes, (work, dtype) in zip(panels, kinds, strict=True):
        cells = [c for c in results["cells"] if (c["work"], c["dtype"]) == (work, dtype) and c["tokens"] > 1]
        for place, name in enumerate((OURS, PLAIN)):
            share = [100 * _entry(c, COPY)["ms"]["median"] / _entry(c, name)["ms"]["median"] for c in cells]
            at = [number + 0.4 * place for number in range(len(cells))]
            axes.barh(at, share, height=0.38, color=COLOURS[name], label=name)
        axes.set_yticks([n + 0.2 for n in range(len(cells))], [c["layer"] for c in cells], fontsize=8)
        axes.axvline(100, color="0.5", linewidth=0.8)
        axes.set_title(f"{work}, {dtype}", fontsize=9)
        axes.set_xlabel("% of a copy's bandwidth")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=7, frameon=False)
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}layers, {summary(results['environment'])}", fontsize=8)
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
    facts, measured = environment(), []
    with Progress(len(cells)) as progress:
        for cell in cells:
            progress.begin(cell.title)
            measured.append(measure(cell, machine, QUICK if arguments.quick else FULL, progress.advance))
            gc.collect()
    return {
        "benchmark": "layers",
        "environment": facts,
        "settings": {"quick": arguments.quick, "device": arguments.device, "exact": EXACT},
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
