# SPDX-License-Identifier: Apache-2.0
"""The mLSTM on a GPU: ours beside mlstm_kernels' Triton kernels and FLA's simple_gla, in one process.

    python benchmarks/mlstm_gpu.py --peers FOLDER   results/mlstm_gpu.json, .md and .png beside this file
    python benchmarks/mlstm_gpu.py --shapes S2048 step     only what has one of these in its title
    python benchmarks/mlstm_gpu.py --shapes step --keep    the same; the file's other shapes stay, with their date
    python benchmarks/mlstm_gpu.py --quick          tiny shapes, a smoke run; with --device cpu without a GPU
    python benchmarks/mlstm_gpu.py --plot FILE.json only the table and the picture, from the file

Every round takes a sample of every contender, eager and in a graph, over input sets that do not stay in L2. h, the
gradients and the states are held to a float64 truth first. A peer that is missing or fails is reported with the reason.
The file is written after each cell, so that a run which is cut short leaves what it has.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gpu_report
from xlstm_hip.bench import result_files
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.machine import Machine, ceilings, taking_turns
from xlstm_hip.bench.mlstm import Cell, errors_of, make_inputs, true_results
from xlstm_hip.bench.mlstm_contenders import GPU_SEQUENCES, GPU_STEPS
from xlstm_hip.bench.registry import OURS, Implementation
from xlstm_hip.bench.timing import Pace, Samples, interleaved, paired_ratio, spread
from xlstm_hip.bench.trial import add_peers, before_triton, compiling, not_survived

DEFAULT_OUT = Path(__file__).resolve().parent / "results" / "mlstm_gpu.json"
FLOOR_CHUNK = 128  # tokens of a chunk in the flop floor
# B, NH, S, DHQK, DHHV
SHAPES = ((8, 8, 8192, 256, 512), (1, 8, 8192, 256, 512), (1, 8, 2048, 256, 512), (8, 16, 8192, 128, 256))
STEP_BATCHES = (1, 8, 64)
LENGTHS = tuple(1 << n for n in range(11, 21))
QUICK_SHAPES = ((1, 2, 256, 32, 64),)
EXACT = 5e-2  # a result further from the truth than this is wrong
LATE, CUT_SHORT = "left out for time", "the run ended before it"
NOTHING, COPY = "an empty kernel", "a copy of C"  # what a replay of a step cannot be faster than
WORKS = ("forward", "forward+backward")


def contenders_for(work: str) -> tuple[Implementation, ...]:
    return GPU_STEPS if work == "step" else GPU_SEQUENCES


def peers_tried() -> dict[str, tuple[str, ...]]:
    """The works of each Triton peer, by its name."""
    works = {x.name: WORKS for x in GPU_SEQUENCES if x.triton}
    return works | {x.name: ("step",) for x in GPU_STEPS if x.triton}


def trial(name: str, device: str) -> None:
    """In a process of its own: each work once, and a word for each that ended."""
    for work in peers_tried()[name]:
        (contender,) = (x for x in contenders_for(work) if x.name == name)
        cell = Cell(work, "bf16", 1, 2, 1 if work == "step" else 256, 256, 512, 64)
        with compiling(contender):
            try:
                contender.prepare(cell, make_inputs(cell, device))()
                torch.cuda.synchronize()
            except Exception as error:  # it lives: the benchmark itself meets and reports this
                print(f"{work}: {type(error).__name__}", file=sys.stderr)
        print(f"done {work}", flush=True)


def cells_of(quick: bool) -> list[Cell]:
    shapes = QUICK_SHAPES if quick else SHAPES
    heads, dqk, dhv = (2, 32, 64) if quick else (8, 256, 512)
    batches = (1, 2) if quick else STEP_BATCHES
    sequences = [Cell(work, "bf16", b, nh, s, k, v, 64) for b, nh, s, k, v in shapes for work in WORKS]
    return [Cell("step", "bf16", b, heads, 1, dqk, dhv, 64) for b in batches] + sequences  # what is quick, first


def title_of(cell: Cell) -> str:
    length = "" if cell.work == "step" else f" S{cell.tokens}"
    return f"{cell.work} B{cell.batch} NH{cell.heads}{length} {cell.dqk}/{cell.dhv}"


class Benchmark:
    def __init__(self, machine: Machine, pace: Pace, seconds: float, out: Path, results: dict[str, Any]) -> None:
        self.machine, self.pace, self.out, self.results = machine, pace, out, results
        self.seconds, self.ends = seconds, time.monotonic() + seconds
        self.lost: dict[tuple[str, str], str] = {}

    def say(self, text: str) -> None:
        print(f"[{self.ends - time.monotonic():5.0f} s left] {text}", file=sys.stderr, flush=True)

    def begin(self) -> None:
        """The clock of --seconds: trials of peers, whose kernels are compiled, are not on it."""
        self.ends = time.monotonic() + self.seconds

    def late(self) -> bool:
        return time.monotonic() > self.ends

    def save(self) -> None:
        result_files.save(self.results, self.out)

    def clean(self) -> None:
        gc.collect()
        if self.machine.gpu:
            torch.cuda.empty_cache()

    # ---- one shape and work

    def prepared(
        self, cell: Cell, contender: Implementation, sets: list[dict[str, torch.Tensor]], truth: dict[str, torch.Tensor]
    ) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
        """What is known before the rounds, and the calls to time."""
        entry: dict[str, Any] = {"name": contender.name, "side": contender.provider}
        if (contender.name, cell.work) in self.lost:
            return entry | {"missing": self.lost[contender.name, cell.work]}, {}
        try:
            with compiling(contender):
                got = contender.prepare(cell, sets[0])()
                self.machine.synchronize()
                calls = [contender.prepare(cell, inputs) for inputs in sets]
                for call in calls:
                    call()
                self.machine.synchronize()
        except Exception as error:  # a peer's failure is a result, and so is ours
            return entry | {"missing": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"}, {}
        if contender.exact:
            entry["errors"] = errors_of(cell, got, truth)
        del got
        entry["peak_bytes"] = self.machine.peak_bytes(calls[0])
        entry["host_ms"] = self.machine.host_ms(taking_turns(calls))
        timed: dict[str, Callable[[], Any]] = {}
        if cell.work != "step":
            timed["eager"] = taking_turns(calls)
        try:
            timed["graph"] = self.machine.graph_of(calls)  # of all sets: its time is theirs together
            if cell.work == "step":
                timed["one replay"] = self.machine.graph_of(calls[:1])
        except Exception as error:
            entry["no graph"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
            if cell.work == "step":
                timed["eager"] = taking_turns(calls)
        return entry, timed

    def measure(self, cell: Cell) -> dict[str, Any]:
        rates = self.results["ceilings"]
        floor_cell = replace(cell, chunk_size=FLOOR_CHUNK)
        inputs = make_inputs(cell, self.machine.device)
        moved = (
            cell.state_bytes * 2 if cell.work == "step" else sum(x.numel() * x.element_size() for x in inputs.values())
        )
        sets = [inputs]
        sets += [make_inputs(cell, self.machine.device, n) for n in range(1, self.machine.sets(moved))]
        truth = true_results(cell, inputs)
        kernels, timed = [], {}
        for contender in contenders_for(cell.work):
            entry, calls = self.prepared(cell, contender, sets, truth)
            self.say(f"  {contender.name}: {entry.get('missing', 'ready')}")
            kernels.append(entry)
            timed |= {(contender.name, mode): call for mode, call in calls.items()}
        del truth
        floors = self.replay_floors(inputs["c"]) if cell.work == "step" and self.machine.gpu else {}
        samples = self.rounds(timed | floors)
        for entry in kernels:
            for (name, mode), own in samples.items():
                if name == entry["name"]:
                    share = len(sets) if mode == "graph" else 1
                    entry[mode] = spread([ms / share for ms in own.ms]) | {"samples": [ms / share for ms in own.ms]}
        return {
            "title": title_of(cell),
            **cell.as_json(),
            "sets": len(sets),
            "floors_ms": {
                "bytes": cell.bytes / rates["copy_bytes_per_second"] * 1e3,
                "flops": floor_cell.flops / rates["bf16_flops"] * 1e3,
            },
            "replay_floors_ms": {name: spread(samples[name, mode].ms)["median"] for name, mode in floors},
            "date": self.results["environment"]["date"],
            "result_bytes": cell.result_bytes,
            "kernels": kernels,
            "ratios": ratios_of(kernels, samples),
        }

    def replay_floors(self, c: torch.Tensor) -> dict[tuple[str, str], Callable[[], Any]]:
        """What any step has in it: one launch, and its states read and written."""
        to, one = torch.empty_like(c), torch.zeros(1, device=c.device)
        work = {NOTHING: one.zero_, COPY: lambda: to.copy_(c)}
        return {(name, "one replay"): self.machine.graph_of([call]) for name, call in work.items()}

    def rounds(self, timed: dict[tuple[str, str], Callable[[], Any]]) -> dict[tuple[str, str], Samples]:
        """A single replay is timed with a cold L2, as a step meets its states; all else back to back."""
        samples: dict[tuple[str, str], Samples] = {}
        for cold in (False, True):
            calls = {key: call for key, call in timed.items() if (key[1] == "one replay") == cold}
            if calls:
                clock = self.machine.cold_seconds if cold else self.machine.seconds
                named = {"\n".join(key): call for key, call in calls.items()}
                # A flush takes longer than a step, and is not counted: fewer calls make a sample.
                pace = replace(self.pace, sample_seconds=self.pace.sample_seconds / 20) if cold else self.pace
                got = interleaved(named, pace, lambda fraction: None, clock)
                samples |= {key: got["\n".join(key)] for key in calls}
        return samples

    # ---- cost over the length

    def length(self, cell: Cell) -> dict[str, Any]:
        facts = {"title": title_of(cell), "work": cell.work, "tokens": cell.tokens, "result_bytes": cell.result_bytes}
        tokens = cell.batch * cell.heads * cell.tokens * 2
        inputs_bytes = tokens * (2 * cell.dqk + 2 * cell.dhv + 2)
        needed = 1.1 * (inputs_bytes + cell.result_bytes)
        free = self.machine.free_bytes()
        if needed > free:
            return facts | {"missing": f"needs {needed / 1e9:.0f} GB of the {free / 1e9:.0f} GB that are free"}
        (ours, *_) = contenders_for(cell.work)
        try:
            call = ours.prepare(cell, make_inputs(cell, self.machine.device))
            call()
            peak = self.machine.peak_bytes(call)
            (samples,) = self.rounds({("ours", "eager"): call}).values()
        except Exception as error:
            return facts | {"missing": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"}
        return facts | {"ms": spread(samples.ms), "peak_bytes": peak}


def ratios_of(kernels: list[dict[str, Any]], samples: dict[tuple[str, str], Samples]) -> list[dict[str, Any]]:
    """How many times faster each of ours is than each peer, by the rounds' own ratios."""
    pairs = [(x, y) for x in kernels if x["side"] == OURS for y in kernels if y["side"] != OURS]
    return [
        {"ours": x["name"], "peer": y["name"], "side": y["side"], "mode": mode}
        | paired_ratio(samples[y["name"], mode].ms, samples[x["name"], mode].ms)
        for x, y in pairs
        for mode in ("eager", "graph", "one replay")
        if (x["name"], mode) in samples and (y["name"], mode) in samples
    ]


