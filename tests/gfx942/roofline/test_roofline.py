# SPDX-License-Identifier: Apache-2.0
"""The package's kernels as the roofline has them: no spills, half of MFMA peak within reach or a reason, what the
issues ask for; and docs/amd_roofline.* as they would be written from their figures."""

from __future__ import annotations

from types import ModuleType

import pytest

AGAIN = "python tests/gfx942/roofline/rooflines.py --write makes it again"


@pytest.fixture(scope="module")
def rows(package: ModuleType, device: ModuleType) -> list:
    import roofline_shapes
    import rooflines

    found = rooflines.rows_of(lambda: roofline_shapes.mlstm(1, 2048))
    device.reset_counters()
    return found


def test_half_of_the_matrix_peak_or_a_reason(rows: list) -> None:
    import rooflines

    below = [r for r in rows if r.matrix and r.overlapped < rooflines.LEAST_SHARE and not rooflines.note_of(r)]
    assert not below, [(r.kernel, round(r.overlapped, 2), r.binds) for r in below]


# The share of LDS cycles that banks may take, a little above what they do; tests/cpp/test_lds_conflicts.cpp says that
# operands, outputs and what is turned do not meet. What does: numbers of columns, which walks of 512 rows read two at a
# time (3.2 %), and accumulators of scores, whose rows of a chunk and one float suit those that read them (2.2 %).
MOST_LOST_TO_BANKS = {
    **{f"chunk_walk_cdna<bf16, 256, 32, {output}>": 0.0 for output in ("h", "dv")},
    **{f"chunk_walk_cdna<bf16, 512, 32, {output}>": 0.033 for output in ("dq", "dk")},
    **{f"segment_states_cdna<bf16, {rows}, 32>": 0.0 for rows in (256, 512)},
    "chunk_scores_cdna<bf16, 32, false>": 0.0,
    "chunk_scores_cdna<bf16, 32, true>": 0.0,
}


def test_walks_and_scores_lose_no_more_to_banks_than_is_known(rows: list) -> None:
    lost = {
        r.kernel: r.conflicts for r in rows if r.kernel.startswith(("chunk_walk", "segment_states", "chunk_scores"))
    }
    assert set(lost) == set(MOST_LOST_TO_BANKS)
    assert not {kernel: share for kernel, share in lost.items() if share > MOST_LOST_TO_BANKS[kernel]}


def test_no_kernel_spills(package: ModuleType, device: ModuleType) -> None:
    bad = [k.name for k in device.kernels() if "xlstm" in k.name and (k.vgpr_spills or k.scratch_bytes)]
    assert not bad


def test_what_the_issues_ask_of_attention(package: ModuleType, device: ModuleType) -> None:
    """At the page's shapes with fewer heads or sequences, of which one workgroup in many runs."""
    import rooflines
    from roofline_shapes import SHAPES, attention, mla

    less = {
        r"forward_kernel<.*": lambda: attention(8192, 5, 128, True),
        r"mla_cdna_kernel<.*": lambda: mla(16, 8192, 128),
    }
    with_aims = [shape for shape in SHAPES if shape.aim]
    assert {shape.aim.kernel for shape in with_aims} == set(less)
    for shape in with_aims:
        rows = rooflines.rows_of(less[shape.aim.kernel], 31)
        row = rooflines.aimed_at(shape, rows)
        assert row.overlapped >= shape.aim.share, (row.kernel, row.overlapped, row.binds)
        assert row.conflicts < 0.01, (row.kernel, row.conflicts)
    device.reset_counters()


def test_the_page_is_that_of_its_figures() -> None:
    import roofline
    import rooflines
    from roofline_shapes import SHAPES

    tables = roofline.read(rooflines.DATA)
    assert list(tables) == [shape.title for shape in SHAPES], f"other tables than roofline_shapes.py: {AGAIN}"
    assert rooflines.PAGE.read_text(encoding="utf-8") == rooflines.page(tables), AGAIN
    assert rooflines.PICTURE.stat().st_size > 10_000
    for shape in SHAPES:
        rows = tables[shape.title]
        assert rows
        assert not [
            row.kernel
            for row in rows
            if row.matrix and row.overlapped < rooflines.LEAST_SHARE and not rooflines.note_of(row)
        ]
        if shape.aim:
            assert rooflines.aimed_at(shape, rows).overlapped >= shape.aim.share
