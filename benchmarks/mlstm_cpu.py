# SPDX-License-Identifier: Apache-2.0
"""The mLSTM on the CPU: ours beside the official mlstm_kernels and Hugging Face's own, in one process.

    python benchmarks/mlstm_cpu.py                results/mlstm_cpu.json, .md and .png beside this file; four minutes
    python benchmarks/mlstm_cpu.py --quick        a smoke run at small shapes
    python benchmarks/mlstm_cpu.py --redraw FILE  tables and picture of a result file once more

torch.matmul (fp32) or a plain copy takes its turn with the kernels. Peers that are not installed are "n/a" with the
reason.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

from harness.benchmark import Benchmark, Job, Session
from harness.sides import sided
from pages.mlstm_cpu import MATMUL, SHARE, draw, markdown
from xlstm_hip._core.native import native
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.machine import Machine, copying, matmul_rate, multiplying
from xlstm_hip.bench.memory import METHOD
from xlstm_hip.bench.mlstm import Cell
from xlstm_hip.bench.mlstm_contenders import CPU_SEQUENCES, CPU_STEPS
from xlstm_hip.bench.operators import OPERATORS
from xlstm_hip.bench.registry import XLSTM_HIP, Call
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import Pace, paired_ratio, spread
from xlstm_hip.cli.common import at_least

COPY = "torch copy"
AIMS = {
    "forward": {"fp32": 2.5, "bf16": 3.5},
    "forward+backward": {"fp32": 3.0, "bf16": 3.0},
    "step": {"fp32": 4.0, "bf16": 4.0},
    SHARE: 0.6,
}
SEQUENCES = replace(OPERATORS["mlstm-backward"], implementations=CPU_SEQUENCES)
STEPS = replace(OPERATORS["step"], implementations=CPU_STEPS)
EXACT = {dtype: SEQUENCES.exact[dtype] for dtype in ("fp32", "bf16")}


def cells_of(quick: bool, chunk_size: int) -> list[Cell]:
    heads, dqk, dhv = (2, 32, 64) if quick else (8, 256, 512)
    lengths, batches = ((2 * chunk_size,), (1,)) if quick else ((512, 2048), (1, 8))
    works = [(work, 1, tokens) for work in ("forward", "forward+backward") for tokens in lengths]
    works += [("step", batch, 1) for batch in batches]
    cells = [Cell(w, dtype, batch, heads, n, dqk, dhv, chunk_size) for dtype in EXACT for w, batch, n in works]
    return sorted(cells, key=lambda cell: list(AIMS).index(cell.work))


def yardstick(cell: Cell, machine: Machine, quick: bool) -> tuple[str, Call, float]:
    """The machine's own rates, timed in the same rounds: name, call, and its flops or bytes."""
    if cell.work == "step":
        moved = (8 if quick else 256) << 20
        return COPY, copying(machine, moved), float(moved)
    side = 512 if quick else 2048
    return MATMUL, multiplying(machine, "fp32", side), 2.0 * side**3


def measure(session: Session, cell: Cell, advance: Advance) -> Results:
    name, call, amount = yardstick(cell, session.machine, session.quick)
    operator = STEPS if cell.work == "step" else SEQUENCES
    entries, samples = session.compare(operator, cell, advance, unchecked={name: call})
    yard = samples[name].ms
    # A step is compared with a copy of the same bytes: the states, once in and once out.
    work = 2 * cell.state_bytes if cell.work == "step" else cell.flops
    at_its_rate = [ms * work / amount for ms in yard]
    shares = {e["name"]: paired_ratio(at_its_rate, e["ms"]["samples"]) for e in entries if e["provider"] == XLSTM_HIP}
    rate = spread([amount / (ms * 1e6) for ms in yard])
    return {
        **cell.as_json(),
        "rounds": len(yard),
        "kernels": sided(entries),
        "yardstick": {"name": name, "giga_per_second": rate, "share": shares},
    }


def measure_memory(session: Session, cell: Cell, advance: Advance) -> Results:
    """The memory that a kernel adds, and the memory that the shapes alone need."""
    built, threads = native(), session.args.threads
    plan = built.plan_mlstm_cpu(cell.batch, cell.heads, cell.tokens, cell.chunk_size, threads) if built else None
    small = replace(cell, tokens=2 * cell.chunk_size)
    return {
        **cell.as_json(),
        "result_bytes": cell.result_bytes,
        "segment_state_bytes": plan["segments"] * cell.state_bytes if plan else None,
        "kernels": sided(session.memory(SEQUENCES, small, cell)),
    }


def plan(session: Session) -> list[Job]:
    results, chunk_size = session.results, session.args.chunk_size
    results["settings"] |= {"chunk_size": chunk_size, "exact": EXACT}
    results |= {"aims": AIMS, "cells": [], "memory": {"method": METHOD, "cells": []}}
    results["bf16_matmul_gflops"] = matmul_rate(session.machine, "bf16", session.quick) / 1e9
    cells = cells_of(session.quick, chunk_size)
    grown = [cell for cell in cells if cell.work == "forward+backward"][: 1 if session.quick else None]
    append_cell, memory = results["cells"].append, results["memory"]["cells"].append
    jobs = [Job(cell.title, partial(measure, session, cell), append_cell) for cell in cells]
    return jobs + [Job(f"memory, {cell.title}", partial(measure_memory, session, cell), memory) for cell in grown]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunk-size", type=at_least(1), default=64, help="of every kernel (default: %(default)s)")


BENCHMARK = Benchmark(
    "mlstm_cpu", __file__, __doc__ or "", "mlstm_cpu", Pace(15, 5, 25, 0.02), plan, markdown, draw, options,
    devices=("cpu",),
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
