# SPDX-License-Identifier: Apache-2.0
"""What others measured on an MI300X (measured.json), and what the clock predicts of it (calibration.json)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
MEASURED, RESULTS = HERE / "measured.json", HERE / "calibration.json"
HEAD_DIM = 128
Shape = tuple[Any, ...]


@dataclass(frozen=True)
class Point:
    family: str
    shape: Shape  # by the family's columns
    measured: float  # ms
    predicted: float = 0.0
    mhz: float = 0.0

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    def with_prediction(self, milliseconds: float, mhz: float) -> Point:
        return replace(self, predicted=round(milliseconds, 4), mhz=round(mhz))


@dataclass(frozen=True)
class Family:
    """A kernel, or some kernels of one kind, measured by one source."""

    name: str
    role: str  # calibration or held out, as it was decided before the first prediction
    bound: str  # compute or memory
    source: str
    what: str
    columns: tuple[str, ...]
    unit: str  # of the measured values: ms, TFLOP/s or GB/s
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Errors:
    """Of a family's predicted times."""

    least: float
    most: float
    median: float  # of their sizes
    largest: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> Errors:
        errors = [p.error for p in points]
        sizes = [abs(e) for e in errors]
        return cls(min(errors), max(errors), median(sizes), max(sizes))


@dataclass(frozen=True)
class Goal:
    """For families that are held out, set before the first prediction."""

    median: float
    largest: float

    def holds(self, errors: Errors) -> bool:
        return errors.median <= self.median and errors.largest <= self.largest


# ---- where a source gives rates: of how much work


def attention_flops(products: int) -> Callable[[dict[str, Any]], float]:
    def flops(at: dict[str, Any]) -> float:
        whole = 2 * products * at["batch"] * at["heads"] * at["length"] ** 2 * HEAD_DIM
        return whole / 2 if at["causal"] else whole

    return flops


def stream_bytes(at: dict[str, Any]) -> float:
    arrays = {"copy": 2, "mul": 2, "dot": 2, "add": 3, "triad": 3}
    return arrays[at["kernel"]] * 8 * at["elements"]


WORK: dict[str, Callable[[dict[str, Any]], float]] = {
    "forward": attention_flops(2),
    "backward": attention_flops(5),
    "stream": stream_bytes,
}
A_MILLISECOND = {"TFLOP/s": 1e9, "GB/s": 1e6}


def _milliseconds(family: dict[str, Any], shape: Shape, value: float | list[float]) -> float:
    """Several values are of several machines."""
    value = median(value) if isinstance(value, list) else value
    if family["unit"] == "ms":
        return value
    at = dict(zip(family["columns"], shape, strict=True))
    return WORK[family["work"]](at) / (value * A_MILLISECOND[family["unit"]])


# ---- the files


def _content() -> dict[str, Any]:
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def sources() -> dict[str, dict[str, str]]:
    return _content()["sources"]


def goals() -> dict[str, Goal]:
    return {bound: Goal(**x) for bound, x in _content()["goals"].items()}


def families() -> list[Family]:
    found = []
    for name, x in _content()["families"].items():
        points = tuple(Point(name, tuple(row[:-1]), _milliseconds(x, tuple(row[:-1]), row[-1])) for row in x["points"])
        columns = tuple(x["columns"])
        found.append(Family(name, x["role"], x["bound"], x["source"], x["what"], columns, x["unit"], points))
    return found


def predicted() -> list[Family]:
    """The families with what was predicted of their points."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    by_point = {(x["family"], tuple(x["shape"])): (x["predicted"], x["mhz"]) for x in rows}
    return [
        replace(f, points=tuple(p.with_prediction(*by_point[p.family, p.shape]) for p in f.points)) for f in families()
    ]


def write(points: Sequence[Point]) -> None:
    """Into calibration.json, where those of other points stay."""
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    known = {(x["family"], tuple(x["shape"])): x for x in before}
    for p in points:
        row = {"family": p.family, "shape": list(p.shape), "predicted": p.predicted, "mhz": p.mhz}
        known[p.family, p.shape] = row
    order = [(p.family, p.shape) for f in families() for p in f.points]
    rows = ",\n".join(json.dumps(known[key]) for key in order if key in known)
    RESULTS.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
