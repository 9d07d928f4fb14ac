# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes, each of which must be found, and beside each the same program without it."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from memory_models import descriptor, with_descriptor
from wave_programs import WAVE, registers, run

LANES = np.arange(WAVE)
SIZE = 1024
TWO_WAVES = 2 * WAVE


def fault(device: ModuleType, says: str, body: str, loads: dict[str, Any] | None = None, **options: Any) -> str:
    """The text of the fault that running the body must end in."""
    with pytest.raises(device.Fault, match=says) as raised:
        run(device, body, loads or {}, options.pop("stores", []), **options)
    return str(raised.value)


# ---- memory


@pytest.mark.parametrize("instruction", ["global_load_dword v20, v4, s[12:13]", "global_store_dword v4, v0, s[12:13]"])
@pytest.mark.parametrize("lane, at", [(63, SIZE), (63, SIZE - 3), (7, -4), (0, 1 << 31)])
def test_outside_an_allocation(device: ModuleType, instruction: str, lane: int, at: int) -> None:
    memory = np.zeros(SIZE, np.uint8)
    good = LANES * 16
    run(device, instruction, {"v4": good.astype(np.uint32)}, [], arrays=[memory])
    bad = np.where(lane == LANES, at, good)
    move = "s_mov_b32 s16, -4\n  s_mov_b32 s17, -1\n  s_add_u32 s12, s12, s16\n  s_addc_u32 s13, s13, s17\n  "
    loads = {"v4": (bad + 4).astype(np.uint32)}
    text = fault(device, "outside every allocation", move + instruction, loads, arrays=[memory])
    does = "reads" if "load" in instruction else "writes"
    assert f"kernel: {does} 4 bytes at {memory.ctypes.data + at:#x}" in text
    assert f"lane {lane}" in text and instruction in text


def test_a_lane_that_is_off_may_point_anywhere(device: ModuleType) -> None:
    address = np.where(LANES == 9, 1 << 30, 4 * LANES).astype(np.uint32)
    body = f"s_mov_b32 exec_lo, {~(1 << 9) & 0xFFFFFFFF:#x}\n  global_load_dword v20, v4, s[12:13]"
    run(device, body, {"v4": address}, [], arrays=[np.zeros(SIZE, np.uint8)])


def test_scalar_load_outside(device: ModuleType) -> None:
    body = f"s_load_dwordx4 s[16:19], s[12:13], {SIZE - 8:#x}"
    text = fault(device, "outside every allocation", body, arrays=[np.zeros(SIZE, np.uint8)])
    assert "reads 16 bytes" in text


def test_between_two_allocations(device: ModuleType) -> None:
    """All lanes are within the span of what is allocated, one is in a hole."""
    buffer = np.zeros(3 * SIZE, np.uint8)
    body = """s_sub_u32 s14, s14, s12
  v_mul_u32_u24 v4, v0, 4
  v_cmp_eq_u32 vcc, 5, v0
  v_mov_b32 v5, s14
  v_cndmask_b32 v4, v4, v5, vcc
  global_load_dword v20, v4, s[12:13]"""
    first, last = buffer[:SIZE], buffer[2 * SIZE :]
    run(device, body, {}, [], arrays=[first, last])
    bad = body.replace("v_mov_b32 v5, s14", "v_mov_b32 v5, 0x500")
    fault(device, "outside every allocation[^$]*lane 5", bad, arrays=[first, last])


@pytest.mark.parametrize("kind", ["load", "store"])
def test_scratch_outside(device: ModuleType, kind: str) -> None:
    operands = "v20, off, off" if kind == "load" else "off, v0, off"
    run(device, f"scratch_{kind}_dword {operands} offset:60", {}, [], scratch=64)
    says = "outside the lane's 64"
    fault(device, says, f"scratch_{kind}_dword {operands} offset:61", scratch=64)
    fault(device, says, f"scratch_{kind}_dword {operands} offset:-4", scratch=64)


