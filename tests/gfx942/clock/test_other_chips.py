# SPDX-License-Identifier: Apache-2.0
"""The clock of the chip whose code runs: memory's rate in large streams, and what was measured on an MI210, one die of
an MI250X (te42kyfo/gpu-benches, gpu-stream/mi210.txt)."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import builds

MB = 1 << 20
MI210_TRIAD = 1288  # GB/s, the median from 60 to 100 % of the threads; the constant is that of its reads


@pytest.fixture(scope="module")
def rates(device: ModuleType) -> dict[str, float]:
    """Predicted GB/s of streams that are too large for caches."""
    import stream_runs
    import timing

    def rate(moved: int, kernel: str, *arrays: np.ndarray) -> float:
        with timing.recording(stream_runs.INSTRUCTIONS):
            stream_runs.babel(kernel, *arrays)
        (launch,) = timing.timed()
        device.forget_recordings()
        return moved / launch.microseconds / 1000

    def zeros() -> np.ndarray:
        return np.zeros(128 * MB // 8)

    # Written lines are read before, as the model has it of HBM.
    return {
        "copy": rate(256 * MB, "copy", zeros(), zeros()),
        "triad": rate(384 * MB, "triad", zeros(), zeros(), zeros()),
    }


def test_streams_run_at_the_rate_of_memory(rates: dict[str, float]) -> None:
    import timing

    most = timing.constants()["hbm_gb_a_second"]
    assert all(0.75 * most <= rate <= 1.02 * most for rate in rates.values()), (rates, most)


@pytest.mark.skipif(builds.CHIP != "gfx90a", reason="measured on an MI210")
def test_an_mi210s_triad_was_held_out(rates: dict[str, float]) -> None:
    assert rates["triad"] == pytest.approx(MI210_TRIAD, rel=0.2)
