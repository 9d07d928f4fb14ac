# SPDX-License-Identifier: Apache-2.0
"""The mLSTM on the CPU: ours beside the official mlstm_kernels and Hugging Face's own, in one process.

    python benchmarks/mlstm_cpu.py             results/mlstm_cpu.json, .md and .png beside this file; about four minutes
    python benchmarks/mlstm_cpu.py --quick     a smoke run at small shapes

Every kernel's results are held to a float64 truth first, and the errors stand beside the times. Then the kernels take
turns, and torch.matmul (fp32) or a plain copy takes its turn with them; ratios are the medians of the rounds' own.
Peers that are not installed are "n/a" with the reason.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from memory import METHOD, growth_in_own_process
from plot import draw
from table import markdown
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.memory import MemoryUnknown
from xlstm_hip.bench.mlstm import Cell, errors_of, make_inputs, true_results
from xlstm_hip.bench.mlstm_contenders import CPU_SEQUENCES, CPU_STEPS
from xlstm_hip.bench.registry import HUGGING_FACE, OFFICIAL, OURS, Call, Implementation, Tensors
from xlstm_hip.bench.result_files import write
from xlstm_hip.bench.timing import Pace, Samples, interleaved, paired_ratio, spread
from xlstm_hip.describe import native
from xlstm_hip.progress import Tasks

DEFAULT_OUT = Path(__file__).resolve().parent / "results" / "mlstm_cpu.json"
MATMUL, COPY = "torch.matmul fp32", "torch copy"
CPU = torch.device("cpu")
AIMS = {
    "forward": {"fp32": 2.5, "bf16": 3.5},
    "forward+backward": {"fp32": 3.0, "bf16": 3.0},
    "step": {"fp32": 4.0, "bf16": 4.0},
    "share of matmul": 0.6,
}
# A result further from the truth than this is inexact: a peer's is marked, ours ends the run.
EXACT = {"fp32": 1e-3, "bf16": 5e-2}
FULL = Pace(seconds=15, least_rounds=5, most_rounds=25, sample_seconds=0.02)
QUICK = Pace(seconds=0.2, least_rounds=2, most_rounds=3, sample_seconds=0.002)


def cells_of(quick: bool, chunk_size: int) -> list[Cell]:
    heads, dqk, dhv = (2, 32, 64) if quick else (8, 256, 512)
    lengths, batches = ((2 * chunk_size,), (1,)) if quick else ((512, 2048), (1, 8))
    sequences = [
        Cell(work, dtype, 1, heads, tokens, dqk, dhv, chunk_size)
        for work in ("forward", "forward+backward")
        for dtype in EXACT
        for tokens in lengths
    ]
    steps = [Cell("step", dtype, batch, heads, 1, dqk, dhv, chunk_size) for dtype in EXACT for batch in batches]
    return sequences + steps


def yardstick(cell: Cell, quick: bool) -> tuple[str, Callable[[], Any], float]:
    """What the machine itself can do, timed in the same rounds: name, call, and its flops or bytes."""
    if cell.work == "step":
        source = torch.zeros((1 if quick else 32) << 20)
        target = torch.empty_like(source)
        return COPY, lambda: target.copy_(source), 8.0 * source.numel()
    side = 512 if quick else 2048
    a, b = torch.randn(2, side, side)
    product = torch.empty(side, side)
    return MATMUL, lambda: torch.matmul(a, b, out=product), 2.0 * side**3


def checked(cell: Cell, contender: Implementation, call: Call, truth: Tensors) -> dict[str, Any]:
    """The kernel's errors; a wrong result of ours is not worth timing."""
    errors = errors_of(cell, call(), truth)
    exact = all(error <= EXACT[cell.dtype] for error in errors.values())
    if contender.provider == OURS and not exact:
        raise SystemExit(
            f"{cell.title}: {contender.name} is wrong: relative errors {errors}, expected at most {EXACT[cell.dtype]}"
        )
    return {"errors": errors, "exact": exact}


def compare(kernels: list[dict[str, Any]], samples: dict[str, Samples]) -> list[dict[str, Any]]:
    """How many times faster each of ours is than the fastest kernel of each side."""
    ratios = []
    for ours in (k for k in kernels if k["side"] == OURS):
        for side in (OFFICIAL, HUGGING_FACE):
            peers = [k for k in kernels if k["side"] == side and "missing" not in k]
            if peers:
                peer = min(peers, key=lambda k: k["ms"]["median"])["name"]
                ratio = paired_ratio(samples[peer].ms, samples[ours["name"]].ms)
                ratios.append({"ours": ours["name"], "side": side, "peer": peer, **ratio})
    return ratios


