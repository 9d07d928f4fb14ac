# SPDX-License-Identifier: Apache-2.0
"""Memory instructions against NumPy: global, flat, scratch and scalar loads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from builds import CHIP
from memory_models import (
    EVERY,
    LANES,
    LOADS,
    SIZE,
    SOME,
    STORES,
    WAIT,
    byte_addresses,
    content,
    data_rows,
    loaded,
    masked,
    stored,
    width,
)
from wave_programs import WAVE, in_dwords, lanes_on, registers, run, run_counted, span

with_scratch = pytest.mark.skipif(CHIP == "gfx90a", reason="its scratch is a buffer, which is not implemented")

# ---- global

FORMS = {  # operands, and the offset that is in the instruction. Without a base, v[4:5] has the whole address.
    "base": ("v4", "s[12:13]", 0),
    "base and offset": ("v4", "s[12:13] offset:-16", -16),
    "whole": ("v[4:5]", "off", 0),
    "whole and offset": ("v[4:5]", "off offset:4095", 4095),
}


@pytest.mark.parametrize("mask", [EVERY, SOME, 0])
@pytest.mark.parametrize("form", FORMS)
def test_global(device: ModuleType, form: str, mask: int) -> None:
    on, (data, rows) = lanes_on(mask), data_rows(1)
    address, base, offset = FORMS[form]
    memory = content()

    def registers_of(at: np.ndarray) -> dict[str, Any]:
        begin = memory.ctypes.data if address == "v[4:5]" else 0
        return rows | in_dwords((at - offset + begin).astype(np.int64).astype(np.uint64), "v", 4)

    for name, (size, *_) in LOADS.items():
        at = byte_addresses(size, size)
        body = masked(mask, f"global_load_{name} {span('v', 20, width(name))}, {address}, {base}")
        found = run(device, body, registers_of(at), registers("v", 20, 4), arrays=[memory])
        assert np.array_equal(found, loaded(data, memory, at, name, on)), name
    for name, (size, _) in STORES.items():
        at = byte_addresses(size, size)
        expected = stored(memory, data, at, name, on)
        body = masked(mask, f"global_store_{name} {address}, {span('v', 20, width(name))}, {base}")
        run(device, body, registers_of(at), [], arrays=[memory])
        assert np.array_equal(memory, expected), name


def test_result_may_be_the_address(device: ModuleType) -> None:
    memory = content()
    loads = in_dwords(LANES.astype(np.uint64) * 16 + np.uint64(memory.ctypes.data), "v", 4)
    found = run(device, "global_load_dwordx4 v[4:7], v[4:5], off", loads, registers("v", 4, 4), arrays=[memory])
    assert np.array_equal(found.T, memory.view(np.uint32)[: 4 * WAVE].reshape(WAVE, 4))


def test_accumulators_as_data(device: ModuleType) -> None:
    memory, (data, _) = content(), data_rows(2)
    rows = dict(zip(registers("a", 20, 4), data, strict=True)) | {"v4": (16 * LANES).astype(np.uint32)}
    body = "global_store_dwordx4 v4, a[20:23], s[12:13]\n  global_load_dwordx2 a[30:31], v4, s[12:13] offset:8"
    found = run(device, body, rows, registers("a", 30, 2), arrays=[memory])
    assert np.array_equal(memory.view(np.uint32)[: 4 * WAVE].reshape(WAVE, 4), data.T)
    assert np.array_equal(found, data[2:])


# ---- flat and scratch

SCRATCH = 256  # bytes of a lane
LDS = 4096


@with_scratch
def test_flat(device: ModuleType) -> None:
    """A third of the lanes goes to memory, a third to LDS and a third to its scratch."""
    memory, (data, rows) = content(), data_rows(3)
    which = LANES % 3
    for name, (size, _) in STORES.items():
        load = {1: "ubyte", 2: "ushort"}.get(size, name)
        at = np.where(which == 2, LANES % 8 * 16, LANES * 32) + 8 + LANES % 3
        loads = rows | {f"v{r}": 0 for r in range(30, 34)} | {"v6": at.astype(np.uint32) - np.uint32(8)}
        loads |= {"v7": which.astype(np.uint32)} | in_dwords(np.uint64(memory.ctypes.data), "v", 8)
        body = f"""s_mov_b64 s[16:17], src_shared_base
  s_mov_b64 s[18:19], src_private_base
  v_mov_b32 v4, v8
  v_mov_b32 v5, v9
  v_mov_b32 v10, s17
  v_mov_b32 v11, s19
  v_cmp_eq_u32 vcc, 1, v7
  v_cndmask_b32 v5, v5, v10, vcc
  v_cndmask_b32 v4, v4, 0, vcc
  v_cmp_eq_u32 vcc, 2, v7
  v_cndmask_b32 v5, v5, v11, vcc
  v_cndmask_b32 v4, v4, 0, vcc
  v_add_co_u32 v4, vcc, v4, v6
  v_addc_co_u32 v5, vcc, 0, v5, vcc
  flat_store_{name} v[4:5], {span("v", 20, width(name))} offset:8
{WAIT}
  flat_load_{load} {span("v", 30, width(load))}, v[4:5] offset:8"""
        expected = stored(memory, data, at, name, which == 0)
        found = run(device, body, loads, registers("v", 30, 4), arrays=[memory], lds=LDS, scratch=SCRATCH)
        assert np.array_equal(memory, expected), name
        shift = STORES[name][1]
        masked = (data >> np.uint32(shift)) & np.uint32((1 << 8 * min(size, 4)) - 1)
        masked[width(name) :] = 0
        assert np.array_equal(found, masked), name


SCRATCH_FORMS = {
    "vector": "v4, off offset:{0}",
    "scalar": "off, s16 offset:{0}",
    "both": "v4, s16 offset:{0}",
    "neither": "off, off offset:{0}",
}


@with_scratch
@pytest.mark.parametrize("form", SCRATCH_FORMS)
def test_scratch(device: ModuleType, form: str) -> None:
    """What lanes store, each at its own place, comes back; nobody else's is touched."""
    data, rows = data_rows(4)
    offsets, scalar = (LANES % 8 * 16).astype(np.uint32), 64
    for name, (size, shift) in STORES.items():
        load = {1: "ubyte", 2: "ushort"}.get(size, name)
        address, base = SCRATCH_FORMS[form].format(20).split(", ")
        value = span("v", 20, width(name))
        body = f"""s_mov_b32 s16, {scalar}
  scratch_store_{name} {address}, {value}, {base}
{WAIT}
  scratch_load_{load} {span("v", 30, width(load))}, {address}, {base}"""
        loads = rows | {f"v{r}": 0 for r in range(30, 34)} | {"v4": offsets}
        found = run(device, body, loads, registers("v", 30, 4), scratch=SCRATCH)
        stored = (data >> np.uint32(shift)) & np.uint32((1 << 8 * min(size, 4)) - 1)
        stored[width(name) :] = 0
        assert np.array_equal(found, stored), name


