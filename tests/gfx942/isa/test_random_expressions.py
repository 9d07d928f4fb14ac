# SPDX-License-Identifier: Apache-2.0
"""A few of random_expressions.py, which runs more of them by itself."""

from __future__ import annotations

from types import ModuleType

import pytest

from random_expressions import differences

SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_same_bits(device: ModuleType, seed: int) -> None:
    wrong = list(differences(device, seed))
    assert not wrong, "\n".join(wrong)
