# SPDX-License-Identifier: Apache-2.0
"""Reading a prompt with a whole model, by the batch and the length, at once and in chunks with states in and out.

    python benchmarks/prefill.py --device cuda                       xLSTM-7B's shape, random weights, S 512 to 8192
    python benchmarks/prefill.py --device cuda --seconds 500 --out FOLDER/prefill_cuda.json
    python benchmarks/prefill.py --device cuda --batches 1 --lengths 2048 --chunk 256 --contenders xlstm_hip
    python benchmarks/prefill.py --device cuda --contenders "xlstm_large compiled" --keep  the file's others stay
    python benchmarks/prefill.py                                     the demo model on the CPU
    python benchmarks/prefill.py --quick                             a smoke run
    python benchmarks/prefill.py --redraw FILE                       the tables and the picture of a result file again

A prompt is read up to the logits of its next token. In chunks the states of one chunk are those that the next begins
with, as a server does that serves others in between; the loss is the time that this adds. Contenders are those of
decoding.py, one after the other; the official model is there eager and compiled by torch. The floor is the larger of
two times: a matrix product's, for those of the weights, and a copy's, for all weights once and the states.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from torch import Tensor

from harness import model_grid
from harness.benchmark import Benchmark, Job, Session
from harness.model_grid import COMMON, Grid, Measured, Point, first_call, times_of
from pages.prefill import draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.readers import Reader, Written
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.timing import Pace, paired_ratio
from xlstm_hip.cli.common import at_least

CONTENDERS = (XLSTM_HIP, COMMON, "transformers", "xlstm_large", "xlstm_large compiled")
BATCHES, LENGTHS, CHUNK = (1, 8), tuple(512 << n for n in range(5)), 512
CPU_LENGTHS, CPU_CHUNK = (128, 512, 2048), 128
QUICK_LENGTHS, QUICK_CHUNK = (32, 80), 32


def in_chunks(read: Reader, x: Tensor, chunk: int) -> Written:
    first, *more = x.split(chunk, dim=1)
    text = read(first)
    for part in more:
        text = text.read_on(part)
    return text


def measure(session: Session, read: Reader, x: Tensor, advance: Advance) -> Measured:
    """At once; and in chunks, where there is more than one."""
    chunk = session.args.chunk
    ways: dict[str, Callable[[], Written]] = {"logits": lambda: read(x)}
    if x.shape[1] > chunk:
        ways["in chunks"] = lambda: in_chunks(read, x, chunk)
    logits, peaks = {}, {}
    for name, way in ways.items():
        logits[name], peaks[name] = first_call(session, lambda way=way: way().logits)
    calls = {name: (lambda way=way: way().logits.argmax(-1)) for name, way in ways.items()}
    ms = times_of(session, calls, advance)
    times = {
        "ms": ms["logits"],
        "tokens_per_s": 1e3 * x.numel() / ms["logits"]["median"],
        "peak_bytes": peaks["logits"],
    }
    if "in chunks" in ms:
        ratio = paired_ratio(ms["in chunks"]["samples"], ms["logits"]["samples"])
        times["in_chunks"] = {"ms": ms["in chunks"], "ratio": ratio, "peak_bytes": peaks["in chunks"]}
    return Measured(times, logits)


def floor_ms(grid: Grid, kind: str, point: Point) -> float:
    return max(grid.weights_ms(kind, point.batch), grid.products_ms(point.batch * point.length))


def plan(session: Session) -> list[Job]:
    args = session.args
    session.results["settings"] |= {"dtype": args.dtype, "chunk": args.chunk}
    points = [Point(b, s, f"B{b} S{s}") for b in sorted(set(args.batches)) for s in sorted(set(args.lengths))]
    return Grid(session, points, partial(measure, session), floor_ms).jobs()


def options(parser: argparse.ArgumentParser) -> None:
    model_grid.add_options(parser, CONTENDERS)
    parser.add_argument("--lengths", type=at_least(1), nargs="+", metavar="N", help="tokens of a prompt")
    parser.add_argument("--chunk", type=at_least(1), metavar="N", help="tokens of a chunk (default: 512; on a CPU 128)")


def settle(args: argparse.Namespace) -> None:
    model_grid.settle(args)
    on_cpu = args.device == "cpu"
    args.batches = args.batches or list(BATCHES)
    args.lengths = args.lengths or list(QUICK_LENGTHS if args.quick else CPU_LENGTHS if on_cpu else LENGTHS)
    args.chunk = args.chunk or (QUICK_CHUNK if args.quick else CPU_CHUNK if on_cpu else CHUNK)


BENCHMARK = Benchmark(
    "prefill",
    __file__,
    __doc__ or "",
    "prefill_{device}",
    Pace(1, 3, 9, 0.05),
    plan,
    markdown,
    draw,
    options,
    settle,
    failures=model_grid.failures,
)

if __name__ == "__main__":
    BENCHMARK.main()
