# SPDX-License-Identifier: Apache-2.0
"""What loads and stores do to registers and bytes, said in NumPy."""

from __future__ import annotations

import numpy as np

from wave_programs import WAVE, registers, with_lanes

SIZE = 4096  # bytes of memory that a test has
LANES = np.arange(WAVE)
EVERY, SOME = (1 << WAVE) - 1, 0x8000_0000_1234_F00F
WAIT = "  s_waitcnt vmcnt(0) lgkmcnt(0)"

LOADS = {  # bytes, signed, where: the whole register, its low half or its high half
    "ubyte": (1, False, "whole"),
    "sbyte": (1, True, "whole"),
    "ushort": (2, False, "whole"),
    "sshort": (2, True, "whole"),
    "ubyte_d16": (1, False, "low"),
    "ubyte_d16_hi": (1, False, "high"),
    "sbyte_d16": (1, True, "low"),
    "sbyte_d16_hi": (1, True, "high"),
    "short_d16": (2, False, "low"),
    "short_d16_hi": (2, False, "high"),
    "dword": (4, False, "whole"),
    "dwordx2": (8, False, "whole"),
    "dwordx3": (12, False, "whole"),
    "dwordx4": (16, False, "whole"),
}
STORES = {  # bytes, and the bit that they begin at
    "byte": (1, 0),
    "byte_d16_hi": (1, 16),
    "short": (2, 0),
    "short_d16_hi": (2, 16),
    "dword": (4, 0),
    "dwordx2": (8, 0),
    "dwordx3": (12, 0),
    "dwordx4": (16, 0),
}


def content(seed: int = 0, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def masked(mask: int, *lines: str) -> str:
    return "\n".join([*with_lanes(mask), *("  " + x for x in lines), WAIT, "  s_mov_b64 exec, -1"])


def loaded(old: np.ndarray, memory: np.ndarray, at: np.ndarray, name: str, on: np.ndarray) -> np.ndarray:
    """Four registers after a load from those bytes."""
    size, is_signed, where = LOADS[name]
    found = old.copy()
    raw = memory[at[:, None] + np.arange(size)]
    if size >= 4:
        found[: size // 4, on] = raw.view(np.uint32)[on].T
        return found
    value = raw.view(f"{'i' if is_signed else 'u'}{size}")[:, 0].astype(np.int64).astype(np.uint32)
    if where == "low":
        value = old[0] & np.uint32(0xFFFF0000) | value & np.uint32(0xFFFF)
    elif where == "high":
        value = old[0] & np.uint32(0xFFFF) | value << np.uint32(16)
    found[0, on] = value[on]
    return found


def stored(memory: np.ndarray, data: np.ndarray, at: np.ndarray, name: str, on: np.ndarray) -> np.ndarray:
    size, shift = STORES[name]
    raw = np.ascontiguousarray((data >> np.uint32(shift)).T).view(np.uint8)[:, :size]
    after = memory.copy()
    after[at[on, None] + np.arange(size)] = raw[on]
    return after


def byte_addresses(size: int, seed: int) -> np.ndarray:
    """Of lanes that do not overlap, at the first and the last byte too, aligned or not."""
    random = np.random.default_rng(seed)
    at = random.permutation(SIZE // 32 - 1)[:WAVE] * 32 + random.integers(0, 17, WAVE)
    at[:2] = 0, SIZE - size
    return at


def width(name: str) -> int:
    return max(1, {**LOADS, **STORES}[name][0] // 4)


def data_rows(seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    data = np.random.default_rng(seed).integers(0, 1 << 32, (4, WAVE), np.uint32)
    return data, dict(zip(registers("v", 20, 4), data, strict=True))


# ---- descriptors of buffers


def descriptor(memory: np.ndarray, records: int, stride: int = 0) -> np.ndarray:
    base = memory.ctypes.data
    return np.array([base & 0xFFFFFFFF, base >> 32 | stride << 16, records, 0x20000], np.uint32)


def with_descriptor(body: str) -> str:
    return f"s_load_dwordx4 s[16:19], s[14:15], 0x0\n  s_mov_b32 s20, 32\n{WAIT}\n{body}"
