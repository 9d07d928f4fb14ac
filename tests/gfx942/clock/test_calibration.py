# SPDX-License-Identifier: Apache-2.0
"""The clock against measured times: all points are there, and those of the kernel that was held out hold."""

from __future__ import annotations

import json
from statistics import median
from types import ModuleType


def test_calibration_is_of_every_measured_point(device: ModuleType) -> None:
    import calibrate

    measured = [(p.kernel, p.rounding, p.batch, p.heads, p.length, p.measured) for p in calibrate.points()]
    found = calibrate.results()
    assert [(p.kernel, p.rounding, p.batch, p.heads, p.length, p.measured) for p in found] == measured
    content = json.loads(calibrate.MEASURED.read_text())
    assert {content["calibration"], content["held out"]} == {kernel for kernel, *_ in measured}
    held_out = [abs(p.error) for p in found if p.kernel == content["held out"]]
    # Bounds that were set before the points were predicted.
    assert median(held_out) <= 0.15 and max(held_out) <= 0.30


def test_shares_of_rounds(device: ModuleType) -> None:
    """AITER's last round takes as long as a full one, moonmath's what its share of workgroups is."""
    import calibrate
    import timing

    chip = timing.constants()
    mfma = dict.fromkeys(("unit_cycles", "instructions", "wave_cycles", "unit_matrix_cycles", "unit_vector_cycles"), 1)
    launch = timing.Launch(
        **mfma, kernel="", microseconds=0, grid=(1, 1, 1), block=(1, 1, 1), mhz=0, error=0, workgroups=456, sampled=8,
        resident=1, room=1, busy_cus=304, group_cycles=1e6, alone=1, matrix_busy=0.5, near_overlap=0, far_overlap=0,
        first_of_xcd=1, first_of_chip=1, warm=0, lines={}, unit_lds_cycles=1, spent={}, stalls=(), trace=(),
    )  # fmt: skip
    whole = calibrate.Point("aiter", "rtz", 1, 1, calibrate.LONGEST, 1)
    split = calibrate.Point("moonmath", "rtz", 1, 1, 2 * calibrate.LONGEST, 1)
    time, mhz = calibrate.of_all_keys(whole, launch, chip)
    assert abs(time - 2e6 / mhz / 1000) < 1e-9
    time, mhz = calibrate.of_all_keys(split, launch, chip)
    assert abs(time - 2 * 1.5e6 / mhz / 1000) < 1e-9
