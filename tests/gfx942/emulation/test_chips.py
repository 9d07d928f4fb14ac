# SPDX-License-Identifier: Apache-2.0
"""Which chip's code runs: that of the device, which GFX942_CHIP chooses. Another chip's is refused, and an instruction
that the chip does not have is named."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import builds
from assembly import kernel_text
from instruction_runs import UNREADABLE

CODE_MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F}
# A word or two that only this chip has, and LLVM's name of it.
NEWER = {
    "gfx90a": ("0x7e047102, 0xbf800000", "gfx942 it is v_mov_b64"),
    "gfx942": ("0x7e0ab101", "gfx950 it is v_prng_b32"),
}


def relabelled(code: bytes, chip: str) -> bytes:
    changed = bytearray(code)
    changed[48] = CODE_MACHINES[chip]
    return bytes(changed)


@pytest.mark.parametrize("other", sorted(set(CODE_MACHINES) - {builds.CHIP}))
def test_code_of_another_chip(device: ModuleType, other: str) -> None:
    code = device.assemble(kernel_text("  s_nop 0"))
    expected = f"expected one for {builds.CHIP}, .* got one for {other}"
    with pytest.raises(device.HipError, match=expected), device.Module(relabelled(code, other)) as module:
        module.launch("kernel", 1, 64)


@pytest.mark.skipif(builds.CHIP == "gfx950", reason="no chip is newer")
def test_an_instruction_of_a_newer_chip_is_named(device: ModuleType) -> None:
    words, name = NEWER[builds.CHIP]
    code = device.assemble(kernel_text(f"  .long {words}"))
    expected = f"{builds.CHIP} has no such instruction"
    if builds.CHIP == "gfx90a":  # LLVM 19 knows gfx942, not gfx950
        expected += f".*{name}"
    with device.Module(code) as module, pytest.raises(device.HipError, match=expected):
        module.launch("kernel", 1, 64)


@pytest.mark.skipif(builds.CHIP not in UNREADABLE, reason="LLVM reads what it assembles for this chip")
def test_what_the_disassembler_does_not_read(device: ModuleType) -> None:
    """Named, not skipped over; an LLVM that reads it needs no UNREADABLE."""
    code = device.assemble(kernel_text("  v_cmpx_lt_f32_e64 s[4:5], v1, v2"))
    with device.Module(code) as module, pytest.raises(device.HipError, match="has no such instruction"):
        module.launch("kernel", 1, 64)


def test_a_chip_that_is_not_known(device: ModuleType) -> None:
    program = "import device; print(device.properties())"
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": paths, "GFX942_CHIP": "gfx90c"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert "expected gfx90a, gfx942 or gfx950, got gfx90c" in done.stdout + done.stderr


def test_the_device_is_the_chip(device: ModuleType) -> None:
    found = device.properties()
    assert found["arch"].split(":")[0] == builds.CHIP
    assert found["lds_bytes"] == (160 if builds.CHIP == "gfx950" else 64) << 10
    assert found["compute_units"] == {"gfx90a": 110, "gfx942": 304, "gfx950": 256}[builds.CHIP]


def test_all_of_the_chips_lds(device: ModuleType) -> None:
    """A block may have as much as the chip has, and no more."""
    size = device.properties()["lds_bytes"]
    body = f"""  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_add_u32 v2, {size - 256:#x}, v1
  ds_write_b32 v2, v0
  s_waitcnt lgkmcnt(0)
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v3, s[4:5]"""
    out = np.zeros(64, np.uint32)
    with device.Module(device.assemble(kernel_text(body, ["*"]))) as module:
        module.launch("kernel", 1, 64, (out,), lds=size)
        assert (out == np.arange(64)).all()
        with pytest.raises(device.HipError, match=f"{size} are the most"):
            module.launch("kernel", 1, 64, (out,), lds=size + 4)


# Wave 1 waits for the word that wave 0 stores, with no barrier between them.
WORD = """  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_readfirstlane_b32 s8, v0
  v_mov_b32 v1, 0
  v_mov_b32 v2, 7
  s_waitcnt lgkmcnt(0)
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 again
  global_store_dword v1, v2, s[4:5] {store}
  s_endpgm
again:
  global_load_dword v3, v1, s[4:5] {load}
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s9, v3
  s_cmp_eq_u32 s9, 0
  s_cbranch_scc1 again
  global_store_dword v1, v3, s[6:7]"""


@pytest.mark.parametrize("device_scope", [True, False])
def test_a_word_that_is_its_own_flag(device: ModuleType, device_scope: bool) -> None:
    """gfx90a's stores have device scope without a bit that says so."""
    load, store = ("glc", "") if builds.CHIP == "gfx90a" else ("sc1", "sc1")
    body = WORD.format(load=load if device_scope else "", store=store)
    word, copy = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    with device.schedule(1), device.Module(device.assemble(kernel_text(body, ["*"] * 2))) as module:
        if device_scope:
            module.launch("kernel", 1, 128, (word, copy))
            assert copy[0] == 7
        else:
            with pytest.raises(device.Fault, match="no barrier of the workgroup stands between"):
                module.launch("kernel", 1, 128, (word, copy))
