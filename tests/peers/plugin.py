# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin to run another project's tests here: a sample of their parameters, the differences that are
expected, and the counts at the end. run.py loads it into a process for each suite.

A difference is a strict xfail: a test that fails with another message fails, and one that passes fails, too, since the
list is then out of date. Where a suite runs a test with and without xlstm_hip, one that fails without it may fail.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expected_differences import DIFFERENCES, Difference

SEED = 20261126
DIFFERENCE = pytest.StashKey[Difference]()
_seen: set[Difference] = set()
_failed_without: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", required=True, help="the name in run.py")
    parser.addoption("--sample", type=int, help="so many choices of each test's parameters, instead of all")
    parser.addoption("--cost", type=float, default=math.inf, help="of no more multiplications than these")
    parser.addoption("--counts", type=Path, required=True, help="JSON of what ran")


def cost(choice: dict[str, Any]) -> float:
    """The multiplications of one head of attention, from the parameters' names."""
    length = choice.get("seqlen", 1)
    return choice.get("seqlen_q", length) * choice.get("seqlen_k", length) * choice.get("d", 1)


def choices(marks: list[pytest.Mark], count: int, limit: float, seed: str) -> tuple[list[str], list[tuple]]:
    """Names of parameters, and rows of values: every value of every parameter has the same chance."""
    axes = [([name.strip() for name in mark.args[0].split(",")], list(mark.args[1])) for mark in marks]
    names = [name for axis, _ in axes for name in axis]
    total = math.prod(len(values) for _, values in axes)
    rng = random.Random(seed)
    rows: dict[tuple, None] = {}
    for number in rng.sample(range(total), min(total, 100 * count)):
        row: list[Any] = []
        for axis, values in axes:
            number, index = divmod(number, len(values))
            row += [values[index]] if len(axis) == 1 else values[index]
        if cost(dict(zip(names, row, strict=True))) <= limit:
            rows[tuple(row)] = None
        if len(rows) == count:
            break
    return names, list(rows)


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    sample = collector.config.getoption("sample")
    marks = [mark for mark in getattr(obj, "pytestmark", []) if mark.name == "parametrize"]
    if sample and marks and name.startswith("test_"):
        names, rows = choices(marks, sample, collector.config.getoption("cost"), f"{SEED} {name}")
        other_marks = [mark for mark in obj.pytestmark if mark.name != "parametrize"]  # type: ignore[attr-defined]
        obj.pytestmark = [*other_marks, pytest.mark.parametrize(names, rows).mark]  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for difference in DIFFERENCES[config.getoption("suite")]:
            if re.search(difference.tests, item.nodeid):
                item.stash[DIFFERENCE] = difference
                item.add_marker(pytest.mark.xfail(strict=True, reason=difference.reason))
                _seen.add(difference)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    difference = item.stash.get(DIFFERENCE, None)
    another = difference and not re.search(difference.message, str(call.excinfo and call.excinfo.value))
    if another and hasattr(report, "wasxfail") and report.skipped:
        report.outcome = "failed"
        del report.wasxfail
    accelerated = getattr(getattr(item, "cls", None), "accelerated", None)
    if accelerated is not None and report.failed and (not accelerated or item.name in _failed_without):
        _failed_without.add(item.name)
        report.outcome = "skipped"
        report.wasxfail = "fails without xlstm_hip"
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    kinds = {"passed": "passed", "failures": "failed", "errors": "error", "skipped": "skipped"}
    counts = {name: len(terminalreporter.stats.get(kind, [])) for name, kind in kinds.items()}
    reasons = Counter(str(report.wasxfail) for report in terminalreporter.stats.get("xfailed", []))
    unseen = [d.reason for d in DIFFERENCES[config.getoption("suite")] if d not in _seen]
    everything = {**counts, "expected": dict(reasons), "not met": unseen}
    config.getoption("counts").write_text(json.dumps(everything, indent=1), encoding="utf-8")
