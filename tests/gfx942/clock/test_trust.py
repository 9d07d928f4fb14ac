# SPDX-License-Identifier: Apache-2.0
"""What docs/amd_time.md says of its errors follows from the measured points."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from types import ModuleType

import pytest


@dataclass(frozen=True)
class Row:
    matrix_busy: float
    binds: str
    error: float = 0.0


@pytest.fixture
def largest(device: ModuleType) -> dict[str, float]:
    """The largest error of what is held out, by bound."""
    import measured

    found = {"compute": 0.0, "memory": 0.0}
    for f in measured.predicted():
        if f.role == "held out":
            found[f.bound] = max(found[f.bound], *(abs(p.error) for p in f.points))
    return found


def test_error_bars_are_those_of_kernels_with_the_same_bound(device: ModuleType, largest: dict[str, float]) -> None:
    import trust

    assert trust.error_bar(Row(0.5, "memory")) == f"+-{largest['compute']:.0%}"
    assert trust.error_bar(Row(0.1, "memory")) == f"+-{largest['memory']:.0%}"
    assert trust.error_bar(Row(0.1, "memory", 0.2)) == f"+-{hypot(largest['memory'], 0.4):.0%}"
    assert trust.error_bar(Row(0.1, "barriers")) == "unknown"


def test_the_table_has_every_family_and_says_which_is_outside(device: ModuleType) -> None:
    import measured
    import trust

    _, _, *rows = trust.errors().splitlines()
    assert len(rows) == len(measured.families())
    for f, row in zip(measured.predicted(), rows, strict=True):
        e = measured.Errors.of(f.points)
        goal = measured.goals()[f.bound]
        kept = f.role == "calibration" or (e.median <= goal.median and e.largest <= goal.largest)
        assert row.startswith(f"| {f.name} | {f.bound} | {f.role} | {len(f.points)} |")
        assert ("outside its goal" in row) is not kept
