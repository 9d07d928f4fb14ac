# SPDX-License-Identifier: Apache-2.0
"""The mLSTM on a GPU: ours beside mlstm_kernels' Triton kernels and FLA's simple_gla, in one process.

    python benchmarks/mlstm_gpu.py --peers FOLDER   results/mlstm_gpu.json, .md and .png beside this file
    python benchmarks/mlstm_gpu.py --shapes S2048 step     only what has one of these in its title
    python benchmarks/mlstm_gpu.py --shapes step --keep    the same; the file's other shapes stay, with their date
    python benchmarks/mlstm_gpu.py --quick          tiny shapes, a smoke run; with --device cpu without a GPU
    python benchmarks/mlstm_gpu.py --redraw FILE    only the table and the picture, from the file

Every round takes a sample of every contender, eager and in a graph, over input sets that do not stay in L2. A peer that
is missing or fails is reported with the reason, and one of ours is with exit code 1.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from harness import modes
from harness.benchmark import Benchmark, Job, Session, add_time_options
from harness.sides import sided
from pages import mlstm_gpu as page
from xlstm_hip.bench.contest import LATE, Advance, Contest, failure
from xlstm_hip.bench.machine import ceilings
from xlstm_hip.bench.mlstm import make_inputs
from xlstm_hip.bench.mlstm_contenders import GPU_SEQUENCES, GPU_STEPS
from xlstm_hip.bench.mlstm_points import WORKS, Cell
from xlstm_hip.bench.operators import OPERATORS
from xlstm_hip.bench.registry import DTYPES, PROVIDERS, Scale, work_of
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import Pace
from xlstm_hip.bench.trial import add_peers, lost_in_trials
from xlstm_hip.bench.triton_compiler import before_triton

FLOOR_CHUNK = 128  # tokens of a chunk in the flop floor
# B, NH, S, DHQK, DHHV
SHAPES = ((8, 8, 8192, 256, 512), (1, 8, 8192, 256, 512), (1, 8, 2048, 256, 512), (8, 16, 8192, 128, 256))
STEP_BATCHES = (1, 8, 64)
LENGTHS = tuple(1 << n for n in range(11, 21))
QUICK_SHAPES = ((1, 2, 256, 32, 64),)
FORWARD, BOTH = WORKS
OPERATOR_OF = {
    FORWARD: replace(OPERATORS["mlstm"], implementations=GPU_SEQUENCES),
    BOTH: replace(OPERATORS["mlstm-backward"], implementations=GPU_SEQUENCES),
    "step": replace(OPERATORS["step"], implementations=GPU_STEPS),
}
CUT_SHORT = "the run ended before it"
NOTHING, COPY = "an empty kernel", "a copy of C"  # what a replay of a step cannot be faster than
PEERS = {"triton": "triton", "mlstm_kernels": "mlstm_kernels", "fla": "flash-linear-attention"}  # names that pip has
# The aims on an H200, by shape: times faster than mlstm_kernels' fastest here and than FLA; "common" is for the
# schedule that AMD users get, a contender of its own. MiB: of h, the gradients and all between. us: one replay.
AIMS: dict[str, dict[str, dict[str, float]]] = {
    "B1 NH8 256/512": {"step": {"us": 5}},
    "B8 NH8 256/512": {"step": {"us": 18}},
    "B64 NH8 256/512": {"step": {"us": 132}},
    "B8 NH8 S8192 256/512": {
        FORWARD: {"common mlstm_kernels": 3.6, "common FLA": 1.4, "mlstm_kernels": 8.5, "FLA": 3.3},
        BOTH: {"mlstm_kernels": 5.8, "MiB": 1.5 * 1024},
    },
    "B1 NH8 S8192 256/512": {
        FORWARD: {"common mlstm_kernels": 3, "mlstm_kernels": 5.5, "FLA": 2},
        BOTH: {"mlstm_kernels": 4.5},
    },
    "B1 NH8 S2048 256/512": {
        FORWARD: {"common mlstm_kernels": 2.5, "mlstm_kernels": 3, "FLA": 1.9},
        BOTH: {"mlstm_kernels": 6.5},
    },
    "B8 NH16 S8192 128/256": {
        FORWARD: {"common mlstm_kernels": 3, "mlstm_kernels": 6, "FLA": 2.5},
        BOTH: {"mlstm_kernels": 4.5},
    },
}


def cells_of(quick: bool) -> list[Cell]:
    shapes = QUICK_SHAPES if quick else SHAPES
    heads, dqk, dhv = (2, 32, 64) if quick else (8, 256, 512)
    sequences = [Cell(work, "bf16", b, nh, s, k, v, 64) for b, nh, s, k, v in shapes for work in WORKS]
    steps = [Cell("step", "bf16", b, heads, 1, dqk, dhv, 64) for b in ((1, 2) if quick else STEP_BATCHES)]
    return steps + sequences  # what is quick, first


def lengths_of(quick: bool) -> list[Cell]:
    _, heads, _, dqk, dhv = QUICK_SHAPES[0] if quick else SHAPES[1]
    lengths = (256, 512) if quick else LENGTHS
    return [Cell(work, "bf16", 1, heads, tokens, dqk, dhv, 64) for work in WORKS for tokens in lengths]


def facts_of(cell: Cell) -> Results:
    facts = cell.as_json()
    return {"title": f"{cell.work} {facts['size']}", **facts, "result_bytes": cell.result_bytes}


def inputs_bytes(cell: Cell) -> int:
    """Of a sequence; where there are gradients to come, theirs too."""
    features = 2 * cell.dqk + cell.dhv * (2 if cell.work == BOTH else 1) + 2
    return cell.batch * cell.heads * cell.tokens * DTYPES[cell.dtype].itemsize * features


def measure(session: Session, cell: Cell, lost: dict[tuple[str, str], str], advance: Advance) -> Results:
    machine, rates, step = session.machine, session.results["ceilings"], cell.work == "step"
    contest = Contest(OPERATOR_OF[cell.work], cell, machine, lost)
    count = machine.sets(2 * cell.state_bytes if step else inputs_bytes(cell))
    sets = [contest.inputs, *(make_inputs(cell, machine.device, n) for n in range(1, count))]
    floors = {}
    if step and machine.gpu:  # what any step has in it: one launch, and its states read and written
        c = contest.inputs["c"]
        to, one = torch.empty_like(c), torch.zeros(1, device=c.device)
        floors = {NOTHING: one.zero_, COPY: lambda: to.copy_(c)}
    entries, below = modes.compare(contest, sets, step, floors, session.pace, advance)
    return {
        **facts_of(cell),
        "sets": count,
        "floors_ms": {
            "bytes": cell.bytes / rates["copy_bytes_per_second"] * 1e3,
            "flops": cell.flops_in_chunks(FLOOR_CHUNK) / rates["bf16_flops"] * 1e3,
        },
        "replay_floors_ms": below,
        "date": session.results["environment"]["date"],
        "kernels": sided(entries),
    }


def measure_length(session: Session, cell: Cell, advance: Advance) -> Results:
    """Ours alone; its results are not held to anything, a truth of a million tokens would not fit."""
    operator, machine = OPERATOR_OF[cell.work], session.machine
    implementation = replace(
        operator.implementations[0], exact=False, needs=lambda cell: 1.1 * (inputs_bytes(cell) + cell.result_bytes)
    )
    entry, call = Contest(operator, cell, machine).enter(implementation)
    if call is not None:
        try:
            entry["peak_bytes"] = machine.peak_bytes(call)
            session.race([entry], {entry["name"]: call}, advance)
        except Exception as error:
            entry = failure(machine, entry, error)
    return facts_of(cell) | entry


def earlier(session: Session) -> Results:
    """An earlier run's file, each of its cells with that run's date."""
    before = session.earlier()
    return before | {"cells": [{"date": before["environment"]["date"]} | facts for facts in before["cells"]]}


def plan(session: Session) -> list[Job]:
    args, results, machine = session.args, session.results, session.machine
    before = earlier(session) if args.keep else {"cells": [], "lengths": []}
    packages = results["environment"]["packages"]
    results["settings"] |= {"exact": OPERATOR_OF[FORWARD].exact["bf16"], "floor_chunk": FLOOR_CHUNK}
    results["peers"] = {name: packages[package] for name, package in PEERS.items() if packages[package]}
    results["ceilings"] = ceilings(machine, session.quick)

    def selected(title: str) -> bool:
        return not args.shapes or any(text in title for text in args.shapes)

    every = {facts_of(cell)["title"]: cell for cell in cells_of(session.quick)}
    cells = {title: cell for title, cell in every.items() if selected(title)}
    earlier_cells = {facts["title"]: facts for facts in before["cells"] if "missing" not in facts}
    shown = [title for title in every if title in cells or title in earlier_cells]
    results["cells"] = [
        facts_of(cells[title]) | {"missing": CUT_SHORT} if title in cells else earlier_cells[title] for title in shown
    ]
    results["lengths"] = [] if selected("lengths") else before["lengths"]
    lost = {}
    if cells:
        names = [operator.name for operator in OPERATOR_OF.values()]
        scale = Scale(machine.gpu, session.quick, ("bf16",))
        works = sorted({work_of(OPERATOR_OF[cell.work], cell) for cell in cells.values()})
        lost = lost_in_trials(names, args.device, scale, tuple(PROVIDERS), args.peers, works)
    # Trials last as long as peers' compilers, and are not on this clock.
    session.ends = time.monotonic() + args.seconds
    late = {"missing": LATE}
    jobs = [
        Job(f"lengths: {cell.title}", partial(measure_length, session, cell), results["lengths"].append,
            facts_of(cell) | late)
        for cell in (lengths_of(session.quick) if selected("lengths") else ())
    ]  # fmt: skip
    return jobs + [
        Job(title, partial(measure, session, cell, lost), partial(results["cells"].__setitem__, shown.index(title)),
            facts_of(cell) | late)
        for title, cell in cells.items()
    ]  # fmt: skip


def failures(results: Results) -> list[str]:
    kernels = ((cell, k) for cell in results["cells"] for k in cell.get("kernels", ()))
    lengths = ((point, point) for point in results["lengths"])
    return [f"{c['title']}: {k['name']}: {k['failed']}" for c, k in (*kernels, *lengths) if "failed" in k]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=Path, help="a folder with the packages mlstm_kernels and fla, unpacked")
    parser.add_argument("--shapes", nargs="+", help='texts of titles, such as "S8192 256/512", step, lengths')
    parser.add_argument("--keep", action="store_true", help="what --shapes leaves out stays as it is in the file")
    add_time_options(parser, "shape and work", 4, ", trials of peers not counted")


def settle(args: argparse.Namespace) -> None:
    add_peers(args.peers)
    before_triton()


BENCHMARK = Benchmark(
    "mlstm_gpu", __file__, __doc__ or "", "mlstm_gpu", Pace(4, 7, 31, 0.01), plan,
    partial(page.markdown, aims=AIMS), page.draw, options, settle,
    devices=("cuda", "cpu"), failures=failures,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