def measure(cell: Cell, pace: Pace, quick: bool, advance: Callable[[float], None]) -> dict[str, Any]:
    inputs = make_inputs(cell)
    truth = true_results(cell, inputs)
    kernels: list[dict[str, Any]] = []
    calls: dict[str, Call] = {}
    for contender in CPU_STEPS if cell.work == "step" else CPU_SEQUENCES:
        entry: dict[str, Any] = {"name": contender.name, "side": contender.provider}
        try:
            missing = contender.missing(CPU)
            if missing is not None:
                raise LookupError(missing)
            call = contender.prepare(cell, inputs)
        except LookupError as reason:
            entry["missing"] = str(reason)
        else:
            entry |= checked(cell, contender, call, truth)
            calls[contender.name] = call
        kernels.append(entry)
    del truth

    measure_name, measure_call, amount = yardstick(cell, quick)
    samples = interleaved({**calls, measure_name: measure_call}, pace, advance)
    for entry in kernels:
        if "missing" not in entry:
            entry["ms"] = samples[entry["name"]].as_json()
    yard = samples[measure_name]
    per_second = [amount / (ms * 1e6) for ms in yard.ms]
    # Of a step the states, once in and once out, are what a copy of the same bytes would move too.
    own = 2 * cell.state_bytes if cell.work == "step" else cell.flops
    shares = {
        entry["name"]: paired_ratio([ms * own / amount for ms in yard.ms], samples[entry["name"]].ms)
        for entry in kernels
        if entry["side"] == OURS
    }
    return {
        **cell.as_json(),
        "rounds": len(yard.ms),
        "kernels": kernels,
        "ratios": compare(kernels, samples),
        "yardstick": {"name": measure_name, "giga_per_second": spread(per_second), "share": shares},
    }


def measure_memory(
    contenders: Sequence[Implementation], cells: list[Cell], threads: int, progress: Tasks
) -> dict[str, Any]:
    """Forward and backward of the kernels, and what the shapes alone ask for."""
    built = native()
    rows: list[dict[str, Any]] = []
    for cell in cells:
        plan = built.plan_mlstm_cpu(cell.batch, cell.heads, cell.tokens, cell.chunk_size, threads) if built else None
        states = plan["segments"] * cell.state_bytes if plan else None
        rows.append({**cell.as_json(), "result_bytes": cell.result_bytes, "segment_state_bytes": states, "kernels": []})
    for contender in contenders:
        progress.begin(f"memory of {contender.name}")
        entry: dict[str, Any] = {"name": contender.name, "side": contender.provider}
        missing = contender.missing(CPU)
        try:
            if missing is not None:
                raise MemoryUnknown(missing)
            own = [{"bytes": x} for x in growth_in_own_process(contender.name, cells, threads)]
        except MemoryUnknown as reason:
            own = [{"missing": str(reason)} for _ in cells]
        for row, found in zip(rows, own, strict=True):
            row["kernels"].append(entry | found)
        progress.advance(1)
    return {"method": METHOD, "cells": rows}


def bf16_matmul(quick: bool) -> float:
    """GFLOP/s, for the reader: the aim is set by fp32."""
    side = 512 if quick else 2048
    a, b = torch.randn(2, side, side).bfloat16()
    samples = interleaved({"bf16": lambda: torch.matmul(a, b)}, QUICK, lambda fraction: None)
    return 2.0 * side**3 / (spread(samples["bf16"].ms)["median"] * 1e6)


def run(quick: bool, threads: int, chunk_size: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    pace = QUICK if quick else FULL
    facts = environment()
    cells = cells_of(quick, chunk_size)
    trained = [cell for cell in cells if cell.work == "forward+backward"]
    contenders = CPU_SEQUENCES
    if quick:  # each takes a process of its own, which is slow to start
        trained, contenders = trained[:1], contenders[:1]
    with Tasks(len(cells) + len(contenders)) as progress:
        results = []
        for cell in cells:
            progress.begin(cell.title)
            results.append(measure(cell, pace, quick, progress.advance))
            gc.collect()
        memory = measure_memory(contenders, trained, threads, progress)
    return {
        "benchmark": "mlstm_cpu",
        "environment": facts,
        "settings": {"quick": quick, "chunk_size": chunk_size, "exact": EXACT},
        "aims": AIMS,
        "bf16_matmul_gflops": bf16_matmul(quick),
        "cells": results,
        "memory": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk-size", type=int, default=64, help="of every kernel (default 64)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON; the table and the plot go beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: no figures, a smoke run")
    arguments = parser.parse_args()
    for name in ("threads", "chunk_size"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected at least 1, got {getattr(arguments, name)}")

    warnings.filterwarnings("ignore", module="(mlstm_kernels|transformers|torch)")
    results = run(arguments.quick, arguments.threads, arguments.chunk_size)
    write(results, arguments.out, markdown, draw)


if __name__ == "__main__":
    main()
