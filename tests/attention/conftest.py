# SPDX-License-Identifier: Apache-2.0
"""Lets the tests here import what stands beside them, and gives every one memory that is NaN."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from poison import poisoned  # noqa: E402


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned():
        yield
