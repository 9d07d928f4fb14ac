# SPDX-License-Identifier: Apache-2.0
"""What atomics leave behind, one lane after the other, and where a wave's lanes go: for LDS and for memory alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Function = Callable[[int, int, int], int]  # of the old bits, the data and the second data


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def _integers(bits: int) -> dict[str, Function]:
    every = (1 << bits) - 1
    return {
        "add": lambda old, x, _: old + x & every,
        "sub": lambda old, x, _: old - x & every,
        "smin": lambda old, x, _: min(old, x, key=lambda v: signed(v, bits)),
        "smax": lambda old, x, _: max(old, x, key=lambda v: signed(v, bits)),
        "umin": lambda old, x, _: min(old, x),
        "umax": lambda old, x, _: max(old, x),
        "and": lambda old, x, _: old & x,
        "or": lambda old, x, _: old | x,
        "xor": lambda old, x, _: old ^ x,
        "inc": lambda old, x, _: 0 if old >= x else old + 1,
        "dec": lambda old, x, _: x if old == 0 or old > x else old - 1,
        "swap": lambda old, x, _: x,
        "rsub": lambda old, x, _: x - old & every,
        "mskor": lambda old, x, y: old & ~x | y,
    }


INTEGERS = {bits: _integers(bits) for bits in (32, 64)}


def added(kind: str, bits: int) -> Function:
    """Of floats; `kind` is f16 or bf16 for two halves of a dword."""

    def sums(old: int, x: int, _: int) -> int:
        if kind == "f16":
            pair = np.array([old, x], np.uint32).view(np.float16).reshape(2, 2)
            return int((pair[0] + pair[1]).view(np.uint32)[0])
        if kind == "bf16":
            halves = [[(v << 16 & 0xFFFFFFFF), v & 0xFFFF0000] for v in (old, x)]
            pair = np.array(halves, np.uint32).view(np.float32)
            low, high = (pair[0] + pair[1]).view(np.uint32).tolist()
            return _upper_half(low) | _upper_half(high) << 16
        dtype = {32: (np.uint32, np.float32), 64: (np.uint64, np.float64)}[bits]
        a, b = np.array([old, x], dtype[0]).view(dtype[1])
        return int(np.array([a + b], dtype[1]).view(dtype[0])[0])

    return sums


def chosen(which: str, bits: int) -> Function:
    """The smaller or the larger of two floats."""
    integer, number = {32: (np.uint32, np.float32), 64: (np.uint64, np.float64)}[bits]

    def choose(old: int, x: int, _: int) -> int:
        pair = np.array([old, x], integer)
        return int(pair[int({"min": np.argmin, "max": np.argmax}[which](pair.view(number)))])

    return choose


def _upper_half(bits: int) -> int:
    """Of a float, to nearest even."""
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def apply(
    memory: np.ndarray, address: np.ndarray, size: int, f: Function, data: np.ndarray, on: np.ndarray
) -> np.ndarray:
    """Changes the bytes of `memory`, one lane that is on after the other, and returns what each found. `data` has two
    values of each lane."""
    words = memory.view(np.uint32 if size == 4 else np.uint64)
    old = np.zeros(len(address), np.uint64)
    for lane in np.flatnonzero(on):
        at = int(address[lane]) // size
        old[lane] = words[at]
        words[at] = f(int(words[at]), int(data[0, lane]), int(data[1, lane]))
    return old


def float_bits(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Values of f32 or f64; of f16 or bf16, two in a dword."""
    if kind == "f16":
        return random.standard_normal((*shape, 2)).astype(np.float16).view(np.uint32)[..., 0]
    if kind == "bf16":
        low, high = random.standard_normal((2, *shape)).astype(np.float32).view(np.uint32) >> 16
        return low | high << 16
    dtype, bits = (np.float64, np.uint64) if kind == "f64" else (np.float32, np.uint32)
    return random.standard_normal(shape).astype(dtype).view(bits)


def pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
