# SPDX-License-Identifier: Apache-2.0
"""What docs/amd_time.json holds: calls of this package and of others (peer_calls.py), predicted, what their waves
execute, and by which code. Each figure is saved when it is made, and made again only where other code would make it."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import builds
import call_time
import timing
from call_time import Counts, KernelTime

if TYPE_CHECKING:
    from peer_calls import Comparison, Predict

DATA = builds.ROOT / "docs" / "amd_time.json"
OURS = "xlstm_hip"
QUICKEST_FIRST = (OURS, "AITER", "moonmath", "TFLA", "FLA")  # Triton compiles, which takes longer than all else


@dataclass(frozen=True)
class Side:
    """A call by one implementation. kernels: those of its fastest variant."""

    name: str
    made_of: str
    variants: dict[str, float]  # microseconds
    seconds: float  # that this machine needed, of the variant that took longest
    kernels: tuple[KernelTime, ...]

    @property
    def best(self) -> str:
        return min(self.variants, key=lambda name: self.variants[name])

    @property
    def microseconds(self) -> float:
        return self.variants[self.best]

    @property
    def counts(self) -> Counts:
        return call_time.all_counts(self.kernels)

    @classmethod
    def read(cls, x: dict[str, Any]) -> Side:
        return cls(**x | {"kernels": tuple(KernelTime.read(k) for k in x["kernels"])})


@dataclass(frozen=True)
class Row:
    title: str
    group: str
    flops: float
    moved: float
    by_bytes: bool
    sides: tuple[Side, ...]  # the first is this package's

    @classmethod
    def read(cls, x: dict[str, Any]) -> Row:
        return cls(**x | {"sides": tuple(Side.read(s) for s in x["sides"])})


@dataclass(frozen=True)
class TokenRow:
    title: str
    batch: int
    moved: float
    side: Side

    @classmethod
    def read(cls, x: dict[str, Any]) -> TokenRow:
        return cls(**x | {"side": Side.read(x["side"])})


@dataclass(frozen=True)
class Speed:
    """Of this machine's CPUs: a kernel whose workgroups run, and the same recorded and timed, a million wave
    instructions."""

    kernel: str
    run: float  # seconds, of all threads together
    predicted: float


@dataclass
class Figures:
    rows: dict[str, Row] = field(default_factory=dict)
    tokens: dict[str, TokenRow] = field(default_factory=dict)
    speed: list[Speed] = field(default_factory=list)

    @classmethod
    def read(cls) -> Figures:
        if not DATA.exists():
            return cls()
        x = json.loads(DATA.read_text(encoding="utf-8"))
        rows, tokens = [Row.read(r) for r in x["rows"]], [TokenRow.read(r) for r in x["tokens"]]
        by_title = {r.title: r for r in rows}, {r.title: r for r in tokens}
        return cls(*by_title, [Speed(**s) for s in x["speed"]])

    def write(self) -> None:
        content = {
            "rows": [asdict(r) for r in self.rows.values()],
            "tokens": [asdict(r) for r in self.tokens.values()],
            "speed": [asdict(s) for s in self.speed],
        }
        DATA.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# ---- the figures


def clock_code() -> str:
    """Of the model and its constants."""
    files = sorted(p for end in ("*.cpp", "*.h") for p in timing.HERE.glob(end))
    return _hash(*(p.read_bytes() for p in (*files, timing.CHIP)))


@functools.cache
def package_code() -> str:
    """Of the kernels and of what launches them. Libraries would not do: they name the commit."""
    sources = sorted(p for p in (builds.ROOT / "csrc").rglob("*") if p.is_file())
    return _hash(builds.compiler().version.encode(), *(p.read_bytes() for p in sources))


def _hash(*texts: bytes) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def side_of(name: str, variants: Mapping[str, Callable[[], list[KernelTime]]], code: str) -> Side:
    found: dict[str, list[KernelTime]] = {}
    seconds = 0.0
    for variant, predict in variants.items():
        begun = time.perf_counter()
        found[variant] = predict()
        seconds = max(seconds, time.perf_counter() - begun)
        print(f"  {name} {variant}: {call_time.total(found[variant]):.1f} us, in {seconds:.0f} s", flush=True)
    times = {variant: round(call_time.total(kernels), 2) for variant, kernels in found.items()}
    best = min(times, key=lambda variant: times[variant])
    return Side(name, made_of(code), times, round(seconds, 1), tuple(found[best]))


def made_of(code: str) -> str:
    return f"{clock_code()} {code}"


def make(figures: Figures, wanted: str) -> None:
    """What is missing or was made by other code; or what has the wanted text in its title, in any case."""
    make_rows(figures, wanted)
    make_tokens(figures, wanted)
    if not wanted:
        make_speed(figures)


def make_rows(figures: Figures, wanted: str) -> None:
    import peer_calls

    comparisons = peer_calls.comparisons()
    for name in QUICKEST_FIRST:
        for c in comparisons:
            variants, code = implementations(c).get(name, ({}, ""))
            row = figures.rows.get(c.title)
            kept = {s.name: s for s in row.sides} if row else {}
            if variants and again(c.title, wanted, kept.get(name), code):
                print(c.title, flush=True)
                kept[name] = side_of(name, variants, code)
                sides = tuple(kept[n] for n in QUICKEST_FIRST if n in kept)
                figures.rows[c.title] = Row(c.title, c.group, c.flops, c.moved, c.by_bytes, sides)
                figures.write()
    figures.rows = {c.title: figures.rows[c.title] for c in comparisons if c.title in figures.rows}
    figures.write()


def implementations(c: Comparison) -> dict[str, tuple[dict[str, Predict], str]]:
    """The variants of each, and what their code is."""
    return {OURS: ({"": c.ours}, package_code())} | {p.name: (p.variants, p.code) for p in c.peers}


def make_tokens(figures: Figures, wanted: str) -> None:
    import peer_calls

    for t in peer_calls.TOKENS:
        before = figures.tokens.get(t.title)
        if again(t.title, wanted, before.side if before else None, package_code()):
            print(t.title, flush=True)
            side = side_of(OURS, {"": t.predict}, package_code())
            figures.tokens[t.title] = TokenRow(t.title, t.batch, t.moved, side)
            figures.write()
    figures.tokens = {t.title: figures.tokens[t.title] for t in peer_calls.TOKENS if t.title in figures.tokens}
    figures.write()


def again(title: str, wanted: str, before: Side | None, code: str) -> bool:
    """Whether it is to be predicted: what is asked for by its title, or what was made of other code."""
    if wanted:
        return wanted in title
    return before is None or before.made_of != made_of(code)


def make_speed(figures: Figures) -> None:
    """Of kernels that matrix units bind and that memory binds."""
    import peer_calls

    figures.speed = [speed_of(call) for call in peer_calls.speed_calls()]
    figures.write()


def speed_of(call: Callable[[], object]) -> Speed:
    import device

    def seconds_of(run: Callable[[], object]) -> float:
        """A million wave instructions."""
        device.reset_counters()
        begun = time.process_time()
        run()
        seconds = time.process_time() - begun
        return 1e6 * seconds / sum(i.executed for c in device.counters() for i in c.instructions)

    device.set_sample(SPEED_SAMPLE)
    try:
        plain = min(seconds_of(call) for _ in range(SPEED_ROUNDS))
        (counted,) = device.counters()
    finally:
        device.set_sample(1)
    instructions = sum(i.executed for i in counted.instructions)
    timed = min(seconds_of(lambda: timing.predict(call, instructions)) for _ in range(SPEED_ROUNDS))
    from rooflines import demangled

    (kernel,) = demangled([counted.kernel.name])
    return Speed(kernel, round(plain, 4), round(timed, 4))


SPEED_SAMPLE = 16  # one workgroup in so many runs
SPEED_ROUNDS = 3  # of which the quickest counts