def test_buffer_that_is_larger_than_its_allocation(device: ModuleType) -> None:
    memory = np.zeros(SIZE, np.uint8)
    v = descriptor(memory, SIZE + 4)
    body = with_descriptor("  buffer_load_dword v20, v4, s[16:19], 0 offen")
    run(device, body, {"v4": SIZE - 4}, [], arrays=[memory, v])
    fault(device, "outside every allocation", body, {"v4": SIZE}, arrays=[memory, v])


# ---- LDS


@pytest.mark.parametrize("instruction", ["ds_read_b32 v20, v4", "ds_write_b32 v4, v0", "ds_add_u32 v4, v0"])
def test_outside_lds(device: ModuleType, instruction: str) -> None:
    run(device, instruction, {"v4": (4 * LANES).astype(np.uint32)}, [], lds=256)
    beyond = {"v4": (4 * LANES + 4).astype(np.uint32)}
    text = fault(device, "outside the workgroup's 256 bytes", instruction, beyond, lds=256)
    assert "4 bytes at LDS address 256" in text and "lane 63" in text
    fault(device, "outside the workgroup's 0 bytes", instruction, {"v4": 0})


# Each wave writes 256 bytes, and reads those that the other wrote.
EXCHANGE = """v_lshlrev_b32 v4, 2, v0
  v_xor_b32 v5, 0x100, v4
  ds_write_b32 v4, v0
  {0}
  ds_read_b32 v20, v5
  s_waitcnt lgkmcnt(0)"""


def test_missing_barrier(device: ModuleType) -> None:
    good = EXCHANGE.format("s_waitcnt lgkmcnt(0)\n  s_barrier")
    found = run(device, good, {}, ["v20"], threads=TWO_WAVES, lds=512)
    assert np.array_equal(found[0], np.arange(TWO_WAVES) ^ 64)
    bad = EXCHANGE.format("s_waitcnt lgkmcnt(0)")
    text = fault(device, "LDS race", bad, threads=TWO_WAVES, lds=512)
    assert re.search(r"LDS race with wave 0 at LDS address 256: this instruction writes what wave 0 read", text)


def test_missing_wait_before_a_barrier(device: ModuleType) -> None:
    """The write may happen after the barrier."""
    fault(device, "LDS race with wave", EXCHANGE.format("s_barrier"), threads=TWO_WAVES, lds=512)


def test_second_round_without_a_barrier(device: ModuleType) -> None:
    """What is read must be read before others write there again."""
    again = """s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v20, v5
  s_waitcnt lgkmcnt(0)
  {0}
  ds_write_b32 v4, v20"""
    end = "\n  s_waitcnt lgkmcnt(0)\n  s_barrier"
    run(device, EXCHANGE.format(again.format("s_barrier") + end), {}, ["v20"], threads=TWO_WAVES, lds=512)
    fault(device, "LDS race", EXCHANGE.format(again.format("s_nop 0") + end), threads=TWO_WAVES, lds=512)


@pytest.mark.parametrize("waves", [2, 9, 16])
def test_races_of_any_two_waves(device: ModuleType, waves: int) -> None:
    """The last wave writes a byte of what the first one wrote."""
    body = """v_lshlrev_b32 v4, 2, v0
  v_cmp_eq_u32 vcc, {0}, v0
  v_cndmask_b32 v4, v4, {1}, vcc
  ds_write_b8 v4, v0"""
    last = f"{64 * waves - 1:#x}"
    run(device, body.format(last, 1), {}, [], threads=64 * waves, lds=4096)
    says = f"LDS race with wave 0 at LDS address 4: [^$]*wave {waves - 1}, lane 63"
    fault(device, says, body.format(last, 4), threads=64 * waves, lds=4096)


def test_halves_of_a_dword_are_no_race(device: ModuleType) -> None:
    body = """v_and_b32 v4, 63, v0
  v_lshlrev_b32 v4, 2, v4
  v_lshrrev_b32 v5, 6, v0
  v_lshl_add_u32 v4, v5, 1, v4
  ds_write_b16 v4, v0"""
    run(device, body, {}, [], threads=TWO_WAVES, lds=256)
    fault(device, "LDS race", body.replace("b16", "b32"), threads=TWO_WAVES, lds=258)


