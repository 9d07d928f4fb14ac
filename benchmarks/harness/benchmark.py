# SPDX-License-Identifier: Apache-2.0
"""Shared by the files of benchmarks/: a command line, the jobs of a run, and its result files."""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from xlstm_hip._core.progress import Tasks
from xlstm_hip.bench import memory, metrics, result_files
from xlstm_hip.bench.contest import Advance, Contest, Entry, race
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.registry import Call, Implementation, Operator
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import QUICK, Pace, Samples
from xlstm_hip.cli.common import POSITIVE, at_least, check_out, device_name, json_file


@dataclass(frozen=True)
class Job:
    title: str
    measure: Callable[[Advance], Any]
    keep: Callable[[Any], object]  # puts what was measured into the results
    late: Any = None  # is kept in its place when the run's seconds are over; None: it is measured all the same


class Session:
    """A run: what was asked for, and the results so far, which are written after each job."""

    def __init__(self, args: argparse.Namespace, machine: Machine, pace: Pace, results: Results) -> None:
        self.args, self.machine, self.pace, self.results = args, machine, pace, results
        self.quick: bool = args.quick
        self.ends = math.inf  # when, by time.monotonic

    def earlier(self) -> Results:
        """The run whose results are in the file now, for --keep."""
        try:
            before = result_files.read(self.args.out, self.results["benchmark"])
        except ValueError as error:
            raise SystemExit(f"--keep: {error}") from error
        then, now = (run["environment"]["gpu"] and run["environment"]["gpu"]["name"] for run in (before, self.results))
        if then != now:
            raise SystemExit(f"--keep: {self.args.out} is of another GPU")
        return before

    def on_this_device(self, operator: Operator) -> list[Implementation]:
        """The operator's implementations for this device."""
        return [x for x in operator.implementations if self.machine.device.type in x.devices]

    def compare(
        self,
        operator: Operator,
        cell: Any,
        advance: Advance,
        shown_metrics: Sequence[str] = (),  # metrics that stand in the entries
        unchecked: Mapping[str, Call] | None = None,  # what takes its turns too, without being held to anything
        as_timed: Callable[[Call], Call] = lambda call: call,
    ) -> tuple[list[Entry], dict[str, Samples]]:
        """An operator's implementations at one cell, held to the truth, then timed. One of ours that is wrong or does
        not run ends the run."""
        contest = Contest(operator, cell, self.machine)
        entries, calls = [], {}
        for x in self.on_this_device(operator):
            entry, call = contest.enter_or_end(x)
            entries.append(entry)
            if call is not None:
                calls[x.name] = as_timed(call)
        contest.forget_truth()
        samples = self.race(entries, calls | dict(unchecked or {}), advance)
        for entry in entries:
            metrics.say(cell, entry, shown_metrics)
        return entries, samples

    def race(self, entries: Sequence[Entry], calls: Mapping[str, Call], advance: Advance) -> dict[str, Samples]:
        return race(entries, calls, self.pace, advance, self.machine.seconds)

    def memory(self, operator: Operator, small: Any, cell: Any) -> list[Entry]:
        """The memory that one call of each adds to its inputs: on a GPU here, on the CPU in a process of its own. A
        smoke run measures only the first."""
        entries: list[Entry] = []
        for x in self.on_this_device(operator)[: 1 if self.quick else None]:
            entry: Entry = {"name": x.name, "provider": x.provider}
            missing = x.missing(self.machine.device)
            try:
                if missing is not None:
                    raise memory.MemoryUnknown(missing)
                if self.machine.gpu:
                    call = x.prepare(cell, operator.inputs(cell, self.machine.device))
                    entry["bytes"] = self.machine.peak_bytes(call)
                else:
                    threads = torch.get_num_threads()
                    entry["bytes"] = memory.growth_in_new_process(operator.name, x.name, small, cell, threads)
            except RuntimeError as reason:
                entry["missing"] = str(reason).strip().splitlines()[0]
            entries.append(entry)
            self.machine.clean()
        return entries


