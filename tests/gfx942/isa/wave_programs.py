# SPDX-License-Identifier: Apache-2.0
"""Kernels of a few instructions whose registers come from arrays and go to arrays: a row for each register, a column
for each thread of the one workgroup."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from assembly import kernel_text

WAVE = 64


def _moves(instruction: str, registers: Sequence[str], base: str, threads: int) -> list[str]:
    lines = ["v_lshlrev_b32 v255, 2, v0"]
    for register in registers:
        operands = f"{register}, v255, {base}" if "load" in instruction else f"v255, {register}, {base}"
        lines += [f"{instruction} {operands}", f"v_add_u32 v255, {4 * threads:#x}, v255"]
    return lines


def program(
    body: str, loads: Sequence[str], stores: Sequence[str], *, threads: int = WAVE, arguments: int = 0, **kernel: Any
) -> str:
    """The body finds its registers loaded, and v0 the thread. Its own further pointers are in s[12:13], s[14:15], ...;
    v255 is taken, and a wave that has lanes off when the body ends stores those that are on."""
    pointers = [f"s_load_dwordx2 s[{12 + 2 * k}:{13 + 2 * k}], s[0:1], {16 + 8 * k:#x}" for k in range(arguments)]
    lines = [
        "s_load_dwordx4 s[8:11], s[0:1], 0x0",
        *pointers,
        "v_and_b32 v0, 0x3ff, v0",
        "s_waitcnt lgkmcnt(0)",
        *_moves("global_load_dword", loads, "s[8:9]", threads),
        "s_waitcnt vmcnt(0)",
        body,
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        *_moves("global_store_dword", stores, "s[10:11]", threads),
    ]
    kernel = {"vgprs": 256, "agprs": 256, "threads": threads} | kernel
    return kernel_text("\n".join("  " + x for x in lines), ["*"] * (2 + arguments), **kernel)


def run(device: ModuleType, body: str, loads: dict[str, Any], stores: Sequence[str], **options: Any) -> np.ndarray:
    """The registers of `stores` afterwards, as rows of uint32. `loads` has the bits of registers, a row or a number for
    each."""
    return run_counted(device, body, loads, stores, **options)[0]


def run_counted(
    device: ModuleType,
    body: str,
    loads: dict[str, Any],
    stores: Sequence[str],
    *,
    threads: int = WAVE,
    arrays: Sequence[np.ndarray] = (),
    **kernel: Any,
) -> tuple[np.ndarray, dict[str, Any]]:
    """The same, and what was counted of each mnemonic's last instruction."""
    text = program(body, list(loads), stores, threads=threads, arguments=len(arrays), **kernel)
    registers = np.zeros((max(1, len(loads)), threads), np.uint32)
    for row, bits in zip(registers, loads.values(), strict=False):
        row[:] = bits_of(bits)
    found = np.zeros((max(1, len(stores)), threads), np.uint32)
    with device.Module(device.assemble(text)) as module:
        device.reset_counters()
        module.launch("kernel", 1, threads, (registers, found, *arrays))
        counted = {i.mnemonic: i for i in device.counters()[0].instructions}
    return found[: len(stores)], counted


def bits_of(x: Any) -> Any:
    """What 32-bit values are in a register; Python's integers and floats too."""
    if isinstance(x, float):
        x = np.float32(x)
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.itemsize == 4:
        return x.view(np.uint32)
    return np.asarray(x, np.int64).astype(np.uint32) if not isinstance(x, np.ndarray) else x.astype(np.uint32)


def registers(kind: str, first: int, count: int) -> list[str]:
    return [f"{kind}{first + k}" for k in range(count)]


def span(kind: str, first: int, count: int) -> str:
    """v4, or v[4:7]."""
    return f"{kind}{first}" if count == 1 else f"{kind}[{first}:{first + count - 1}]"


def with_lanes(mask: int) -> list[str]:
    """Instructions that make this EXEC."""
    return [f"  s_mov_b32 exec_lo, {mask & 0xFFFFFFFF:#x}", f"  s_mov_b32 exec_hi, {mask >> 32:#x}"]


def lanes_on(mask: int) -> np.ndarray:
    return np.array([mask >> k & 1 for k in range(WAVE)], bool)


def in_dwords(x: np.ndarray, first: str = "v", at: int = 0) -> dict[str, np.ndarray]:
    """64-bit values as the pairs of registers that hold them, for `loads`."""
    x = np.broadcast_to(np.asarray(x, np.uint64), (WAVE,))
    return {f"{first}{at}": x.astype(np.uint32), f"{first}{at + 1}": (x >> np.uint64(32)).astype(np.uint32)}
