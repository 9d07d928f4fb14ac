# SPDX-License-Identifier: Apache-2.0
"""Every test of attention gets memory that is NaN until it is written."""

from collections.abc import Iterator

import pytest

from support.poison import poisoned


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned():
        yield
