# SPDX-License-Identifier: Apache-2.0
"""How loops and their costs are read from instructions, on code small enough to work out by hand."""

from __future__ import annotations

import pytest

from code_objects import Instruction, parse_disassembly, parse_notes, short_name
from control_flow import Cost, cost_of, loops_of, matrix_loops


def code(*lines: str) -> list[Instruction]:
    """Each takes four bytes; `name operands`, where a branch names the index of its target."""
    found = []
    for i, line in enumerate(lines):
        name, _, operands = line.partition(" ")
        if name.startswith(("s_branch", "s_cbranch")):
            operands = str((int(operands) - i - 1) % 0x10000)
        found.append(Instruction(4 * i, name, operands))
    return found


def test_costs() -> None:
    assert cost_of(Instruction(0, "v_mfma_f32_32x32x8_bf16_1k", "")) == Cost(units=1, matrix=1)
    assert cost_of(Instruction(0, "v_mfma_f32_16x16x16_bf16", "")) == Cost(units=0.5, matrix=1)
    assert cost_of(Instruction(0, "v_mfma_f32_16x16x16bf16_1k", "")) == Cost(units=0.5, matrix=1)
    assert cost_of(Instruction(0, "v_mfma_f32_16x16x4_f32", "")) == Cost(units=1, matrix=1)
    assert cost_of(Instruction(0, "v_mfma_f32_16x16x32_fp8_fp8", "")) == Cost(units=0.5, matrix=1)
    assert cost_of(Instruction(0, "v_mfma_f32_16x16x4f32", "")) == Cost(units=1, matrix=1)
    assert cost_of(Instruction(0, "v_wmma_f32_16x16x16_f16", "")) == Cost(units=0.5, matrix=1)
    assert cost_of(Instruction(0, "v_accvgpr_read_b32", "")) == Cost(less_vector=-1, moves=1)
    assert cost_of(Instruction(0, "v_pk_fma_f32", "")) == Cost(less_vector=-1, vector=1, fmas=2)
    assert cost_of(Instruction(0, "v_fmac_f32_e32", "")) == Cost(less_vector=-1, vector=1, fmas=1)
    assert cost_of(Instruction(0, "v_fma_f64", "")) == Cost(less_vector=-1, vector=1)
    assert cost_of(Instruction(0, "flat_load_dwordx4", "")) == Cost(wide_bytes=16, flat=1)
    assert cost_of(Instruction(0, "global_load_b128", "")) == Cost(wide_bytes=16)
    assert cost_of(Instruction(0, "s_add_u32", "")) == Cost()
    assert cost_of(Instruction(0, "ds_read_b128", "")) == Cost()
    assert cost_of(Instruction(0, "ds_write_b64", "")) == Cost(lds_written=8)
    assert cost_of(Instruction(0, "ds_write_b16_d16_hi", "")) == Cost(lds_written=2)
    assert cost_of(Instruction(0, "ds_write2st64_b32", "")) == Cost(lds_written=8)
    assert cost_of(Instruction(0, "ds_store_2addr_stride64_b32", "")) == Cost(lds_written=8)


def test_one_pass_takes_the_way_with_the_matrix_work() -> None:
    program = code(
        "v_mov_b32_e32",  # 0
        "s_cbranch_execz 5",  # 1: the loop's head
        "v_mfma_f32_16x16x16_f16",  # 2
        "v_add_u32_e32",  # 3
        "s_branch 8",  # 4
        "v_add_u32_e32",  # 5: a way without
        "v_add_u32_e32",
        "v_add_u32_e32",
        "v_accvgpr_read_b32",  # 8
        "s_cbranch_scc1 1",  # 9
        "s_endpgm",
    )
    (loop,) = matrix_loops(program)
    assert loop.one_pass == Cost(units=0.5, less_vector=-2, matrix=1, vector=1, moves=1)
    assert loop.all_ways == Cost(units=0.5, less_vector=-5, matrix=1, vector=4, moves=1)


def test_the_innermost_loop_with_matrix_work_counts() -> None:
    program = code(
        "v_mov_b32_e32",  # 0
        "v_mov_b32_e32",  # 1: outer
        "v_wmma_f32_16x16x16_f16",  # 2: inner
        "v_add_u32_e32",
        "s_cbranch_scc1 2",  # 4
        "v_exp_f32_e32",  # 5: a loop without
        "s_cbranch_scc1 5",
        "s_cbranch_scc1 1",  # 7
        "s_endpgm",
    )
    assert len(loops_of(program)) == 3
    (loop,) = matrix_loops(program)
    assert loop.head == 8 and loop.one_pass.vector == 1


def test_far_jumps_are_followed_and_calls_are_not() -> None:
    program = [
        Instruction(0x100, "v_mfma_f32_16x16x16_f16", ""),
        Instruction(0x104, "s_cbranch_scc0", "4"),  # over the jump back
        Instruction(0x108, "s_getpc_b64", "s[2:3]"),
        Instruction(0x10C, "s_add_u32", "s2, s2, 0xfffffff4"),
        Instruction(0x110, "s_addc_u32", "s3, s3, -1"),
        Instruction(0x114, "s_setpc_b64", "s[2:3]"),
        Instruction(0x118, "s_endpgm", ""),
    ]
    (loop,) = matrix_loops(program)
    assert loop.head == 0x100 and loop.one_pass.matrix == 1
    with pytest.raises(ValueError, match="s_swappc_b64 at 100: calls are not followed"):
        loops_of([Instruction(0x100, "s_swappc_b64", "s[0:1], s[2:3]")])


def test_what_the_tools_print_is_read() -> None:
    notes = """\
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .offset:         0
        .size:           576
    .name:           _Z4walk
    .vgpr_count:     78
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
"""
    assert parse_notes(notes) == [{"agpr_count": "4", "name": "_Z4walk", "vgpr_count": "78"}]
    disassembly = """\
0000000000005600 <_Z4walk>:
\ts_load_dwordx2 s[2:3], s[0:1], 0x8                         // 000000005600: C0060080 00000008
\ts_cbranch_scc1 363                                         // 0000000056A4: BF85016B <_Z4walk+0x654>
\ts_endpgm                                                   // 0000000056A8: BF810000
\ts_nop 0                                                    // 0000000056AC: BF800000
"""
    assert parse_disassembly(disassembly) == {
        "_Z4walk": [
            Instruction(0x5600, "s_load_dwordx2", "s[2:3], s[0:1], 0x8"),
            Instruction(0x56A4, "s_cbranch_scc1", "363"),
            Instruction(0x56A8, "s_endpgm", ""),
        ]
    }
    assert (
        short_name(
            "void xlstm::gpu::mlstm::chunk_walk<xlstm::gpu::BFloat16, 256, 32, xlstm::gpu::mlstm::output::h>("
            "xlstm::gpu::WalkPair)"
        )
        == "chunk_walk<bf16, 256, 32, h>"
    )
    assert short_name("void xlstm::gpu::(anonymous namespace)::nothing<0>()") == "nothing"
