# SPDX-License-Identifier: Apache-2.0
"""The package's kernels as the roofline has them: no spills, and half of MFMA peak within reach or a reason."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def rows(package: ModuleType, device: ModuleType) -> list:
    import rooflines

    found = rooflines.rows_of(lambda: rooflines.forward_and_backward(1, 2048))
    device.reset_counters()
    return found


def test_half_of_the_matrix_peak_or_a_reason(rows: list) -> None:
    import rooflines

    below = [r for r in rows if r.matrix and r.overlapped < rooflines.LEAST_SHARE and not rooflines.note_of(r)]
    assert not below, [(r.kernel, round(r.overlapped, 2), r.binds) for r in below]


def test_the_walks_lose_nothing_to_banks(rows: list) -> None:
    """Operands, outputs and what is turned lie where tests/cpp says they do not meet; single floats may."""
    walks = [r for r in rows if r.kernel.startswith("walk<")]
    assert len(walks) == 2
    assert all(r.conflicts < 0.05 for r in walks), [(r.kernel, r.conflicts) for r in walks]


def test_no_kernel_spills(package: ModuleType, device: ModuleType) -> None:
    bad = [k.name for k in device.kernels() if "xlstm" in k.name and (k.vgpr_spills or k.scratch_bytes)]
    assert not bad