def test_all_may_read_and_one_may_write(device: ModuleType) -> None:
    body = """v_lshlrev_b32 v4, 2, v0
  v_and_b32 v4, 0xfc, v4
  v_cmp_gt_u32 vcc, 64, v0
  s_and_saveexec_b64 s[16:17], vcc
  ds_write_b32 v4, v0
  s_mov_b64 exec, s[16:17]
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v20, v4
  s_waitcnt lgkmcnt(0)
  {0}"""
    run(device, body.format(""), {}, ["v20"], threads=TWO_WAVES, lds=256)
    fault(device, "LDS race", body.format("ds_write_b32 v4, v20"), threads=TWO_WAVES, lds=256)


def test_atomics_race_with_plain_accesses_alone(device: ModuleType) -> None:
    body = """v_mov_b32 v4, 0
  v_mov_b32 v5, 1
  v_cmp_eq_u32 vcc, 0, v0
  s_and_saveexec_b64 s[16:17], vcc
  ds_write_b32 v4, v4
  s_mov_b64 exec, s[16:17]
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_add_u32 v4, v5
  s_waitcnt lgkmcnt(0)
  {0}
  ds_read_b32 v20, v4"""
    found = run(device, body.format("s_barrier"), {}, ["v20"], threads=TWO_WAVES, lds=4)
    assert np.all(found == TWO_WAVES)
    fault(device, "LDS race[^$]*(read|updated)", body.format("s_nop 0"), threads=TWO_WAVES, lds=4)


def test_uninitialised_lds(device: ModuleType) -> None:
    """It may be read, not stored; the report tells where it came from."""
    body = """v_lshlrev_b32 v4, 2, v0
  s_mov_b32 exec_lo, {0:#x}
  ds_write_b32 v4, v0
  s_mov_b64 exec, -1
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v20, v4
  s_waitcnt lgkmcnt(0)
  v_add_u32 v21, 1, v20"""
    run(device, body.format(0xFFFFFFFF), {}, ["v21"], lds=256)
    run(device, body.format(0xFFFFFFF7), {}, [], lds=256)
    text = fault(device, "stores an undefined value[^$]*lane 3", body.format(0xFFFFFFF7), stores=["v21"], lds=256)
    assert "first uninitialised LDS read: address 12, lane 3, ds_read_b32 v20, v4" in text


# ---- barriers


def test_divergent_barrier(device: ModuleType) -> None:
    body = """v_readfirstlane_b32 s16, v0
  s_cmp_eq_u32 {0}
  s_cbranch_scc1 past
  s_barrier
past:"""
    run(device, body.format("s16, 1"), {}, [], threads=TWO_WAVES)
    text = fault(device, "divergent barrier", body.format("s16, 0"), threads=TWO_WAVES)
    assert "wave 1" in text and "s_barrier" in text


def test_two_barriers_at_once(device: ModuleType) -> None:
    body = """v_readfirstlane_b32 s16, v0
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc1 other
  s_barrier
  s_branch past
other:
  s_barrier
past:"""
    fault(device, "divergent barrier", body, threads=TWO_WAVES)


# ---- waits

USES = {
    "vmcnt": ("global_load_dword v20, v4, s[12:13]", "vmcnt(0)"),
    "lgkmcnt": ("ds_read_b32 v20, v4", "lgkmcnt(0)"),
    "lgkmcnt of a scalar load": ("s_load_dword s20, s[12:13], 0x0", "lgkmcnt(0)"),
    "lgkmcnt of bpermute": ("ds_bpermute_b32 v20, v4, v0", "lgkmcnt(0)"),
}


