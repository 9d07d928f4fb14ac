# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: which rows of the tables run, the session's accuracy report, torch's settings put back after
each test, no network."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from support.representative import LEVELS

if TYPE_CHECKING:
    from support.report import Report

os.environ["HF_HUB_OFFLINE"] = "1"
atexit.register(gc.unfreeze)  # after _garbage_of_new_objects: what is left at the end would be called a leak

_REPORT: pytest.StashKey[Report] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", choices=LEVELS, help="which rows of the tables run (tests/support/representative.py)")
    parser.addoption("--only-slow", action="store_true", help="of the level ci what no level before it has")


def _level(config: pytest.Config) -> str:
    """What was asked for; a test that is named with :: runs whichever row it is of."""
    level = config.getoption("rows")
    return level or ("everything" if any("::" in argument for argument in config.args) else "representative")


@pytest.fixture(scope="session")
def level(pytestconfig: pytest.Config) -> str:
    """For tests that are a table in one: up to which level its rows run."""
    return _level(pytestconfig)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    highest, only_slow = LEVELS.index(_level(config)), config.getoption("only_slow")

    def runs(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("rows")
        if only_slow:
            return mark is not None and mark.args[0] == "ci"
        return mark is None or LEVELS.index(mark.args[0]) <= highest

    left_out = [item for item in items if not runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if runs(item)]


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    from support.report import Report

    return pytestconfig.stash.setdefault(_REPORT, Report())


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_new_objects() -> None:
    """Collecting garbage takes half a second where torch and transformers are looked through each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash.get(_REPORT, None)
    if report is None or not report.rows:
        return
    terminalreporter.section("accuracy")
    for line in report.write_summary():
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"written to {report.folder}")
