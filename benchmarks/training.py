# SPDX-License-Identifier: Apache-2.0
"""Training whole models: tokens a second, memory, and where a step's time goes, beside the official xlstm_large.

    python benchmarks/training.py --device cuda                  24 blocks of 1024 features, 8 x 2048 tokens
    python benchmarks/training.py --device cuda --size 160m 7b-blocks
    python benchmarks/training.py --device cuda --size 160m --keep        the file's other sizes stay, with their date
    python benchmarks/training.py --quick                        a smoke run on the CPU
    python benchmarks/training.py --redraw FILE                  the tables and the picture of a result file once more

A step is AdamW's, with autocast to bfloat16. Contenders have the same weights and tokens, each model is there eager and
compiled by torch; ours takes its own loss, the official model torch's cross entropy. The losses of the first step must
agree, or the run ends. Memory is what a step takes beyond weights and optimizer at its worst moment.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from harness.benchmark import Benchmark, Job, Session
from harness.training import (
    COMPILED,
    CONTENDERS,
    LOSS_ERROR,
    OFFICIAL,
    SIZES,
    Step,
    official_like,
    optimizer_of,
    time_by_group,
)
from pages.training import draw, markdown
from xlstm_hip.bench.contest import Advance, Entry, failure
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import Pace
from xlstm_hip.models import xLSTMLarge

KERNELS = ("chunkwise--triton_limit_chunk", "chunkwise--triton_xl_chunk")


def first_loss(step: Step) -> float:
    with torch.no_grad(), torch.autocast(step.device.type, torch.bfloat16):
        return float(step.loss(step.x, step.targets))


def steps_of(session: Session, name: str, device: torch.device) -> dict[str, Callable[[], Step]]:
    """A contender's name, and what makes its step. Both of a model share its weights and its optimizer."""
    size, args = SIZES[name], session.args
    torch.manual_seed(0)
    ours = xLSTMLarge(size.config())
    x = torch.randint(0, size.vocab, (size.batch, size.length + 1)).to(device)
    made: dict[str, tuple[Any, torch.optim.Optimizer]] = {}

    def step(contender: str) -> Step:
        kind = contender.removesuffix(f" {COMPILED}")
        if kind not in made:
            like = xLSTMLarge(size.config())
            like.load_state_dict(ours.state_dict())
            model = like.to(device) if kind == XLSTM_HIP else official_like(ours, args.official_kernel, device)
            made[kind] = model, optimizer_of(model)
        return Step(*made[kind], x, contender != kind)

    return {contender: lambda contender=contender: step(contender) for contender in args.contenders}


def measure(session: Session, name: str, advance: Advance) -> Results:
    machine, size = session.machine, SIZES[name]
    entries: list[Entry] = [
        {"name": name, "provider": XLSTM_HIP if name.startswith(XLSTM_HIP) else OFFICIAL}
        for name in session.args.contenders
    ]
    calls: dict[str, Step] = {}

    def attempt(part: Callable[[Entry], None]) -> None:
        for at, entry in enumerate(entries):
            if "failed" in entry or "missing" in entry:
                continue
            try:
                part(entry)
            except Exception as error:
                entries[at] = failure(machine, entry, error)
                calls.pop(entry["name"], None)

    makers = steps_of(session, name, machine.device)

    def first(entry: Entry) -> None:
        calls[entry["name"]] = step = makers[entry["name"]]()
        entry["loss"] = first_loss(step)

    def prepare(entry: Entry) -> None:
        step = calls[entry["name"]]
        for _ in range(2):  # compiles, and makes the optimizer's state
            step()
        entry["bytes"] = machine.peak_bytes(step)

    attempt(first)  # of all, since a step of one changes the weights that its other form shares
    attempt(prepare)
    check(entries)
    session.race(entries, calls, advance)
    for entry in entries:
        if "ms" in entry:
            entry["tokens_per_s"] = 1e3 * size.batch * size.length / entry["ms"]["median"]
            entry["groups"] = time_by_group(calls[entry["name"]], machine, entry["ms"]["median"])
    return {"size": name, **vars(size), "contenders": entries}


def check(entries: list[Entry]) -> None:
    losses = {entry["name"]: entry["loss"] for entry in entries if "loss" in entry}
    for entry in entries:
        if "failed" in entry:
            raise SystemExit(f"{entry['name']}: {entry['failed']}")
    if losses and max(losses.values()) > (1 + LOSS_ERROR) * min(losses.values()):
        raise SystemExit(f"the first step's losses differ by more than {LOSS_ERROR}: {losses}")


def kept(session: Session) -> list[Results]:
    """The file's sizes that this run does not measure, each with the date of its run."""
    before = session.earlier()
    date = before["environment"]["date"]
    return [{"date": date} | size for size in before["sizes"] if size["size"] not in session.args.size]


def plan(session: Session) -> list[Job]:
    results = session.results
    results["settings"] |= {"official_kernel": session.args.official_kernel}
    results["sizes"] = kept(session) if session.args.keep else []

    def job(name: str) -> Job:
        return Job(f"{name}: training", lambda advance: measure(session, name, advance), results["sizes"].append)

    return [job(name) for name in session.args.size]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, nargs="+", help="(default: 24x1024; in a smoke run tiny)")
    parser.add_argument("--contenders", choices=CONTENDERS, nargs="+", default=CONTENDERS, help="(default: all)")
    parser.add_argument("--keep", action="store_true", help="what --size leaves out stays as it is in the file")
    parser.add_argument("--official-kernel", choices=KERNELS, default=KERNELS[0], help="(default: %(default)s)")


def settle(args: argparse.Namespace) -> None:
    args.size = args.size or (["tiny"] if args.quick else ["24x1024"])


BENCHMARK = Benchmark(
    "training",
    __file__,
    __doc__ or "",
    "training_{device}",
    Pace(20, 3, 15, 0.05),
    plan,
    markdown,
    draw,
    options,
    settle,
)

if __name__ == "__main__":
    BENCHMARK.main()
