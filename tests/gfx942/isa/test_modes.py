# SPDX-License-Identifier: Apache-2.0
"""Vector instructions that are skipped (s_setvskip), and registers by an index (s_set_gpr_idx_on): what their effect
does not reach. What they do with plain instructions is in written_cases.py."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import builds
from assembly import kernel_text
from wave_programs import WAVE, run

LANES = np.arange(WAVE, dtype=np.uint32)
SKIPPED = """v_mov_b32 v20, 7
  ds_write_b32 v4, v4
  s_waitcnt lgkmcnt(0)
  global_load_dword v21, v4, s[12:13]
  s_setvskip -1, 0
  v_mov_b32 v20, 8
  ds_write_b32 v4, v20
  global_store_dword v4, v20, s[12:13]
  global_load_dword v22, v40, s[12:13]
  v_mfma_f32_4x4x1_16b_f32 v[24:27], v20, v20, 0
  s_mov_b32 s40, 5
  s_waitcnt vmcnt({0})
  s_setvskip 0, 0
  v_add_u32 v21, s40, v21
  ds_read_b32 v23, v4
  s_waitcnt lgkmcnt(0)"""

if builds.CHIP == "gfx90a":
    SKIPPED = SKIPPED.replace("v_mfma_f32_4x4x1_16b_f32", "v_mfma_f32_4x4x1f32")


def test_what_is_skipped(device: ModuleType) -> None:
    """Arithmetic, matrices, LDS and memory, whose counters stay as they were; scalar instructions go on."""
    memory = LANES + 100
    loads = {"v4": 4 * LANES, **{f"v{24 + k}": k for k in range(4)}}
    stores = ["v20", "v21", "v23", "v24", "v27"]
    found = run(device, SKIPPED.format(0), loads, stores, arrays=[memory], lds=256)
    assert np.array_equal(found, [LANES * 0 + 7, LANES + 105, 4 * LANES, LANES * 0, LANES * 0 + 3])
    assert np.array_equal(memory, LANES + 100)
    with pytest.raises(device.Fault, match="v21 is used before"):  # the skipped load and store count for nothing
        run(device, SKIPPED.format(1), loads, stores, arrays=[memory], lds=256)


def test_the_mode_register_shows_both(device: ModuleType) -> None:
    body = """s_setvskip -1, 0
  s_getreg_b32 s40, hwreg(HW_REG_MODE, 27, 2)
  s_setvskip 0, 0
  s_set_gpr_idx_on 0, gpr_idx(SRC0)
  s_getreg_b32 s41, hwreg(HW_REG_MODE, 27, 2)
  s_set_gpr_idx_off
  v_mov_b32 v20, s40
  v_mov_b32 v21, s41"""
    assert run(device, body, {}, ["v20", "v21"])[:, 0].tolist() == [2, 1]


@pytest.mark.parametrize(
    "instruction",
    [
        "v_readfirstlane_b32 s40, v4",
        "v_mov_b32_dpp v20, v4 row_shl:1 row_mask:0xf bank_mask:0xf",
        "v_mov_b32_sdwa v20, v4 dst_sel:DWORD src0_sel:WORD_1",
        "ds_write_b32 v4, v4",
        "global_load_dword v20, v4, s[12:13]",
        "v_mov_b32 v20, v252",
    ],
)
def test_what_has_no_index(device: ModuleType, instruction: str) -> None:
    body = f"s_set_gpr_idx_on 4, gpr_idx(SRC0)\n  {instruction}\n  s_set_gpr_idx_off"
    with pytest.raises(device.Fault, match="not implemented"):
        run(device, body, {"v4": 4 * LANES, "v252": 0}, [], arrays=[LANES.copy()], lds=256)


def test_another_overflow_is_refused(device: ModuleType) -> None:
    """FP16_OVFL makes the largest number of what exceeds it, in conversions to 16 and 8 bits: nothing here knows it."""
    text = kernel_text("  s_nop 0").replace(".amdhsa_ieee_mode", ".amdhsa_fp16_overflow 1\n  .amdhsa_ieee_mode")
    with pytest.raises(device.Fault, match="sets FP16_OVFL, which is not implemented"):
        device.Module(device.assemble(text)).launch("kernel", 1, 64)
    with pytest.raises(device.Fault, match="only MODE's bits 0 to 9 can be set"):
        run(device, "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1", {}, ["v0"])
