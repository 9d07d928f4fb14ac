# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks, of which each has some of the heads and features: it writes, and it is trained.

    python benchmarks/tensor_parallel.py --device cuda --ranks 1 2      two GPUs of this machine, NCCL
    python benchmarks/tensor_parallel.py --device cuda --batches 1 32 --dtypes bf16 int8 --sizes 7b-blocks
    python benchmarks/tensor_parallel.py                                two cores of a CPU, gloo
    python benchmarks/tensor_parallel.py --quick                        a smoke run
    python benchmarks/tensor_parallel.py --redraw FILE                  the table and the picture of a result file

Each number of ranks has processes of its own, a GPU or a thread each. Writing is a step for each token, on a GPU a
replayed graph; one rank has the schedules of one GPU, in which a small batch's step is one launch. A training step is
AdamW's with autocast to bfloat16, ranks with sequence_parallel. A time is that of the slowest rank.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from harness.benchmark import Benchmark, Job, Session
from harness.model_grid import ROUNDED, shape
from harness.ranks import ranks_of
from harness.tensor_works import STEPS, Training, Writing, training, writing
from harness.training import LOSS_ERROR, SIZES
from pages.tensor_parallel import alone, draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.timing import Pace, spread
from xlstm_hip.cli.common import at_least

ROUNDS, QUICK_ROUNDS = 7, 2
# Of the first loss, and of the norm of logits, of products in bfloat16.
TOLERANCE = {"training": LOSS_ERROR, "writing": 2e-2}


def run(session: Session, task: Writing | Training, advance: Advance) -> dict[str, Any]:
    rounds = QUICK_ROUNDS if session.quick else ROUNDS
    ranks = ranks_of(task.ranks, session.args.device)
    if isinstance(task, Writing):
        found = ranks.measure(rounds, writing, task)
        row: dict[str, Any] = {"work": "writing", "weights": task.weights, "batch": task.batch}
        tokens, samples = task.batch, [ms / STEPS for ms in found["ms"]]
    else:
        found = ranks.measure(rounds, training, task)
        size = SIZES[task.size]
        row = {"work": "training", "weights": task.size, "batch": size.batch}
        tokens, samples = size.batch * size.length, found["ms"]
    ms = {**spread(samples), "samples": samples}
    row |= {
        "ranks": task.ranks,
        "ms": ms,
        "tokens_per_s": 1e3 * tokens / ms["median"],
        "peak_bytes": found["peak_bytes"],
        "check": found["check"],
    }
    one = alone(row, session.results["rows"])
    if one is not None and abs(row["check"] / one["check"] - 1) > TOLERANCE[row["work"]]:
        raise SystemExit(f"xlstm_hip: {task} differs from one rank: {row['check']}, not {one['check']}")
    return row


def plan(session: Session) -> list[Job]:
    args, results = session.args, session.results
    results["settings"] |= {
        "backend": "NCCL" if args.device == "cuda" else "gloo",
        "dtype": args.dtype,
        "shape": args.shape,
    }
    results["rows"] = []
    ranks = sorted(set(args.ranks))
    tasks: list[Writing | Training] = [
        Writing(count, batch, args.shape, args.dtype, weights)
        for weights in args.dtypes
        for batch in args.batches
        for count in ranks
    ]
    tasks += [Training(count, size) for size in args.sizes for count in ranks]
    return [Job(str(task), partial(run, session, task), results["rows"].append) for task in tasks]


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=at_least(1), nargs="+", metavar="N", default=[1, 2], help="(default: 1 2)")
    add(
        "--shape", type=shape, help="of what writes: demo, 4m, 7b or FEATURESxBLOCKSxHEADS (default: 7b; on a CPU demo)"
    )
    add("--batches", type=at_least(1), nargs="*", metavar="N", help="sequences at once (default: 1 8 32)")
    add("--dtypes", choices=("bf16", "fp32", *ROUNDED), nargs="*", help="(default: bf16, on a CPU fp32; int8, int4)")
    add("--sizes", choices=SIZES, nargs="*", help="of what is trained (default: 7b-blocks; on a CPU tiny)")


def settle(args: argparse.Namespace) -> None:
    on_cpu = args.device == "cpu"
    args.shape = args.shape or ("demo" if on_cpu or args.quick else "7b")
    args.batches = [1] if args.quick and args.batches is None else [1, 8, 32] if args.batches is None else args.batches
    args.dtype = "fp32" if on_cpu else "bf16"
    args.dtypes = [args.dtype, *ROUNDED] if args.dtypes is None else args.dtypes
    args.sizes = ["tiny" if on_cpu or args.quick else "7b-blocks"] if args.sizes is None else args.sizes
    other = [kind for kind in args.dtypes if kind not in (args.dtype, *ROUNDED)]
    if other:
        raise ValueError(f"--dtypes: expected {args.dtype}, int8 or int4 on this device, got {' '.join(other)}")


BENCHMARK = Benchmark(
    "tensor parallel", __file__, __doc__ or "", "tensor_parallel_{device}", Pace(1, 1, 1, 0.1), plan, markdown, draw,
    options, settle,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
