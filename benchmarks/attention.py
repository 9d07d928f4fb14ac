# SPDX-License-Identifier: Apache-2.0
"""Attention beside torch's: two tables, speed and memory, causal and not, for lengths from 128 up.

    python benchmarks/attention.py                 on the CPU; results/attention_cpu.json, .md and .png beside this file
    python benchmarks/attention.py --device cuda   on the GPU
    python benchmarks/attention.py --quick         a smoke run at small shapes
    python benchmarks/attention.py --redraw FILE   tables and picture of a result file once more

Contenders are ours, torch's scaled_dot_product_attention (on a GPU with its FLASH and its cuDNN backend), standard
attention, which is softmax between two matrix products, and on a GPU the flash_attn package where it is installed. The
calls of a turn come back to back, so what fits L2 is read from there by all of them alike. Memory is what one forward
and backward adds to its inputs and the gradient of its output, on the CPU in a process of its own.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial

from harness.benchmark import Benchmark, Job, Session, add_time_options, cell_of
from pages.attention import draw, markdown
from xlstm_hip.bench.attention import BESIDE_TORCH, Cell
from xlstm_hip.bench.contest import LATE, Advance
from xlstm_hip.bench.operators import OPERATORS
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import Pace

OPERATOR = replace(OPERATORS["attention-backward"], implementations=BESIDE_TORCH)
FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
AIMS = {FORWARD: {"fp32": 1.0, "bf16": 1.0}, BOTH: {"fp32": 1.0, "bf16": 2.0}}  # of SDPA, on the CPU
AIMS_OF_FLASH = {FORWARD: {"bf16": 1.0}, BACKWARD: {"bf16": 1.0}}  # on a GPU, of FlashAttention-2 in torch
MEMORY_LENGTHS = (1024, 2048, 4096)


def speed(session: Session, cell: Cell, advance: Advance) -> Results:
    return cell_of(cell, session.compare(OPERATOR, cell, advance, shown_metrics=("error", "tflops"))[0])


def memory(session: Session, cell: Cell, advance: Advance) -> Results:
    return cell_of(cell, session.memory(OPERATOR, replace(cell, tokens=64), cell))


def plan(session: Session) -> list[Job]:
    args, gpu, results = session.args, session.machine.gpu, session.results
    shape = (args.batch, args.heads, args.heads)
    results["settings"]["exact"] = dict(OPERATOR.exact)
    results |= {"aims": AIMS_OF_FLASH if gpu else AIMS, "speed": [], "memory": []}
    timed = [
        Cell(work, dtype, *shape, length, head_dim, causal)
        for work in ((FORWARD, BACKWARD, BOTH) if gpu else (FORWARD, BOTH))
        for dtype in args.dtype
        for head_dim in args.head_dim
        for causal in (False, True)
        for length in (1 << n for n in range(7, 15) if 1 << n <= args.longest)
    ]
    grown = [
        Cell(BOTH, args.dtype[0], *shape, length, args.head_dim[0])
        for length in ((128,) if session.quick else MEMORY_LENGTHS)
    ]
    late = [{"name": x.name, "provider": x.provider, "missing": LATE} for x in session.on_this_device(OPERATOR)]
    session.ends = time.monotonic() + args.seconds
    jobs = [
        Job(cell.title, partial(speed, session, cell), results["speed"].append, cell_of(cell, late)) for cell in timed
    ]
    append_memory = results["memory"].append
    return jobs + [Job(f"memory, {cell.title}", partial(memory, session, cell), append_memory) for cell in grown]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, help="(default: 2; on a GPU 16)")
    parser.add_argument("--head-dim", type=int, nargs="+", help="(default: 64; on a GPU 64, 128 and 256)")
    parser.add_argument("--dtype", choices=OPERATOR.exact, nargs="+", help="(default: fp32 bf16; on a GPU bf16 fp16)")
    add_time_options(parser, "row", 4)
    parser.add_argument("--longest", type=int, help="the longest sequence of the table of speed")


def settle(args: argparse.Namespace) -> None:
    on_cpu = args.device == "cpu"
    args.heads = args.heads or (2 if on_cpu else 16)
    args.head_dim = args.head_dim or ([64] if on_cpu else [64, 128, 256])
    args.dtype = args.dtype or (["fp32", "bf16"] if on_cpu else ["bf16", "fp16"])
    args.longest = args.longest or (128 if args.quick else 2048 if on_cpu else 16384)
    args.batch = min(args.batch, 2) if args.quick else args.batch


BENCHMARK = Benchmark(
    "attention", __file__, __doc__ or "", "attention_{device}", Pace(4, 5, 21, 0.02), plan, markdown, draw,
    options, settle,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
