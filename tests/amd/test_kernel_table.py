# SPDX-License-Identifier: Apache-2.0
"""Planted faults that the checks of the table catch: kernels that are planted, as disassembly and notes would have
them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from code_objects import Instruction, Kernel
from kernel_table import Row, row_of
from shortfalls import crowded_out, products_beside_the_matrix_unit, round_trips

MFMA, WMMA, FMA = "v_mfma_f32_16x16x16_bf16", "v_wmma_f32_16x16x16_bf16", "v_fmac_f32_e32"
NOTES = {
    "max_flat_workgroup_size": "256",
    "vgpr_count": "128",
    "sgpr_count": "100",
    "group_segment_fixed_size": "0",
    "private_segment_fixed_size": "0",
    "vgpr_spill_count": "0",
    "sgpr_spill_count": "0",
}


def loops(*bodies: list[str]) -> list[Instruction]:
    """One after the other; each instruction takes four bytes."""
    names: list[tuple[str, str]] = []
    for body in bodies:
        names += [(name, "") for name in body]
        names.append(("s_cbranch_scc1", str((-len(body) - 1) % 0x10000)))
    return [Instruction(4 * i, name, operands) for i, (name, operands) in enumerate([*names, ("s_endpgm", "")])]


def row(name: str, *bodies: list[str], arch: str = "gfx942", **notes: int) -> Row:
    found = row_of(Kernel(name, arch, {**NOTES, **{k: str(v) for k, v in notes.items()}}, loops(*bodies)))
    assert found
    return found


# Kernel, and how many MFMA of half a unit its products take in a pass of four waves, loop by loop.
PRODUCTS = [
    ("chunk_walk<bf16, 128, 32, h>", [72]),
    ("chunk_walk_cdna<bf16, 128, 32, h>", [72]),
    ("chunk_walk_wide<bf16, 32, h>", [40]),
    ("chunk_scores<bf16, 32, false>", [8]),
    ("chunk_scores<bf16, 32, true>", [8, 8]),
    ("forward_kernel<bf16, 128, 128, false>", [128]),
    ("probabilities_kernel<bf16, 128, 128>", [64]),
    ("decode_kernel<bf16, 128, 128, false>", [32]),
    ("mla_kernel<bf16, 64, 576, false>", [136]),
    ("mla_cdna_kernel<bf16, 576>", [272]),
    ("dkdv_kernel<bf16, 128, 128, false>", [128]),
    ("dq_kernel<bf16, 128, 128, false>", [96]),
    ("gemm_batch_kernel<Bfloat16Weights, 4>", [32]),
]


@pytest.mark.parametrize(("name", "counts"), PRODUCTS)
def test_a_product_made_one_by_one_is_caught(name: str, counts: list[int]) -> None:
    matrix_row = row(name, *([MFMA] * count for count in counts))
    assert not products_beside_the_matrix_unit([matrix_row])
    *first_counts, last = counts
    unchanged = [[MFMA] * count for count in first_counts]
    less = row(name, *unchanged, [MFMA] * (last - 1) + [FMA] * 64)
    assert products_beside_the_matrix_unit([less]) == [less]
    beside = row(name, *unchanged, [MFMA] * last + [FMA] * 64 * last)
    assert products_beside_the_matrix_unit([beside]) == [beside]


def test_a_second_loop_of_multiply_adds_is_caught() -> None:
    """The loop with matrix work is as it should be; the other one has none, and was not looked at."""
    half = row("chunk_scores<bf16, 32, true>", [MFMA] * 8, [FMA] * 512)
    assert half.units == 4 and half.least_units == 8
    assert products_beside_the_matrix_unit([half]) == [half]


def test_floats_on_rdna_are_six_products() -> None:
    matrix_row = row("chunk_scores<fp32, 16, false>", [WMMA] * 24, arch="gfx1100", max_flat_workgroup_size=128)
    assert matrix_row.units == matrix_row.least_units == 12


def test_moves_between_register_files_count() -> None:
    moving = row("chunk_scores<bf16, 32, false>", [MFMA] * 8 + ["v_mov_b32_e32"] * 20 + ["v_accvgpr_read_b32"] * 24)
    assert (moving.vector, moving.moves, moving.around) == (5, 6, 11)


def test_a_block_less_than_planned_is_caught() -> None:
    planned = row("chunk_walk<bf16, 128, 32, h>", [MFMA] * 72, vgpr_count=256)
    assert planned.blocks == planned.planned_blocks == 2
    by_registers = row("chunk_walk<bf16, 128, 32, h>", [MFMA] * 72, vgpr_count=264)
    by_lds = row("chunk_walk<bf16, 128, 32, h>", [MFMA] * 72, group_segment_fixed_size=8 << 10)
    assert crowded_out([planned, by_registers, by_lds]) == [by_registers, by_lds]


def test_lds_that_launches_ask_for_counts() -> None:
    assert row("forward_kernel<bf16, 128, 128, false>", [MFMA] * 128).lds == 32 << 10
    assert row("probabilities_kernel<bf16, 128, 128>", [MFMA] * 64).lds == 32 << 10
    assert row("chunk_walk_wide<bf16, 32, h>", [MFMA] * 40).lds == row("chunk_walk<bf16, 64, 32, h>", [MFMA] * 40).lds


def test_a_state_that_goes_through_lds_is_caught() -> None:
    staging = ["ds_write_b128"] * 4 + ["s_barrier"]
    fine = row("chunk_walk<bf16, 128, 32, h>", staging + [MFMA] * 72 + ["s_barrier"])
    assert (fine.lds_written, fine.lds_writes_beside_products) == (64, 0)
    between = row(
        "chunk_walk<bf16, 128, 32, h>", staging + [MFMA] * 36 + ["ds_write2st64_b32"] + [MFMA] * 36 + ["s_barrier"]
    )
    assert (between.lds_written, between.lds_writes_beside_products) == (72, 1)
    state = ["ds_write_b128"] * (128 * 32 * 4 // 64 // 16) + ["s_barrier"]
    behind_a_barrier = row("chunk_walk<bf16, 128, 32, h>", staging + state + [MFMA] * 72 + ["s_barrier"])
    assert behind_a_barrier.lds_writes_beside_products == 0
    assert round_trips([fine, between, behind_a_barrier]) == [between, behind_a_barrier]
    assert not round_trips([replace(between, staged=None)]), "of kernels that are not counted nothing is said"
