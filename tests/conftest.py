# SPDX-License-Identifier: Apache-2.0
"""What every test shares: the session's accuracy report, torch's settings put back after each test, no network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from support.report import Report

os.environ["HF_HUB_OFFLINE"] = "1"

_REPORT: pytest.StashKey[Report] = pytest.StashKey()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    from support.report import Report

    return pytestconfig.stash.setdefault(_REPORT, Report())


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
