# SPDX-License-Identifier: Apache-2.0
"""The clock against measured times: every point is predicted, and what is held out keeps the goals that were set before
it was predicted, but for the families that are named here."""

from __future__ import annotations

from types import ModuleType

import pytest

# Held out and outside their goals: median and largest error in percent. docs/amd_time.md says why.
OUTSIDE = {
    "AITER, causal forward, its table": (14, 33),
    "AITER, backward, its table": (18, 35),
}


def test_every_measured_point_is_predicted(device: ModuleType) -> None:
    import json

    import measured

    rows = [(x["family"], tuple(x["shape"])) for x in json.loads(measured.RESULTS.read_text())]
    assert rows == [(p.family, p.shape) for f in measured.families() for p in f.points]


def test_families_say_what_they_are(device: ModuleType) -> None:
    import measured

    sources, goals = measured.sources(), measured.goals()
    assert all(x["url"].startswith("https://") and x["title"] for x in sources.values())
    for f in measured.families():
        assert f.role in ("calibration", "held out") and f.bound in goals and f.source in sources and f.what, f.name
        assert all(len(p.shape) == len(f.columns) and p.measured > 0 for p in f.points), f.name
    roles = {(f.role, f.bound) for f in measured.families()}
    assert roles == {(role, bound) for role in ("calibration", "held out") for bound in goals}


def test_what_is_held_out_keeps_its_goal(device: ModuleType) -> None:
    import measured

    goals = measured.goals()
    outside = {}
    for f in measured.predicted():
        errors = measured.Errors.of(f.points)
        if f.role == "held out" and not goals[f.bound].holds(errors):
            outside[f.name] = round(100 * errors.median), round(100 * errors.largest)
    assert outside == OUTSIDE


def test_rates_become_times() -> None:
    """As the sources print them: of (1, 64, 16384) both ways, and of three arrays."""
    import measured

    at = {"batch": 1, "heads": 64, "length": 16384, "causal": False}
    flops = 4 * 64 * 16384**2 * 128
    assert measured.WORK["forward"](at) == flops
    assert measured.WORK["backward"](at) == 2.5 * flops
    assert measured.WORK["forward"](at | {"causal": True}) == flops / 2
    family = {"unit": "TFLOP/s", "work": "forward", "columns": list(at)}
    assert measured._milliseconds(family, tuple(at.values()), 500.0) == pytest.approx(flops / 500e12 * 1e3)
    family = {"unit": "GB/s", "work": "stream", "columns": ["kernel", "elements"]}
    assert measured._milliseconds(family, ("add", 10**9), [4000.0, 1.0, 8000.0]) == pytest.approx(6.0)
    assert measured._milliseconds({"unit": "ms"}, (), [3.0, 1.0, 2.0]) == 2.0


def test_shares_of_rounds(device: ModuleType) -> None:
    """AITER's last round takes as long as a full one, moonmath's what its share of workgroups is."""
    import attention_runs
    import measured
    import timing

    chip = timing.constants()
    mfma = dict.fromkeys(("unit_cycles", "instructions", "wave_cycles", "unit_matrix_cycles", "unit_vector_cycles"), 1)
    launch = timing.Launch(
        **mfma, kernel="", microseconds=0, grid=(1, 1, 1), block=(1, 1, 1), mhz=0, error=0, workgroups=456, sampled=8,
        resident=1, room=1, busy_cus=304, group_cycles=1e6, alone=1, matrix_busy=0.5, near_overlap=0, far_overlap=0,
        first_of_xcd=1, first_of_chip=1, warm=0, lines={}, unit_lds_cycles=1, spent={}, stalls=(), trace=(),
    )  # fmt: skip
    whole = measured.Point("AITER, forward", ("rtz", 1, 1, attention_runs.LONGEST), 1)
    split = measured.Point("moonmath, forward", ("rtz", 1, 1, 2 * attention_runs.LONGEST), 1)
    time, mhz = attention_runs.of_all_keys(whole, launch, chip)
    assert abs(time - 2e6 / mhz / 1000) < 1e-9
    time, mhz = attention_runs.of_all_keys(split, launch, chip)
    assert abs(time - 2 * 1.5e6 / mhz / 1000) < 1e-9


def test_other_launches_of_backward_by_their_bytes(device: ModuleType) -> None:
    import attention_runs
    import measured
    import timing

    chip = timing.constants(hbm_gb_a_second=1000)
    values = 2 * 3 * 1024 * 128
    for accumulator, bytes_of_value in (("a16", 4), ("a32", 10)):
        p = measured.Point("AITER, backward, its table", (accumulator, False, 2, 3, 1024), 1)
        assert attention_runs.other_launches(p, chip) == pytest.approx(values * bytes_of_value / 1e12 * 1e3)
