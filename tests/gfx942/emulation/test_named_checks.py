# SPDX-License-Identifier: Apache-2.0
"""Each named check: it ends the run by default, and where it is a warning the run goes on as its text says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import builds
from assembly import kernel_text
from memory_models import content, descriptor, with_descriptor
from wave_programs import WAVE, run

LANES = np.arange(WAVE)
TWO_WAVES = 2 * WAVE
FOUR = (4 * LANES).astype(np.uint32)
# Wave 0 writes v6, and then wave 1 does.
BOTH_WRITE = """v_and_b32 v4, 63, v0
  v_lshlrev_b32 v4, 2, v4
  v_lshrrev_b32 v5, 6, v0
  v_mov_b32 v6, {0}
  ds_write_b32 v4, v6
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v20, v4
  s_waitcnt lgkmcnt(0)"""


# The workgroup whose number is the second argument sets the flag; the others wait for it.
WAITS_FOR_THE_LAST = """  s_load_dwordx2 s[8:9], s[0:1], 0x0
  s_load_dword s10, s[0:1], 0x8
  v_mov_b32 v1, 0
  v_mov_b32 v2, 1
  s_waitcnt lgkmcnt(0)
  s_cmp_lg_u32 s2, s10
  s_cbranch_scc1 again
  global_atomic_swap v1, v2, s[8:9]
  s_endpgm
again:
  v_mov_b32 v2, 0
  global_atomic_or v3, v1, v2, s[8:9] RETURNS
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s11, v3
  s_cmp_eq_u32 s11, 0
  s_cbranch_scc1 again""".replace("RETURNS", "glc" if builds.CHIP == "gfx90a" else "sc0")


def undefined(device: ModuleType) -> None:
    run(device, "v_add_u32 v20, 1, v40", {}, ["v20"])


def wait(device: ModuleType) -> None:
    body = "global_load_dword v20, v4, s[12:13]\n  v_add_u32 v21, 1, v20"
    assert np.array_equal(run(device, body, {"v4": FOUR}, ["v21"], arrays=[FOUR])[0], FOUR + 1)


def lds_race(device: ModuleType) -> None:
    found = run(device, BOTH_WRITE.format("v5"), {}, ["v20"], threads=TWO_WAVES, lds=256)[0]
    assert np.all(found == 1)


def lds_same_bytes(device: ModuleType) -> None:
    found = run(device, BOTH_WRITE.format("v4"), {}, ["v4", "v20"], threads=TWO_WAVES, lds=256)
    assert np.array_equal(found[0], found[1])


def lds_wait(device: ModuleType) -> None:
    body = """v_lshlrev_b32 v4, 2, v0
  v_xor_b32 v5, 0x100, v4
  ds_write_b32 v4, v0
  s_barrier
  ds_read_b32 v20, v5
  s_waitcnt lgkmcnt(0)"""
    found = run(device, body, {}, ["v20"], threads=TWO_WAVES, lds=512)[0]
    assert np.array_equal(found, np.arange(TWO_WAVES) ^ WAVE)


def divergent_barrier(device: ModuleType) -> None:
    """What each wave writes, the other one reads behind its own barrier."""
    body = """v_lshlrev_b32 v4, 2, v0
  v_xor_b32 v5, 0x100, v4
  ds_write_b32 v4, v0
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s16, v0
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc1 other
  s_barrier
  s_branch past
other:
  s_barrier
past:
  ds_read_b32 v20, v5
  s_waitcnt lgkmcnt(0)"""
    found = run(device, body, {}, ["v20"], threads=TWO_WAVES, lds=512)[0]
    assert np.array_equal(found, np.arange(TWO_WAVES) ^ WAVE)


def ended_barrier(device: ModuleType) -> None:
    body = """v_readfirstlane_b32 s16, v0
  s_cmp_eq_u32 s16, 0
  s_cbranch_scc1 past
  s_barrier