@with_scratch
def test_scratch_forms_name_the_same_bytes(device: ModuleType) -> None:
    body = f"""s_mov_b32 s16, 64
  scratch_store_dwordx4 v4, v[20:23], s16 offset:16
{WAIT}
  v_add_u32 v5, 64, v4
  scratch_load_dword v30, v5, off offset:20
  scratch_load_dword v31, off, s16 offset:28
  scratch_load_dword v32, off, off offset:80"""
    data, rows = data_rows(5)
    found = run(device, body, rows | {"v4": 0}, registers("v", 30, 3), scratch=SCRATCH)
    assert np.array_equal(found, data[[1, 3, 0]])


@with_scratch
def test_undefined_values_may_be_spilled(device: ModuleType) -> None:
    """To scratch and back an undefined register is no fault; to store it in memory is one."""
    body = f"scratch_store_dword off, v40, off\n{WAIT}\n  scratch_load_dword v41, off, off\n{WAIT}\n  v_mov_b32 v42, 1"
    assert np.all(run(device, body, {}, ["v42"], scratch=SCRATCH) == 1)
    with pytest.raises(device.Fault, match="undefined value"):
        run(device, body, {}, ["v41"], scratch=SCRATCH)


# ---- scalar loads


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_scalar_loads(device: ModuleType, count: int) -> None:
    memory = content()
    dwords = memory.view(np.uint32)
    suffix = "" if count == 1 else f"x{count}"
    target = "s32" if count == 1 else f"s[32:{31 + count}]"
    moves = "\n".join(f"  v_mov_b32 v{40 + k}, s{32 + k}" for k in range(count))
    for before, offset, first in (
        ("", "0x40", 16),
        ("s_add_u32 s12, s12, 0x80\n  s_addc_u32 s13, s13, 0", "-0x20", 24),
        ("s_mov_b32 s16, 0x100", "s16", 64),
        ("s_mov_b32 s16, 0x100", "s16 offset:0x10", 68),
        ("", f"{SIZE - 4 * count:#x}", SIZE // 4 - count),
    ):
        body = f"{before}\n  s_load_dword{suffix} {target}, s[12:13], {offset}\n{WAIT}\n{moves}"
        found = run(device, body, {}, registers("v", 40, count), arrays=[memory])
        assert np.array_equal(found[:, 0], dwords[first : first + count]), offset


STORE = """s_load_dwordx{count} s[32:{last}], s[12:13], 0x40
{wait}
  {before}
  s_store_dword{suffix} {data}, s[12:13], {offset}
  s_dcache_wb"""


@pytest.mark.parametrize("count", [1, 2, 4])
def test_scalar_stores(device: ModuleType, count: int) -> None:
    suffix, data = ("", "s33") if count == 1 else (f"x{count}", f"s[32:{31 + count}]")
    for before, offset, first in (
        ("", "0x80", 32),
        ("s_mov_b32 s16, 0x100", "s16", 64),
        ("", f"{SIZE - 4 * count:#x} glc", SIZE // 4 - count),
    ):
        memory = content()
        expected = memory.view(np.uint32).copy()
        expected[first : first + count] = expected[17 if count == 1 else 16 :][:count]
        body = STORE.format(count=4, last=35, wait=WAIT, before=before, suffix=suffix, data=data, offset=offset)
        run(device, body, {}, [], arrays=[memory])
        assert np.array_equal(memory.view(np.uint32), expected), offset
    with pytest.raises(device.Fault, match="writes .* outside every allocation"):
        run(device, body.replace(f"{SIZE - 4 * count:#x}", f"{SIZE:#x}"), {}, [], arrays=[memory])


def test_scalar_stores_are_checked(device: ModuleType) -> None:
    with pytest.raises(device.Fault, match="stores an undefined value"):
        run(device, "s_store_dword s40, s[12:13], 0x0", {}, [], arrays=[content()])
    late = "s_load_dword s40, s[12:13], 0x0\n  {}\n  s_store_dword s40, s[12:13], 0x4"
    run(device, late.format("s_waitcnt lgkmcnt(0)"), {}, [], arrays=[content()])
    with pytest.raises(device.Fault, match="s40 is used before"):
        run(device, late.format("s_nop 0"), {}, [], arrays=[content()])


@pytest.mark.parametrize("glc", [False, True])
def test_scalar_increment(device: ModuleType, glc: bool) -> None:
    """Up by one, 0 after the data's value or from beyond it; the old value with glc. Every wave does it once."""
    body = f"""s_movk_i32 s40, 2
  s_atomic_inc s40, s[12:13], 0x4{" glc" * glc}
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v20, s40"""
    for before, after, olds in ((0, 1, [0, 1, 2, 0]), (2, 0, [2, 0, 1, 2]), (9, 0, [9, 0, 1, 2])):
        memory = np.array([7, before, 7], np.uint32)
        found = run(device, body, {}, ["v20"], arrays=[memory], threads=4 * WAVE)[0]
        assert memory.tolist() == [7, after, 7]
        assert found[::WAVE].tolist() == (olds if glc else [2] * 4)


# ---- counters


@pytest.mark.parametrize(
    "at, size, lines",
    [
        (LANES * 4, 4, 2),
        (LANES * 16, 16, 8),
        (LANES[::-1] * 4, 4, 2),
        (LANES * 64, 4, 32),
        (LANES * 0, 4, 1),
        (LANES * 32 + 14, 4, 16),
        (LANES % 2 * 2048, 16, 2),
        (LANES * 8 + 124, 8, 5),  # 124 to 635
    ],
)
def test_bytes_and_lines(device: ModuleType, at: np.ndarray, size: int, lines: int) -> None:
    buffer = np.zeros(SIZE + 128, np.uint8)
    memory = buffer[-buffer.ctypes.data % 128 :][:SIZE]
    name = {4: "dword", 8: "dwordx2", 16: "dwordx4"}[size]
    body = f"global_load_{name} {span('v', 20, size // 4)}, v4, s[12:13]"
    _, counted = run_counted(device, body, {"v4": at.astype(np.uint32)}, [], arrays=[memory])
    found = counted[f"global_load_{name}"]
    assert (found.bytes, found.lines) == (WAVE * size, lines)
