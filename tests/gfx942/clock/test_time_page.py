# SPDX-License-Identifier: Apache-2.0
"""docs/amd_time_kernels.md is what its figures and constants say, of the kernels that there are."""

from __future__ import annotations

from types import ModuleType

AGAIN = "python tests/gfx942/clock/time_page.py --write makes it again"


def test_the_page_is_that_of_its_figures(package: ModuleType) -> None:
    import time_page
    from roofline_shapes import SHAPES

    tables = time_page.read()
    assert list(tables) == [shape.title for shape in SHAPES], f"other tables than roofline_shapes.py: {AGAIN}"
    assert time_page.PAGE.read_text(encoding="utf-8") == time_page.page(tables), AGAIN


def kernels_that_there_are(device: ModuleType) -> set[str]:
    import rooflines

    return set(rooflines.demangled([k.name for k in device.kernels() if k.instructions_in_code > 1]))


def test_the_page_is_of_the_kernels_that_there_are(package: ModuleType, device: ModuleType) -> None:
    import time_page

    gone = {row.kernel for rows in time_page.read().values() for row in rows} - kernels_that_there_are(device)
    assert not gone, f"{sorted(gone)}: {AGAIN}"


def test_no_time_is_below_its_bound(package: ModuleType, device: ModuleType) -> None:
    """docs/amd_roofline.json has, of the same calls, what each unit needs alone if work spreads evenly."""
    import roofline
    import rooflines
    import time_page

    bounds = roofline.read(rooflines.DATA)
    below = []
    for title, rows in time_page.read().items():
        bound = {row.kernel: max(row.units().values()) for row in bounds[title]}
        below += [(title, row) for row in rows if row.microseconds < 0.98 * bound[row.kernel] * (1 - 2 * row.error)]
    assert not below
