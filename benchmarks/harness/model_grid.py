# SPDX-License-Identifier: Apache-2.0
"""One model over a grid of points, by contenders that come one after the other.

Each contender has the device to itself: what does not fit is its own memory. All have the same weights. Results are
held to the plain kernels when all contenders are through, since the plain model needs that memory too.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.benchmark import Job, Session, add_time_options
from xlstm_hip.bench.contest import LATE, Advance, Entry, failure
from xlstm_hip.bench.machine import copy_rate, matmul_rate
from xlstm_hip.bench.models import (
    MAKERS,
    SIZES,
    Weights,
    after,
    errors_of,
    plain_model,
    random_weights,
    state_bytes,
    weight_bytes,
    weights_in,
)
from xlstm_hip.bench.operators import MODEL_EXACT
from xlstm_hip.bench.readers import Reader
from xlstm_hip.bench.registry import DTYPES, EVERYWHERE, HUGGING_FACE, LARGE, XLSTM_HIP, why_missing
from xlstm_hip.bench.result_files import Results, read
from xlstm_hip.bench.schedules import common_schedule
from xlstm_hip.bench.timing import interleaved
from xlstm_hip.cli.common import at_least
from xlstm_hip.models import load_pretrained, xLSTMLargeConfig

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
GPU = ("cuda",)
COMMON = f"{XLSTM_HIP} common"  # by the kernels that every GPU has
ROUNDED = {"int8": 8, "int4": 4}
WEIGHTS = (*DTYPES, *ROUNDED)
PEERS = {  # by the name of its maker: the provider, and where it runs
    "transformers": (HUGGING_FACE, EVERYWHERE),
    "xlstm_large": (LARGE, EVERYWHERE),
    "xlstm_large eager graph": (LARGE, GPU),
    "xlstm_large graph": (LARGE, GPU),
    "xlstm_large compiled": (LARGE, GPU),
}
CHECKED_ROWS, CHECKED_TOKENS = 8, 8  # of each point at most
CHECKED_PROMPT = 8192  # tokens, of the rows together
POINTS_PART = 0.8  # of --seconds; the rest is for the checks
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Contender:
    name: str
    provider: str
    maker: str  # the key of MAKERS
    devices: tuple[str, ...]
    weights: str  # the dtype, int8 or int4
    common: bool = False  # runs the common schedule

    @property
    def bits(self) -> int:
        return ROUNDED.get(self.weights, 0)

    def missing(self, device: torch.device) -> str | None:
        return why_missing(self.provider, self.devices, device)


@dataclass(frozen=True)
class Point:
    batch: int
    length: int  # tokens of a prompt
    title: str

    def needs_no_less_than(self, other: Point) -> bool:
        return self.batch >= other.batch and self.length >= other.length


@dataclass(frozen=True)
class Measured:
    times: Entry
    logits: dict[str, Tensor]  # (B, V) of the token after the prompt, "logits" and those of other ways to read it
    text: Tensor | None = None  # (B, N), written from there

    def of(self, rows: Tensor) -> Measured:
        """On the CPU, for these rows."""
        text = None if self.text is None else self.text[rows].cpu()
        return Measured(self.times, {name: x[rows].cpu() for name, x in self.logits.items()}, text)


def contenders_of(names: Iterable[str], weights: Sequence[str], dtype: str) -> list[Contender]:
    """Ours once for each kind of weights; peers in dtype."""
    found = []
    for name in names:
        if name in PEERS:
            provider, devices = PEERS[name]
            found.append(Contender(name, provider, name, devices, dtype))
            continue
        for kind in weights:
            rounded = f" {kind}" if kind in ROUNDED else ""
            devices = GPU if name == COMMON else EVERYWHERE
            found.append(Contender(f"{name}{rounded}", XLSTM_HIP, f"ours{rounded}", devices, kind, name == COMMON))
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """Also where it has come through a C call as text."""
    return isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY in str(error).lower()


# ---- the command line


def shape(text: str) -> str:
    try:
        config_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def config_of(text: str) -> xLSTMLargeConfig | None:
    """None: the demo model, whose checkpoint is here."""
    if text == "demo":
        return None
    numbers = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if text not in SIZES and numbers is None:
        names = ", ".join(("demo", *SIZES))
        raise ValueError(f"expected one of {names} or FEATURESxBLOCKSxHEADS such as 2048x24x8, got {text!r}")
    if numbers is None:
        return xLSTMLargeConfig(**SIZES[text])
    features, blocks, heads = map(int, numbers.groups())
    like = SIZES["7b"]
    return xLSTMLargeConfig(**like | {"embedding_dim": features, "num_blocks": blocks, "num_heads": heads})


def add_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    parser.add_argument(
        "--shape", type=shape, help="demo, 4m, 7b or FEATURESxBLOCKSxHEADS (default: 7b; on a CPU demo)"
    )
    parser.add_argument(
        "--dtypes", choices=WEIGHTS, nargs="+", help="of ours (default: bf16, on a CPU fp32; int8, int4)"
    )
    parser.add_argument("--contenders", choices=names, nargs="+", default=list(names), help="(default: all)")
    parser.add_argument("--batches", type=at_least(1), nargs="+", metavar="N", help="sequences at once")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="contenders that this run leaves out stay as they are in the file, with their date",
    )
    add_time_options(parser, "point of a contender", 1, ", less a fifth for the checks")
    parser.add_argument("--folder", type=Path, help="where a checkpoint of random weights goes for the time being")


def settle(args: argparse.Namespace) -> None:
    on_cpu = torch.device(args.device).type == "cpu"
    args.shape = args.shape or ("demo" if on_cpu else "7b")
    args.dtypes = list(dict.fromkeys(args.dtypes or ["fp32" if on_cpu else "bf16", *ROUNDED]))
    floats = [kind for kind in args.dtypes if kind in DTYPES]
    if len(floats) > 1:
        raise ValueError(f"--dtypes: expected at most one of {', '.join(DTYPES)}, got {' '.join(floats)}")
    args.dtype = floats[0] if floats else "fp32" if on_cpu else "bf16"
    if args.folder is not None and not args.folder.is_dir():
        raise ValueError(f"--folder: expected a folder, got {str(args.folder)!r}")


# ---- the grid


class Grid:
    """Points and contenders of a run. A contender's model is there from its first point to its last."""

    def __init__(
        self,
        session: Session,
        points: Sequence[Point],
        measure: Callable[[Reader, Tensor, Advance], Measured],
        floor_ms: Callable[[Grid, str, Point], float],
    ) -> None:
        args = session.args
        self.session, self.points, self.measure, self.floor_ms = session, points, measure, floor_ms
        self.device, self.dtype = session.machine.device, args.dtype
        self.contenders = contenders_of(args.contenders, args.dtypes, args.dtype)
        self.loaded: Contender | None = None
        self.reader: Reader | None = None
        self.broken: dict[str, str] = {}  # why a contender has no model
        self.too_large: dict[str, Point] = {}  # the point at which memory did not suffice
        self.kept: dict[tuple[str, Point], Measured] = {}  # of rows(), until they are checked

    def jobs(self) -> list[Job]:
        results = self.session.results
        results["points"] = [
            {"batch": p.batch, "length": p.length, "title": p.title, "contenders": []} for p in self.points
        ]
        results["model"] = {"name": self.session.args.shape}
        if self.session.args.keep:
            keep_others(self.session.args.out, results, [contender.name for contender in self.contenders])
        self.session.ends = time.monotonic() + POINTS_PART * self.session.args.seconds
        jobs = [Job("weights", self.begin, results.update)]
        for contender in self.contenders:
            for point, found in zip(self.points, results["points"], strict=True):
                jobs.append(
                    Job(
                        f"{contender.name}: {point.title}",
                        partial(self.enter, contender, point),
                        found["contenders"].append,
                        self.entry(contender) | {"missing": LATE},
                    )
                )
        rounded = dict.fromkeys(contender.bits for contender in self.contenders)
        for bits in rounded:
            kind = next(kind for kind in (self.dtype, *ROUNDED) if ROUNDED.get(kind, 0) == bits)
            jobs.append(Job(f"errors, {kind}", partial(self.check, bits), lambda _: None))
        return jobs

    def begin(self, advance: Advance) -> Results:
        args, machine = self.session.args, self.session.machine
        config, dtype = config_of(args.shape), DTYPES[self.dtype]
        if config is None:
            self.weights = Weights(DEMO, dtype, self.device)
            config = load_pretrained(DEMO, progress=False).config
        else:
            self.weights = random_weights(config, dtype, self.device, args.folder)
            machine.clean()
        self.config, quick = config, self.session.quick
        draw = torch.Generator().manual_seed(0)
        most = max(p.batch for p in self.points), max(p.length for p in self.points)
        self.tokens = torch.randint(3, config.vocab_size, most, generator=draw)
        self.rates = {
            "copy_bytes_per_second": copy_rate(machine, quick),
            "flops_per_second": matmul_rate(machine, self.dtype, quick),
        }
        for point, found in zip(self.points, self.session.results["points"], strict=True):
            found["floors_ms"] = {kind: self.floor_ms(self, kind, point) for kind in (self.dtype, *ROUNDED)}
        return {
            "model": {
                "name": args.shape,
                "features": config.embedding_dim,
                "blocks": config.num_blocks,
                "heads": config.num_heads,
                "weights": weights_in(config) + config.vocab_size * config.embedding_dim,
                "state_bytes": state_bytes(config),
            },
            "ceilings": self.rates,
        }

    def weights_ms(self, kind: str, batch: int) -> float:
        """A copy's time for every weight once, and the states of the batch in and out."""
        weights = weight_bytes(self.dtype, ROUNDED.get(kind, 0)) * weights_in(self.config)
        return 1e3 * (weights + 2 * batch * state_bytes(self.config)) / self.rates["copy_bytes_per_second"]

    def products_ms(self, tokens: int) -> float:
        """The time of the weights' matrix products for so many tokens, at the rate of a large one."""
        return 1e3 * 2 * tokens * weights_in(self.config) / self.rates["flops_per_second"]

    def prompt(self, point: Point) -> Tensor:
        return self.tokens[: point.batch, : point.length]

    def entry(self, contender: Contender) -> Entry:
        return {"name": contender.name, "provider": contender.provider, "weights": contender.weights}

    def enter(self, contender: Contender, point: Point, advance: Advance) -> Entry:
        """The entry of a contender at a point: its times, or why it has none."""
        entry, machine = self.entry(contender), self.session.machine
        why = contender.missing(self.device) or self.broken.get(contender.name)
        full = self.too_large.get(contender.name)
        if why is None and full is not None and point.needs_no_less_than(full):
            why = f"{OUT_OF_MEMORY} at {full.title}"
        if why is not None:
            return entry | {"missing": why}
        try:
            with torch.no_grad(), common_schedule() if contender.common else nullcontext():
                measured = self.measure(self.load(contender), self.prompt(point).to(self.device), advance)
        except Exception as error:
            if is_out_of_memory(error):
                self.too_large[contender.name] = point
                found = entry | {"missing": OUT_OF_MEMORY}
            else:
                found = failure(machine, entry, error)
            if self.loaded is not contender:
                self.broken[contender.name] = found.get("missing") or found["failed"]
            return found
        self.kept[contender.name, point] = measured.of(self.rows(point))
        return entry | measured.times

    def load(self, contender: Contender) -> Reader:
        if self.loaded is not contender:
            self.unload()
            self.reader = MAKERS[contender.maker](self.weights)
            self.loaded = contender
        assert self.reader is not None
        return self.reader

    def unload(self) -> None:
        if self.loaded is not None:
            self.loaded = self.reader = None
            torch.compiler.reset()  # compiled code holds weights
        self.session.machine.clean_all()

    # ---- results are held to the plain kernels

    def rows(self, point: Point) -> Tensor:
        """The sequences of a batch that are checked, from the last to the first; of long ones fewer."""
        count = min(CHECKED_ROWS, point.batch, max(1, CHECKED_PROMPT // point.length))
        return torch.linspace(point.batch - 1, 0, count).round().long()

    @torch.no_grad()
    def check(self, bits: int, advance: Advance) -> None:
        """Gives the entries of contenders with weights of so many bits their errors. A wrong one of ours has no times
        then: it has failed."""
        names = [x.name for x in self.contenders if x.bits == bits and any(name == x.name for name, _ in self.kept)]
        self.unload()
        if not names:
            return
        model, limit = plain_model(self.weights, bits), MODEL_EXACT[self.dtype]
        for point, place in zip(self.points, self.session.results["points"], strict=True):
            timed = [e for e in place["contenders"] if e["name"] in names and (e["name"], point) in self.kept]
            if not timed:
                continue
            true = after(model, {"tokens": self.prompt(point)[self.rows(point)].to(self.device)})
            for entry in timed:
                measured = self.kept[entry["name"], point]
                text = None if measured.text is None else measured.text[:, :CHECKED_TOKENS].to(self.device)
                errors: dict[str, float] = {}
                for name, logits in measured.logits.items():
                    found = errors_of(model, true, logits.to(self.device), text)
                    errors |= {name: found.pop("logits")} | found
                entry |= {"errors": errors, "limit": limit}
                wrong = [name for name, error in errors.items() if not error <= limit]
                if wrong and entry["provider"] == XLSTM_HIP:
                    entry.pop("ms")
                    entry["failed"] = f"wrong: {', '.join(wrong)}"
            advance(1 / len(self.points))


def keep_others(file: Path, results: Results, names: Sequence[str]) -> None:
    """Puts the entries of an earlier run's file into the results, but for contenders of these names."""
    try:
        before = read(file, results["benchmark"])
    except ValueError as error:
        raise SystemExit(f"--keep: {error}") from error
    facts = {
        "GPU": lambda r: r["environment"]["gpu"] and r["environment"]["gpu"]["name"],
        "model": lambda r: r["model"]["name"],
        "settings": lambda r: r["settings"],
        "points": lambda r: [point["title"] for point in r["points"]],
    }
    for what, fact in facts.items():
        if fact(before) != fact(results):
            raise SystemExit(f"--keep: expected a file with {what} {fact(results)}, got {fact(before)} in {file}")
    date = before["environment"]["date"]
    for place, earlier in zip(results["points"], before["points"], strict=True):
        place["contenders"] += [{"date": date} | e for e in earlier["contenders"] if e["name"] not in names]


def failures(results: Results) -> list[str]:
    """Of ours."""
    return [
        f"{point['title']}: {entry['name']}: {entry['failed']}"
        for point in results["points"]
        for entry in point["contenders"]
        if "failed" in entry
    ]


def times_of(session: Session, calls: Mapping[str, Callable[[], Any]], advance: Advance) -> dict[str, dict[str, Any]]:
    """The times of one contender's calls, in turns."""
    samples = interleaved(calls, session.pace, advance, session.machine.seconds)
    return {name: sample.as_json() for name, sample in samples.items()}


def first_call(session: Session, call: Callable[[], Any]) -> tuple[Any, int | None]:
    """What a call gives that is not timed, since it compiles and captures; and the memory that it adds, where known."""
    results: list[Any] = []
    peak = session.machine.peak_bytes(lambda: results.append(call()))
    if not results:
        results.append(call())
    return results[0], peak
