# SPDX-License-Identifier: Apache-2.0
"""The choice of a table's rows that run: four levels, each with all rows of the one before.

quick            every value of every axis is in some row
representative   any two values of any two axes meet in some row: what runs by default
ci               the slow ones of these too, and slow tests that have the mark rows("ci"): scripts/test's stage slow
everything       all rows

An axis is something that rows differ in: the kernel, the dtype, the case. If some pairs of axes decide nothing, a table
names the pairs that count. The choice is greedy and depends on nothing but the rows and their order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

LEVELS = ("quick", "representative", "ci", "everything")
Row = TypeVar("Row")
Axes = Callable[[Any], Mapping[str, Hashable]]
Goal = tuple[tuple[str, Hashable], ...]  # a value of an axis, or a value of each of two


def _cover(goals: Sequence[set[Goal]], chosen: Iterable[int]) -> set[int]:
    """Rows that together meet every goal: those chosen before, then always the first of those that meet most more."""
    found = set(chosen)
    missing = set().union(*goals).difference(*(goals[n] for n in found))
    waiting = [(-len(goal), n) for n, goal in enumerate(goals)]
    heapq.heapify(waiting)
    while missing:
        _, n = heapq.heappop(waiting)
        entry = (-len(goals[n] & missing), n)
        if waiting and entry > waiting[0]:  # a row meets fewer goals as others are chosen: look at it again later
            heapq.heappush(waiting, entry)
            continue
        found.add(n)
        missing -= goals[n]
    return found


def levels(
    rows: Sequence[Any],
    axes: Axes,
    pairs_of: Collection[str] | None = None,
    slow: Callable[[Any], bool] = lambda row: False,
    late: Callable[[Any], bool] = lambda row: False,
) -> list[str]:
    """The level from which on each row runs. pairs_of: the axes whose pairs count, otherwise all of them. slow: rows
    that are never quick. late: rows that run from ci on at the earliest."""
    values: list[set[Goal]] = []
    pairs: list[set[Goal]] = []
    for row in rows:
        named = tuple(axes(row).items())
        values.append({(item,) for item in named})
        counting = [item for item in named if pairs_of is None or item[0] in pairs_of]
        pairs.append(set(itertools.combinations(counting, 2)))
    quick = _cover([set() if slow(row) else value for row, value in zip(rows, values, strict=True)], ())
    usual = _cover([value | pair for value, pair in zip(values, pairs, strict=True)], quick)

    def level(n: int) -> str:
        if n in usual and late(rows[n]):
            return "ci"
        return "quick" if n in quick else "representative" if n in usual else "everything"

    return [level(n) for n in range(len(rows))]


def up_to(level: str, rows: Sequence[Row], axes: Axes, pairs_of: Collection[str] | None = None) -> list[Row]:
    """The rows that run at a level, in their order."""
    found = zip(rows, levels(rows, axes, pairs_of), strict=True)
    return [row for row, row_level in found if LEVELS.index(row_level) <= LEVELS.index(level)]


def marked(
    rows: Sequence[tuple[Any, ...]],
    axes: Axes,
    ids: Callable[[Any], str],
    pairs_of: Collection[str] | None = None,
    slow: Callable[[Any], bool] = lambda row: False,
    late: Callable[[Any], bool] = lambda row: False,
) -> list[Any]:
    """The rows as parameters of a test, with the mark by which conftest.py leaves out those above the run's level."""
    found = zip(rows, levels(rows, axes, pairs_of, slow, late), strict=True)
    return [pytest.param(*row, id=ids(row), marks=pytest.mark.rows(row_level)) for row, row_level in found]