@pytest.mark.parametrize("kind", USES)
@pytest.mark.parametrize("use", ["reads", "overwrites"])
def test_missing_wait(device: ModuleType, kind: str, use: str) -> None:
    load, wait = USES[kind]
    register = "s20" if "scalar" in kind else "v20"
    if use == "overwrites":
        then = "s_mov_b32 s20, 0" if register == "s20" else "v_mov_b32_e32 v20, 0"
    else:
        then = f"v_mov_b32_e32 v21, {register}"
    before = "v_lshlrev_b32 v4, 2, v0\n  ds_write_b32 v4, v0\n  s_waitcnt lgkmcnt(0)\n  " + load
    options: dict[str, Any] = {"arrays": [np.zeros(SIZE, np.uint8)], "lds": 256}
    run(device, f"{before}\n  s_waitcnt {wait}\n  {then}", {}, [], **options)
    text = fault(device, rf"{register} is used before the s_waitcnt", f"{before}\n  {then}", **options)
    assert kind.split()[0] in text and then in text


def test_results_that_meet_in_a_register(device: ModuleType) -> None:
    """Loads of one kind arrive in order, so the second may fill the other half of what the first does."""
    body = """v_lshlrev_b32 v4, 2, v0
  ds_write_b32 v4, v0
  s_waitcnt lgkmcnt(0)
  {0}
  {1}"""
    low, high = "global_load_short_d16 v20, v4, s[12:13]", "global_load_short_d16_hi v20, v4, s[12:13] offset:2"
    options: dict[str, Any] = {"arrays": [np.arange(WAVE, dtype=np.uint32) * 0x10003], "lds": 256}
    found = run(device, body.format(low, high), {}, ["v20"], **options)
    assert np.array_equal(found[0], options["arrays"][0])
    for order in ((low, "ds_read_b32 v20, v4"), ("ds_read_b32 v20, v4", low)):
        fault(device, "v20 is used before", body.format(*order), **options)


def test_waits_that_are_long_enough(device: ModuleType) -> None:
    """Loads come back in order, so all but the newest may be used."""
    loads = "\n".join(f"  global_load_dword v{20 + k}, v4, s[12:13] offset:{4 * k}" for k in range(4))
    body = f"v_mov_b32 v4, 0\n{loads}\n  s_waitcnt vmcnt({{0}})\n  v_add_u32 v30, v20, v21"
    arrays = [np.arange(4, dtype=np.uint32)]
    assert np.all(run(device, body.format(2), {}, ["v30"], arrays=arrays) == 1)
    fault(device, "v21 is used before", body.format(3), arrays=arrays)


def test_scalar_loads_come_back_in_any_order(device: ModuleType) -> None:
    body = """s_load_dword s20, s[12:13], 0x0
  s_load_dword s21, s[12:13], 0x4
  s_waitcnt lgkmcnt({0})
  s_mov_b32 s22, s20"""
    arrays = [np.zeros(4, np.uint32)]
    run(device, body.format(0), {}, [], arrays=arrays)
    fault(device, "s20 is used before", body.format(1), arrays=arrays)


def test_stores_count_too(device: ModuleType) -> None:
    """vmcnt(1) waits for a load when a store follows it."""
    body = """v_mov_b32 v4, 0
  global_load_dword v20, v4, s[12:13]
  {0}
  s_waitcnt vmcnt(1)
  v_mov_b32 v21, v20"""
    arrays = [np.zeros(4, np.uint32)]
    run(device, body.format("global_store_dword v4, v4, s[12:13] offset:8"), {}, [], arrays=arrays)
    fault(device, "v20 is used before", body.format("s_nop 0"), arrays=arrays)


def test_flat_loads_from_lds_are_in_both_counters(device: ModuleType) -> None:
    body = """v_mov_b32 v4, 0
  ds_write_b32 v4, v4
  s_mov_b64 s[16:17], src_shared_base
  v_mov_b32 v5, s17
  s_waitcnt lgkmcnt(0)
  flat_load_dword v20, v[4:5]
  s_waitcnt {0}
  v_mov_b32 v21, v20"""
    run(device, body.format("vmcnt(0) lgkmcnt(0)"), {}, [], lds=256)
    fault(device, "v20 is used before", body.format("vmcnt(0)"), lds=256)
    fault(device, "v20 is used before", body.format("lgkmcnt(0)"), lds=256)


