# SPDX-License-Identifier: Apache-2.0
"""streams.hip moves what the benchmarks move: every result against NumPy, exactly."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

SIZES = (1024, 5000)  # full blocks, and a rest
SCALAR = 0.4


@pytest.fixture(scope="module")
def stream_runs(device: ModuleType) -> ModuleType:
    import stream_runs

    return stream_runs


def whole_numbers(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, n).astype(np.float64)


@pytest.mark.parametrize("n", SIZES)
def test_babel_stream(stream_runs: ModuleType, n: int) -> None:
    a, b, c = (whole_numbers(n, seed) for seed in range(3))
    for kernel, given, expected in (
        ("copy", (a,), a),
        ("mul", (c,), SCALAR * c),
        ("add", (a, b), a + b),
        ("triad", (b, c), [float(Fraction(x) + Fraction(SCALAR) * Fraction(y)) for x, y in zip(b, c, strict=True)]),
    ):
        got = np.full(n, np.nan)
        order = (got, *given) if kernel in ("mul", "triad") else (*given, got)
        stream_runs.babel(kernel, *order)
        np.testing.assert_array_equal(got, expected, kernel)


@pytest.mark.parametrize("n", SIZES)
def test_dot(stream_runs: ModuleType, n: int) -> None:
    a, b = (whole_numbers(n, seed) for seed in range(2))
    blocks = stream_runs.dot_blocks(n)
    sums = np.full(blocks, np.nan)
    stream_runs.babel("dot", a, b, sums)
    block_of = np.arange(n) // stream_runs.STREAM_THREADS % blocks
    np.testing.assert_array_equal(sums, np.bincount(block_of, a * b, blocks))


@pytest.mark.parametrize("at_once", [1, 2, 4, 8, 16, 32])
def test_reads(stream_runs: ModuleType, at_once: int) -> None:
    """All words once: the loads at once, and the rest."""
    words = np.random.default_rng(3).integers(0, 2**32, 4 * 21_000, dtype=np.uint32)
    sink = np.zeros(1, np.uint32)
    stream_runs.read(at_once, 2, 2, words, sink)
    assert sink[0] == np.bitwise_xor.reduce(words)


def test_copy_of_16_bytes_a_thread(stream_runs: ModuleType) -> None:
    words = np.random.default_rng(4).integers(0, 2**32, 4 * 777, dtype=np.uint32)
    to = np.zeros_like(words)
    stream_runs.copy_16(words, to)
    np.testing.assert_array_equal(to, words)


def test_runs_have_the_sizes_that_were_measured(device: ModuleType, stream_runs: ModuleType) -> None:
    """The bytes that a launch loads and stores, all workgroups together. A lane may load the block's size beside them,
    and a wave stores a sum: less than 4 bytes a lane. Workgroups differ by a load."""
    import measured
    import timing

    for f in measured.families():
        if f.bound != "memory":
            continue
        p = f.points[-1]
        device.reset_counters()
        with timing.recording(1):
            stream_runs.run(p)
        device.forget_recordings()
        (run,) = (c for c in device.counters() if c.workgroups)
        (shape,) = run.shapes
        found = sum(i.bytes for i in run.instructions if i.unit == "memory") * shape.grid[0] / run.workgroups
        at = dict(zip(f.columns, p.shape, strict=True))
        moved = measured.WORK["stream"](at) if "elements" in at else at["bytes"] * (2 if "copy" in f.name else 1)
        assert 0.999 * moved <= found <= moved + 4 * shape.grid[0] * shape.block[0], p
