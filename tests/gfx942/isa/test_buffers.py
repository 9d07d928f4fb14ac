# SPDX-License-Identifier: Apache-2.0
"""Buffer loads and stores against NumPy."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from memory_models import (
    EVERY,
    LANES,
    LOADS,
    SIZE,
    SOME,
    STORES,
    WAIT,
    content,
    data_rows,
    descriptor,
    loaded,
    stored,
    width,
    with_descriptor,
)
from wave_programs import WAVE, lanes_on, registers, run, span, with_lanes


def test_raw_buffers(device: ModuleType) -> None:
    """Lanes beyond the buffer load 0 and store nothing; of several dwords those that are within count."""
    data, rows = data_rows(6)
    records = 1000
    for name, (size, *_) in LOADS.items():
        memory = content()
        step = min(size, 4)
        at = (LANES * 16 + LANES % 4 * 4) // step * step
        at[-1] = 0xFFFFFFF0 if size == 1 else records
        extended = np.concatenate([memory[:records], np.zeros(8192, np.uint8)])
        expected = loaded(data, extended, np.minimum(at, 4096), name, at >= 0)
        body = with_descriptor(f"  buffer_load_{name} {span('v', 20, width(name))}, v4, s[16:19], 0 offen offset:0")
        loads = rows | {"v4": at.astype(np.uint32)}
        arrays = [memory, descriptor(memory, records)]
        assert np.array_equal(run(device, body, loads, registers("v", 20, 4), arrays=arrays), expected), name
    for name in STORES:
        memory = content()
        at = LANES * 16
        expected = stored(np.concatenate([memory, np.zeros(64, np.uint8)]), data, at, name, LANES >= 0)[:SIZE]
        expected[records:] = memory[records:]
        body = with_descriptor(f"  buffer_store_{name} {span('v', 20, width(name))}, v4, s[16:19], 0 offen")
        run(device, body, rows | {"v4": at.astype(np.uint32)}, [], arrays=[memory, descriptor(memory, records)])
        assert np.array_equal(memory, expected), name


def test_addresses_of_buffers(device: ModuleType) -> None:
    memory = content()
    dwords = memory.view(np.uint32)
    loads = {f"v{4 + k}": x.astype(np.uint32) for k, x in enumerate((LANES, LANES % 4 * 4, LANES * 4))}

    def found(operands: str, records: int, stride: int = 0) -> np.ndarray:
        body = with_descriptor(f"  buffer_load_dword v20, {operands}")
        return run(device, body, loads, ["v20"], arrays=[memory, descriptor(memory, records, stride)])[0]

    assert np.array_equal(found("v6, s[16:19], 0 offen offset:64", SIZE), dwords[16 + LANES])
    assert np.array_equal(found("v6, s[16:19], s20 offen offset:64", SIZE), dwords[24 + LANES])
    assert np.all(found("off, s[16:19], s20 offset:8", SIZE) == dwords[10])
    assert np.array_equal(found("v4, s[16:19], 0 idxen", 64, 16), dwords[4 * LANES])
    assert np.array_equal(found("v[4:5], s[16:19], s20 idxen offen", 64, 16), dwords[8 + 4 * LANES + LANES % 4])
    within = np.where(LANES < 40, dwords[4 * LANES + 3], 0)
    assert np.array_equal(found("v4, s[16:19], 0 idxen offset:12", 40, 16), within)


TO_LDS = """s_movk_i32 s21, {m0:#x}
  s_or_b32 m0, s21, 0x50000
  buffer_load_dword {operands} lds
  {wait}
  s_mov_b64 exec, -1
  v_lshlrev_b32 v7, 2, v0
  ds_read_b32 v20, v7
  ds_read_b32 v21, v7 offset:256"""


def to_lds(operands: str, mask: int = EVERY, m0: int = 0, wait: str = "s_waitcnt vmcnt(0)") -> str:
    """A load to an LDS of 128 dwords that are their own place before, which then are in v20 and v21."""
    fill = "\n  ".join([
        "v_lshlrev_b32 v7, 2, v0", "v_add_u32 v8, 64, v0", "ds_write_b32 v7, v0", "ds_write_b32 v7, v8 offset:256",
    ])  # fmt: skip
    return with_descriptor(
        "\n".join([f"  {fill}", WAIT, *with_lanes(mask), TO_LDS.format(m0=m0, operands=operands, wait=wait)])
    )


@pytest.mark.parametrize("mask", [EVERY, SOME])
@pytest.mark.parametrize(
    "operands, m0, offset", [("v4, s[16:19], 0 offen", 0, 0), ("v4, s[16:19], s20 offen offset:16", 0x40, 48)]
)
def test_loads_to_lds(device: ModuleType, operands: str, m0: int, offset: int, mask: int) -> None:
    """A dword of each lane that is on, lane by lane from M0's low half and the instruction's offset."""
    memory, random = content(), np.random.default_rng(8)
    at = (random.permutation(SIZE // 4)[:WAVE] * 4).astype(np.uint32)
    at[3] = 992  # the last one that is within
    records = 996 + (32 if "s20" in operands else 0) + (16 if "16" in operands.split()[-1] else 0)
    place = (m0 + (16 if "offset" in operands else 0)) // 4 + LANES
    extended = np.concatenate([memory[:records], np.zeros(2 * SIZE, np.uint8)]).view(np.uint32)
    expected = np.arange(2 * WAVE, dtype=np.uint32)
    on = lanes_on(mask)
    expected[place[on]] = extended[(at[on] + offset) // 4]
    arrays = [memory, descriptor(memory, records)]
    with device.warn("buffer-offset"):
        found = run(device, to_lds(operands, mask, m0), {"v4": at}, ["v20", "v21"], arrays=arrays, lds=512)
    assert np.array_equal(found.reshape(-1), expected)


def test_loads_to_lds_are_checked(device: ModuleType) -> None:
    """The wave's own wait, the LDS's end, M0, and other sizes."""
    memory = content()
    operands, loads = "v4, s[16:19], 0 offen", {"v4": (4 * LANES).astype(np.uint32)}
    arrays = [memory, descriptor(memory, SIZE)]

    def says(body: str, words: str) -> None:
        with pytest.raises(device.Fault, match=words):
            run(device, body, loads, [], arrays=arrays, lds=512)

    run(device, to_lds(operands, m0=256), loads, [], arrays=arrays, lds=512)
    says(to_lds(operands, wait="s_nop 0"), r"LDS address 0 is used before the s_waitcnt .*vmcnt[^$]*ds_read_b32 v20")
    says(to_lds(operands, m0=256, wait="s_nop 0"), r"LDS address 256 is used[^$]*ds_read_b32 v21")
    says(to_lds(operands, 1 << 5, wait="s_nop 0"), r"LDS address 20 is used[^$]*lane 5")
    says(to_lds(operands, m0=260), "writes 4 bytes at LDS address 512, outside the workgroup's 512 bytes[^$]*lane 63")
    says(to_lds(operands).replace("s_or_b32 m0, s21, 0x50000", "s_mov_b32 m0, s40"), "M0 is undefined")
    says(to_lds(operands).replace("buffer_load_dword", "buffer_load_ushort"), "another size than a dword")


@pytest.mark.parametrize("wait, name", [("s_waitcnt vmcnt(0)", ""), ("s_nop 0", "lds-wait"), ("", "lds-race")])
def test_loads_to_lds_race(device: ModuleType, wait: str, name: str) -> None:
    """Wave 0 loads what both then read: after a wait and a barrier, without the wait, without the barrier."""
    body = with_descriptor(f"""  v_readfirstlane_b32 s22, v0
  s_mov_b32 m0, 0
  v_lshlrev_b32 v7, 2, v0
  v_and_b32 v7, 0xfc, v7
  v_mov_b32 v20, 0
  s_cmp_lg_u32 s22, 0
  s_cbranch_scc1 past
  buffer_load_dword v7, s[16:19], 0 offen lds
past:
  {wait or "s_waitcnt vmcnt(0)"}
  {"s_barrier" if wait else "s_nop 0"}
  s_cmp_eq_u32 s22, 0
  s_cbranch_scc1 end
  ds_read_b32 v20, v7
end:""")
    memory = content()
    options = {"arrays": [memory, descriptor(memory, SIZE)], "threads": 2 * WAVE, "lds": 256}
    if name:
        with pytest.raises(device.Fault, match=rf"reads what wave 0 wrote.*\(check {name}\)"):
            run(device, body, {}, ["v20"], **options)
    else:
        found = run(device, body, {}, ["v20"], **options)[0]
        assert np.array_equal(found[WAVE:], memory.view(np.uint32)[:WAVE])


@pytest.mark.parametrize(
    "operands, records, stride, flags, says",
    [
        ("v4, s[16:19], 0 offen", 30, 0, 0, "across the end"),
        ("v4, s[16:19], s20 offen", 40, 0, 0, "scalar offset"),
        ("v[4:5], s[16:19], 0 idxen offen", 64, 8, 0, "stride"),
        ("v4, s[16:19], 0 offen", 64, 16, 0, "without an index"),
        ("v4, s[16:19], 0 offen", 64, 0, 1 << 31, "descriptor"),
    ],
)
def test_what_documents_leave_open_stops(
    device: ModuleType, operands: str, records: int, stride: int, flags: int, says: str
) -> None:
    memory = content()
    v = descriptor(memory, records, stride)
    v[1] |= flags
    loads = {"v4": (4 * LANES).astype(np.uint32) // (4 if "idxen" in operands else 1), "v5": 8}
    with pytest.raises(device.Fault, match=says):
        run(device, with_descriptor(f"  buffer_load_dword v20, {operands}"), loads, ["v20"], arrays=[memory, v])
