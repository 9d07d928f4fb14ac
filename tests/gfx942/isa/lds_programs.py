# SPDX-License-Identifier: Apache-2.0
"""Kernels of a few instructions on an LDS whose content comes from an array, and goes to one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from wave_programs import WAVE, registers, run, with_lanes

ROWS = 8
SIZE = 4 * WAVE * ROWS  # bytes of LDS
LANES = np.arange(WAVE)
FILL = "\n".join(
    ["v_lshlrev_b32 v2, 2, v0", *(f"  ds_write_b32 v2, v{10 + r} offset:{4 * WAVE * r}" for r in range(ROWS))]
)
READ_BACK = "\n".join(f"  ds_read_b32 v{50 + r}, v2 offset:{4 * WAVE * r}" for r in range(ROWS))
WAIT = "  s_waitcnt lgkmcnt(0)"


def content(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def on_lds(
    device: ModuleType,
    body: str,
    memory: np.ndarray,
    loads: dict[str, Any],
    stores: list[str],
    exec_mask: int = (1 << WAVE) - 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the body on an LDS with that content. The registers of `stores`, and the content afterwards."""
    rows = dict(zip(registers("v", 10, ROWS), memory.view(np.uint32).reshape(ROWS, WAVE), strict=True))
    text = "\n".join([FILL, WAIT, *with_lanes(exec_mask), "  " + body, WAIT, "  s_mov_b64 exec, -1", READ_BACK])
    found = run(device, text, rows | loads, [*stores, *registers("v", 50, ROWS)], lds=SIZE)
    return found[: len(stores)], found[len(stores) :].reshape(-1).view(np.uint8)


PARTS = {  # bytes, signed, where it goes: the whole register, its low half or its high half
    "u8": (1, False, "whole"),
    "i8": (1, True, "whole"),
    "u16": (2, False, "whole"),
    "i16": (2, True, "whole"),
    "u8_d16": (1, False, "low"),
    "u8_d16_hi": (1, False, "high"),
    "i8_d16": (1, True, "low"),
    "i8_d16_hi": (1, True, "high"),
    "u16_d16": (2, False, "low"),
    "u16_d16_hi": (2, False, "high"),
}
