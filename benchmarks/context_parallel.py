# SPDX-License-Identifier: Apache-2.0
"""One sequence over several ranks: the mLSTM and causal attention, with gradients too, and a model that reads a prompt.

    python benchmarks/context_parallel.py                                two cores of a CPU, gloo
    python benchmarks/context_parallel.py --device cuda --ranks 1 2      two GPUs of this machine, NCCL
    python benchmarks/context_parallel.py --device cuda --ranks 1 2 --tokens 1048576 --works "mLSTM"
    python benchmarks/context_parallel.py --quick                        a smoke run
    python benchmarks/context_parallel.py --redraw FILE                  the table and the picture of a result file

Each number of ranks has processes of its own, a GPU or a thread each. A time is that of the slowest rank, from one
barrier on; the result's norm is compared outside of it.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from harness.benchmark import Benchmark, Job, Session
from harness.context_works import ATTENTION, ATTENTION_BACKWARD, OF_ATTENTION, WORKS, Task, work_of
from harness.model_grid import shape
from harness.ranks import ranks_of
from pages.context_parallel import alone, draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.timing import Pace, spread
from xlstm_hip.cli.common import at_least

ROUNDS, QUICK_ROUNDS = 7, 2
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of a norm, beside one rank's


def run(session: Session, task: Task, advance: Advance) -> dict[str, Any]:
    found = ranks_of(task.ranks, task.device).measure(session.args.rounds, work_of, task)
    row = {
        "work": task.work,
        "tokens": task.tokens,
        "ranks": task.ranks,
        "ms": {**spread(found["ms"]), "samples": found["ms"]},
        "peak_bytes": found["peak_bytes"],
        "check": found["check"],
    }
    one = alone(row, session.results["rows"])
    if one is not None and abs(row["check"] / one["check"] - 1) > TOLERANCE[task.dtype]:
        raise SystemExit(f"xlstm_hip: {task} differs from one rank: {row['check']}, not {one['check']}")
    return row


def plan(session: Session) -> list[Job]:
    args, results = session.args, session.results
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    results["settings"] |= {
        "dtype": str(dtype).removeprefix("torch."),
        "backend": "NCCL" if args.device == "cuda" else "gloo",
        "heads": list(args.heads),
        "shape": args.shape,
    }
    results["rows"] = []
    return [
        Job(f"{work}, {tokens} tokens, {ranks} ranks", partial(run, session, task), results["rows"].append)
        for work in args.works
        for tokens in (n // OF_ATTENTION if work in (ATTENTION, ATTENTION_BACKWARD) else n for n in args.tokens)
        for ranks in sorted(set(args.ranks))
        for task in [Task(work, tokens, ranks, args.device, dtype, tuple(args.heads), args.shape)]
    ]


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=at_least(1), nargs="+", metavar="N", default=[1, 2], help="(default: 1 2)")
    add("--tokens", type=at_least(1), nargs="+", metavar="N", help="of all ranks; a quarter for attention")
    add("--works", choices=WORKS, nargs="+", default=list(WORKS), help="(default: all)")
    add("--shape", type=shape, help="demo, 4m, 7b or FEATURESxBLOCKSxHEADS (default: 7b; on a CPU demo)")
    add("--rounds", type=at_least(1), metavar="N", help="(default: 7)")
    add("--heads", type=at_least(1), nargs=3, metavar=("NH", "DHQK", "DHHV"), help="of the mLSTM by itself")


def settle(args: argparse.Namespace) -> None:
    on_cpu = args.device == "cpu"
    args.tokens = args.tokens or ([256] if args.quick else [32768] if on_cpu else [131072, 1048576])
    args.heads = args.heads or ([2, 16, 32] if args.quick else [4, 128, 256] if on_cpu else [8, 256, 512])
    args.rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    args.shape = args.shape or ("demo" if on_cpu or args.quick else "7b")
    least = max(args.ranks) * OF_ATTENTION
    if least > min(args.tokens):
        raise ValueError(f"--tokens: expected {least} or more, {OF_ATTENTION} for each rank, got {min(args.tokens)}")
    if not on_cpu and max(args.ranks) > torch.cuda.device_count():
        raise ValueError(
            f"--ranks: expected at most {torch.cuda.device_count()}, one for each GPU, got {max(args.ranks)}"
        )


BENCHMARK = Benchmark(
    "context parallel", __file__, __doc__ or "", "context_parallel_{device}", Pace(1, 1, 1, 0.1), plan, markdown, draw,
    options, settle,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
