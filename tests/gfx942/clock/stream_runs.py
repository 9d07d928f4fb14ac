# SPDX-License-Identifier: Apache-2.0
"""The kernels of streams.hip, launched as the benchmarks do whose pattern they have."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

import builds
import device
import timing
from measured import Point

STREAM_THREADS, READ_THREADS = 1024, 256
DOT_ELEMENTS = 2  # of a thread
LDS = 65536  # a block of reads takes all of it, or its share: so many are at once on a compute unit
INSTRUCTIONS = 400_000


@functools.cache
def module() -> device.Module:
    return device.Module(builds.compile_hip(Path(__file__).with_name("streams.hip").read_text(encoding="utf-8")))


def babel(kernel: str, *arrays: np.ndarray) -> None:
    """copy(a, c), mul(b, c), add(a, b, c), triad(a, b, c), or dot(a, b, sums), sums of dot_blocks()."""
    n = arrays[0].size
    grid = dot_blocks(n) if kernel == "dot" else -(-n // STREAM_THREADS)
    module().launch(kernel, grid, STREAM_THREADS, (*arrays, n))


def dot_blocks(n: int) -> int:
    return -(-n // (STREAM_THREADS * DOT_ELEMENTS))


def read(at_once: int, grid: int, resident: int, words: np.ndarray, sink: np.ndarray) -> None:
    """The exclusive or of all words into sink; `resident` blocks of a compute unit."""
    args = (words, words.nbytes // 16, sink)
    module().launch(f"read_{at_once}", grid, READ_THREADS, args, LDS // resident)


def copy_16(words: np.ndarray, to: np.ndarray) -> None:
    n = words.nbytes // 16
    module().launch("copy_16", -(-n // READ_THREADS), READ_THREADS, (words, to, n))


def run(p: Point) -> None:
    """Arrays of the measured sizes, of zeros: nobody writes them, so they take no memory."""
    if p.family.startswith("BabelStream"):
        kernel, n = p.shape
        last = dot_blocks(n) if kernel == "dot" else n
        arrays = [np.zeros(n) for _ in range(1 if kernel in ("copy", "mul") else 2)]
        babel(kernel, *arrays, np.zeros(last))
    elif p.family.startswith("reads"):
        resident, at_once, size = p.shape
        cus = device.properties()["compute_units"]
        read(at_once, resident * cus, resident, np.zeros(size // 4, np.uint32), np.zeros(1, np.uint32))
    else:
        (size,) = p.shape
        copy_16(*(np.zeros(size // 4, np.uint32) for _ in range(2)))


def time_of(p: Point, launch: timing.Launch, chip: dict[str, float]) -> tuple[float, float]:
    """Milliseconds and MHz."""
    return launch.microseconds / 1000, launch.mhz