def peers_versions() -> dict[str, str]:
    """Of what is imported by now: a folder of --peers has no versions that pip knows."""
    imported = {name: sys.modules.get(name) for name in ("triton", "mlstm_kernels", "fla")}
    return {name: getattr(module, "__version__", "of unknown version") for name, module in imported.items() if module}


def earlier(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    """An earlier run's file, each of its cells with that run's date."""
    try:
        before = json.loads(out.read_text())
        environment, cells = before["environment"], before["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"--keep: expected {out} to be a file of this benchmark: {error}") from error
    then, now = (facts["gpu"] and facts["gpu"]["name"] for facts in (environment, results["environment"]))
    if then != now:
        raise SystemExit(f"--keep: {out} is of another GPU")
    return before | {"cells": [{"date": environment["date"]} | facts for facts in cells]}


def run(given: argparse.Namespace) -> dict[str, Any]:
    machine = Machine(given.device)
    pace = Pace(0.2, 2, 3, 0.002) if given.quick else Pace(given.pace, 7, 31, 0.01)
    results: dict[str, Any] = {
        "benchmark": "mlstm_gpu",
        "environment": environment(given.device),
        "settings": {"quick": given.quick, "exact": EXACT, "floor_chunk": FLOOR_CHUNK},
        "cells": [],
        "lengths": [],
        "peers": {},
    }
    bench = Benchmark(machine, pace, given.seconds, given.out, results)
    bench.say("ceilings")
    results["ceilings"] = ceilings(machine, given.quick)

    def wanted(title: str) -> bool:
        return not given.shapes or any(text in title for text in given.shapes)

    before = earlier(given.out, results) if given.keep else {"cells": [], "lengths": []}
    kept = {facts["title"]: facts for facts in before["cells"] if "missing" not in facts}
    every = cells_of(given.quick)
    cells = [cell for cell in every if wanted(title_of(cell))]
    planned = {title_of(cell): {"title": title_of(cell), **cell.as_json()} for cell in cells}
    shown = [title_of(cell) for cell in every if title_of(cell) in planned or title_of(cell) in kept]
    results["cells"] = [planned[title] | {"missing": CUT_SHORT} if title in planned else kept[title] for title in shown]
    if not wanted("lengths"):
        results["lengths"] = before["lengths"]
    if machine.gpu and cells:
        bench.say("the peers, each tried in a process of its own")
        command = [sys.executable, str(Path(__file__).resolve()), "--device", given.device]
        command += ["--peers", str(given.peers)] if given.peers else []
        bench.lost = not_survived(command, os.environ, peers_tried())
    bench.begin()
    shape = QUICK_SHAPES[0] if given.quick else SHAPES[1]
    for work in WORKS if wanted("lengths") else ():
        for tokens in (256, 512) if given.quick else LENGTHS:
            cell = Cell(work, "bf16", 1, shape[1], tokens, shape[3], shape[4], 64)
            facts: dict[str, Any] = {"title": title_of(cell), "work": work, "tokens": tokens}
            results["lengths"].append(facts | {"missing": LATE} if bench.late() else bench.length(cell))
            bench.say(f"lengths: {title_of(cell)}: {results['lengths'][-1].get('missing', 'measured')}")
            bench.clean()
        bench.save()
    for cell in cells:
        title = title_of(cell)
        bench.say(title)
        facts = planned[title] | {"missing": LATE} if bench.late() else bench.measure(cell)
        results["cells"][shown.index(title)] = facts
        bench.clean()
        results["peers"] = peers_versions()
        bench.save()
    return results


def wrong_results(results: dict[str, Any]) -> list[str]:
    return [
        f"{cell['title']}: {kernel['name']}: {name} is {error:.2g} from the truth"
        for cell in results["cells"]
        for kernel in cell.get("kernels", ())
        if kernel["side"] == OURS
        for name, error in kernel.get("errors", {}).items()
        if not error <= EXACT
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=Path, help="a folder with the packages mlstm_kernels and fla, unpacked")
    parser.add_argument("--shapes", nargs="+", help='texts of titles, such as "S8192 256/512", step, lengths')
    parser.add_argument("--keep", action="store_true", help="what --shapes leaves out stays as it is in the file")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few rounds: no figures, a smoke run")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600.0,
        help="begin no further shape after so many (trials of peers not counted)",
    )
    parser.add_argument("--pace", type=float, default=4.0, help="seconds of rounds for each shape and work")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON; the table and the plot go beside it")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.json", help="measure nothing: table and picture of this file"
    )
    parser.add_argument("--try", dest="trial", help=argparse.SUPPRESS)
    given = parser.parse_args()
    add_peers(given.peers)
    before_triton()
    if given.trial:
        trial(given.trial, given.device)
        return
    if given.plot:
        result_files.report(json.loads(given.plot.read_text()), given.plot, gpu_report.markdown, gpu_report.draw)
        return
    if torch.device(given.device).type == "cuda" and not torch.cuda.is_available():
        parser.error("--device: torch sees no GPU; --device cpu --quick tries the benchmark out")
    results = run(given)
    result_files.report(results, given.out, gpu_report.markdown, gpu_report.draw)
    wrong = wrong_results(results)
    if wrong:
        raise SystemExit("WRONG RESULTS:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