def test_matrices_wait_for_their_operands(device: ModuleType) -> None:
    body = """v_mov_b32 v4, 0
  global_load_dwordx2 v[20:21], v4, s[12:13]
  {0}
  v_mfma_f32_16x16x16_f16 v[32:35], v[20:21], v[16:17], 0"""
    loads = dict.fromkeys(registers("v", 16, 2), 0)
    arrays = [np.zeros(4, np.uint32)]
    run(device, body.format("s_waitcnt vmcnt(0)"), loads, [], arrays=arrays)
    fault(device, "v20 is used before", body.format("s_nop 0"), loads, arrays=arrays)


# ---- registers that were never written

UNDEFINED = {
    "stores an undefined value": "global_store_dword v4, v40, s[12:13]",
    "the address is undefined": "global_load_dword v20, v40, s[12:13]",
    "the base address is undefined": "s_mov_b32 s40, s12\n  global_load_dword v20, v4, s[40:41]",
    "EXEC": "s_and_b64 exec, exec, s[40:41]",
    "SCC is undefined": "s_cmp_eq_u32 s40, 0\n  s_cbranch_scc1 0",
    "VCC is undefined": "v_cmp_eq_u32 vcc, v40, v4\n  s_cbranch_vccz 0",
    "the lane is undefined": "ds_bpermute_b32 v20, v40, v4",
}


@pytest.mark.parametrize("says", UNDEFINED)
def test_uninitialised_register(device: ModuleType, says: str) -> None:
    body, arrays = UNDEFINED[says], [np.zeros(SIZE, np.uint8)]
    good = "v_mov_b32 v40, 0\n  s_mov_b32 s40, s12\n  s_mov_b32 s41, s13\n  " + body
    loads = {"v4": (4 * LANES).astype(np.uint32)}
    run(device, good, loads, [], arrays=arrays, lds=256)
    fault(device, says, body, loads, arrays=arrays, lds=256)


def test_undefined_values_may_be_moved_about(device: ModuleType) -> None:
    """Arithmetic on them is no fault while nothing depends on it, and a lane that takes another value is defined."""
    body = """v_add_u32 v41, v40, v40
  v_cmp_eq_u32 vcc, 0, v0
  v_mov_b32 v42, 1
  v_mov_b32 v43, 2
  v_cndmask_b32 v42, v42, v43, vcc
  ds_write_b32 v4, v41
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v44, v4"""
    loads = {"v4": (4 * LANES).astype(np.uint32)}
    assert run(device, body, loads, ["v42"], lds=256)[0].tolist() == [2] + [1] * 63
    fault(device, "undefined value", body, loads, stores=["v44"], lds=256)


def test_a_result_of_a_pair_is_as_defined_as_its_own_words(device: ModuleType) -> None:
    """Compilers use one result of a packed instruction, and leave the other's sources as they are."""
    body = """v_mov_b32 v40, 1.0
  v_pk_add_f32 v[42:43], v[40:41], v[40:41]
  v_pk_mov_b32 v[44:45], v[40:41], v[40:41] op_sel:[0,1]"""
    loads = {"v4": (4 * LANES).astype(np.uint32)}
    assert run(device, body, loads, ["v42", "v44"], lds=256)[0].view(np.float32).tolist() == [2.0] * 64
    for wrong in ("v43", "v45"):
        fault(device, "stores an undefined value", body, loads, stores=[wrong], lds=256)


# ---- where it happened


def test_a_report_names_the_place(device: ModuleType) -> None:
    source = """#include <hip/hip_runtime.h>
extern "C" __global__ void reach(float* x, int n) {
  if (threadIdx.x < n)
    x[threadIdx.x + 64 * (blockIdx.x == 3)] = 1;  // here
}"""
    x = np.zeros(64, np.float32)
    with device.Module(device.compile_hip(source, "-gline-tables-only")) as module:
        module.launch("reach", 3, 64, (x, 64))
        with pytest.raises(device.Fault) as raised:
            module.launch("reach", (4, 1, 1), 64, (x, 40))
    text = str(raised.value)
    assert "reach: writes 4 bytes" in text and "workgroup (3, 0, 0), wave 0, lane 0" in text
    assert re.search(r"source .*:4\b", text)
