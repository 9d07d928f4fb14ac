# SPDX-License-Identifier: Apache-2.0
"""Decoding with a whole model over the batch: tokens a second of ours and others', and the least time of the bytes.

    python benchmarks/decoding.py --device cuda                       xLSTM-7B's shape, random weights, B 1 to 256
    python benchmarks/decoding.py --device cuda --seconds 500 --out FOLDER/decoding_cuda.json
    python benchmarks/decoding.py --device cuda --shape 2048x24x8 --batches 1 16 --dtypes bf16 int4
    python benchmarks/decoding.py --device cuda --contenders "xlstm_large graph" --keep    the file's others stay
    python benchmarks/decoding.py                                     the demo model on the CPU, B 1 to 16
    python benchmarks/decoding.py --quick                             a smoke run
    python benchmarks/decoding.py --redraw FILE                       the tables and the picture of a result file again

Ours has its weights as they are, in 8 and in 4 bits; *common* runs the kernels that every GPU has, which AMD users get.
Others: transformers' own xLSTM, and the official xlstm_large eager, its step as one CUDA graph ("eager graph"), and
compiled by torch and then one graph ("graph"). They come one after the other, each with the device to itself. A point
without enough memory is left out, and so is one that --seconds do not reach. The floor of a step is what a copy needs
for all the weights once and the float32 states in and out.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torch import Tensor

from harness import model_grid
from harness.benchmark import Benchmark, Job, Session
from harness.model_grid import CHECKED_TOKENS, COMMON, Grid, Measured, Point, first_call, times_of
from harness.whole_models import PROMPT
from pages.decoding import draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.readers import Reader, Written
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.timing import Pace

CONTENDERS = (XLSTM_HIP, COMMON, "transformers", "xlstm_large", "xlstm_large eager graph", "xlstm_large graph")
BATCHES = tuple(1 << n for n in range(9))
CPU_BATCHES, QUICK_BATCHES = BATCHES[:5], (1, 2)
STEPS, QUICK_STEPS = 32, CHECKED_TOKENS  # of a call


def measure(session: Session, read: Reader, x: Tensor, advance: Advance) -> Measured:
    steps = QUICK_STEPS if session.quick else STEPS

    def first() -> tuple[Written, Tensor]:
        text = read(x)
        return text, text.write(steps)

    (text, written), peak = first_call(session, first)
    call = times_of(session, {"write": lambda: text.write(steps)}, advance)["write"]
    ms: dict[str, Any] = {name: call[name] / steps for name in ("median", "min", "max")}
    ms["samples"] = [taken / steps for taken in call["samples"]]
    times = {"ms": ms, "tokens_per_s": 1e3 * x.shape[0] / ms["median"], "peak_bytes": peak}
    return Measured(times, {"logits": text.logits}, written)


def floor_ms(grid: Grid, kind: str, point: Point) -> float:
    return grid.weights_ms(kind, point.batch)


def plan(session: Session) -> list[Job]:
    args = session.args
    session.results["settings"] |= {"dtype": args.dtype, "steps": QUICK_STEPS if session.quick else STEPS}
    points = [Point(batch, PROMPT, f"B{batch}") for batch in sorted(set(args.batches))]
    return Grid(session, points, partial(measure, session), floor_ms).jobs()


def options(parser: argparse.ArgumentParser) -> None:
    model_grid.add_options(parser, CONTENDERS)


def settle(args: argparse.Namespace) -> None:
    model_grid.settle(args)
    args.batches = args.batches or list(
        QUICK_BATCHES if args.quick else BATCHES if args.device != "cpu" else CPU_BATCHES
    )


BENCHMARK = Benchmark(
    "decoding",
    __file__,
    __doc__ or "",
    "decoding_{device}",
    Pace(1, 3, 9, 0.1),
    plan,
    markdown,
    draw,
    options,
    settle,
    failures=model_grid.failures,
)

if __name__ == "__main__":
    BENCHMARK.main()