past:
  v_mov_b32 v20, v0"""
    assert np.array_equal(run(device, body, {}, ["v20"], threads=TWO_WAVES)[0], np.arange(TWO_WAVES))


def buffer_offset(device: ModuleType) -> None:
    """with_descriptor() has 32 in s20: the last eight lanes are beyond by it."""
    memory = content()
    body = with_descriptor("  buffer_load_dword v20, v4, s[16:19], s20 offen")
    found = run(device, body, {"v4": FOUR}, ["v20"], arrays=[memory, descriptor(memory, 256)])[0]
    assert np.array_equal(found, np.where(LANES < 56, memory.view(np.uint32)[8 + LANES], 0))


def buffer_stride(device: ModuleType) -> None:
    """Without an index the records are bytes. With one, an offset goes on into the next record."""
    memory = content()
    dwords = memory.view(np.uint32)
    for operands, records, expected in (
        ("v4, s[16:19], 0 offen", 128, np.where(LANES < 32, dwords[LANES], 0)),
        ("v5, s[16:19], 0 idxen offset:256", 64, dwords[4 * LANES + 64]),
    ):
        body = with_descriptor(f"  buffer_load_dword v20, {operands}")
        loads = {"v4": FOUR, "v5": LANES.astype(np.uint32)}
        found = run(device, body, loads, ["v20"], arrays=[memory, descriptor(memory, records, 16)])[0]
        assert np.array_equal(found, expected), operands


def ieee_mode(device: ModuleType) -> None:
    """v_max quietens a signalling NaN only with MODE.ieee."""
    found = run(device, "v_max_f32 v20, v4, v4", {"v4": 0x7F800001}, ["v20"], ieee=False)[0]
    assert np.all(found == 0x7F800001)


def argument_block(device: ModuleType) -> None:
    body = """  s_load_dwordx4 s[8:11], s[0:1], 0x0
  v_mov_b32 v1, 0
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v2, s10
  v_mov_b32 v3, s11
  global_store_dwordx2 v1, v[2:3], s[8:9]"""
    found = np.zeros(2, np.uint32)
    with device.Module(device.assemble(kernel_text(body, ["*", 4, 4]))) as module:
        block = found.ctypes.data.to_bytes(8, "little") + (7).to_bytes(4, "little")
        module.launch_block("kernel", 1, WAVE, block, [found])
    assert found.tolist() == [7, 0xFFFFFFFF]


def deadlock(device: ModuleType) -> None:
    """A workgroup has all LDS of its compute unit and waits for the last one, which has no unit left to begin on."""
    units, memory = device.properties()["compute_units"], device.properties()["lds_bytes"]
    flag = np.zeros(1, np.uint32)
    with device.schedule(1), device.Module(device.assemble(kernel_text(WAITS_FOR_THE_LAST, ["*", 4]))) as module:
        module.launch("kernel", units + 1, WAVE, (flag, units), lds=memory)
    assert flag[0] == 1


def memory_order(device: ModuleType) -> None:
    """Two waves of a workgroup store to the same bytes of memory."""
    x = np.zeros(1, np.uint32)
    with device.schedule(1):
        run(device, "v_mov_b32 v4, 0\n  global_store_dword v4, v0, s[12:13]", {}, [], threads=TWO_WAVES, arrays=[x])
    assert x[0] in range(TWO_WAVES)


CASES: dict[str, Callable[[ModuleType], None]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        undefined, wait, lds_race, lds_wait, lds_same_bytes, divergent_barrier, ended_barrier, buffer_offset,
        buffer_stride, ieee_mode, argument_block, deadlock,
        memory_order,
    )
}  # fmt: skip


def test_every_check_is_tested(device: ModuleType) -> None:
    assert [check.name for check in device.checks()] == list(CASES)
    assert {check.mode for check in device.checks()} == {"error"}


@pytest.mark.parametrize("name", CASES)
def test_a_check_ends_the_run(device: ModuleType, name: str) -> None:
    others = [other for other in CASES if other != name]
    with device.warn(*others), pytest.raises(device.HipError, match=rf"\(check {name}\)"):
        CASES[name](device)


@pytest.mark.parametrize("name", CASES)
def test_a_check_warns(device: ModuleType, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with device.warn(name) as warnings:
        CASES[name](device)
    assert {w.check for w in warnings} == {name} and all(w.times and f"(check {name})" in w.text for w in warnings)
    printed = capfd.readouterr().err
    assert printed.count("gfx942: warning: kernel: ") == len(warnings) and f"(check {name})" in printed
    with pytest.raises(device.HipError, match=rf"\(check {name}\)"):
        CASES[name](device)


def test_a_place_is_printed_once_and_counted(device: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    body = """s_mov_b32 s16, 5
again:
  v_add_u32 v20, 1, v40
  global_store_dword v4, v20, s[12:13]
  s_sub_u32 s16, s16, 1
  s_cmp_lg_u32 s16, 0
  s_cbranch_scc1 again"""
    with device.warn("undefined") as warnings:
        run(device, body, {"v4": FOUR}, [], arrays=[FOUR.copy()])
    (found,) = warnings
    assert found.times == 5 and "workgroup (0, 0, 0), wave 0, lane 0" in found.text
    assert capfd.readouterr().err.count("stores an undefined value") == 1


@pytest.mark.parametrize(
    "name, mode, says",
    [
        ("wait", "maybe", "expected warn or error, got"),
        ("lds-races", "warn", "no check .lds-races.; expected one of"),
    ],
)
def test_words_that_are_no_check(device: ModuleType, name: str, mode: str, says: str) -> None:
    with pytest.raises(device.HipError, match=says):
        device.hip("gfx942_set_check", name.encode(), mode.encode())


@pytest.mark.parametrize(
    "variable, modes, says",
    [
        ("wait=warn,lds-race=warn", {"wait", "lds-race"}, ""),
        ("all=warn,wait=error", set(CASES) - {"wait"}, ""),
        ("wait", set(), 'GFX942_CHECKS: expected name=warn or name=error, got "wait"'),
        ("none=warn", set(), 'there is no check "none"'),
    ],
)
def test_the_environment_variable(device: ModuleType, variable: str, modes: set[str], says: str) -> None:
    """A process of its own reads it."""
    code = "import device; print([check.name for check in device.checks() if check.mode == 'warn'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GFX942_CHECKS": variable, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=builds.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if says:
        assert done.returncode and says in done.stderr
    else:
        assert set(eval(done.stdout)) == modes