@dataclass(frozen=True)
class Benchmark:
    """A story with aims of its own: which jobs, and how their results are shown."""

    name: str  # what result files say that they are of
    file: str  # its own; results lie beside it
    text: str  # its docstring
    stem: str  # of the result files; {device}
    pace: Pace
    plan: Callable[[Session], Sequence[Job]]
    markdown: Callable[[Results], str]
    draw: Callable[[Results, Path], list[Path]]  # beside the result file
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    settle: Callable[[argparse.Namespace], None] = lambda args: None  # what depends on other options
    devices: tuple[str, ...] = ("cpu", "cuda")  # the first unless one is asked for
    failures: Callable[[Results], list[str]] = lambda results: []  # of ours, where they do not end the run

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            description=self.text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        parser.add_argument("--device", type=device_name, default=self.devices[0], help="(default: %(default)s)")
        parser.add_argument("--threads", metavar="N", type=at_least(1), default=2, help="(default: %(default)s)")
        parser.add_argument("--out", type=json_file, help=f"JSON; what is shown lies beside it (results/{self.stem})")
        parser.add_argument("--quick", action="store_true", help="small shapes, few rounds: no figures, a smoke run")
        parser.add_argument("--redraw", "--plot", type=Path, metavar="FILE.json", help="measure nothing: show this")
        self.options(parser)
        return parser

    def main(self, words: Sequence[str] | None = None) -> None:
        parser = self.parser()
        args = parser.parse_args(words)
        try:
            if args.redraw:
                result_files.redraw(args.redraw, self.name, self.markdown, self.draw)
                return
            kind = torch.device(args.device).type
            if kind not in self.devices:
                raise ValueError(f"--device: expected {' or '.join(self.devices)}, got {args.device!r}")
            if kind == "cuda" and not torch.cuda.is_available():
                raise ValueError("--device: torch sees no GPU; --device cpu --quick tries a benchmark out")
            self.settle(args)
            args.out = args.out or Path(self.file).parent / "results" / f"{self.stem.format(device=kind)}.json"
            check_out(args.out)
        except ValueError as error:
            parser.error(str(error))
        results = self.run(args)
        result_files.report(results, args.out, self.markdown, self.draw)
        failed = self.failures(results)
        if failed:
            raise SystemExit("FAILED:\n" + "\n".join(failed))
        if results["ended_early"]:
            sys.exit(130)

    def run(self, args: argparse.Namespace) -> Results:
        torch.set_num_threads(args.threads)
        warnings.filterwarnings("ignore", module="(mlstm_kernels|transformers|torch|xlstm)")
        results: Results = {
            "benchmark": self.name,
            "environment": environment(args.device),
            "settings": {"quick": args.quick, "device": args.device},
            "ended_early": True,  # until it did not
        }
        pace = replace(self.pace, seconds=getattr(args, "pace", None) or self.pace.seconds)
        session = Session(args, Machine(args.device), QUICK if args.quick else pace, results)
        done = 0
        with result_files.keeps_partial_results():
            jobs = self.plan(session)
            with Tasks(len(jobs)) as progress:
                for job in jobs:
                    progress.begin(job.title)
                    over = job.late is not None and time.monotonic() > session.ends
                    job.keep(job.late if over else job.measure(progress.advance))
                    done += 1
                    session.machine.clean()
                    result_files.save(results, args.out)
            results["ended_early"] = False
        if not done:
            raise SystemExit("ended before anything was measured")
        result_files.save(results, args.out)
        return results


def add_time_options(parser: argparse.ArgumentParser, line: str, pace: float, checks: str = "") -> None:
    """--seconds, of which a plan makes Session.ends, and --pace. line: what is timed together; pace: the default."""
    parser.add_argument(
        "--seconds", type=POSITIVE, default=3600.0, help=f"begin no {line} after so many{checks} (default: 3600)"
    )
    parser.add_argument("--pace", type=POSITIVE, help=f"seconds of rounds for each {line} (default: {pace:g})")


def cell_of(cell: Any, entries: list[Entry], **more: Any) -> Results:
    """A line of a result file."""
    return {**asdict(cell), **more, "contenders": entries}
