# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels as AMD's compiler makes them: registers, LDS, scratch, and matrix instructions in the loops.

No GPU is needed. `./scripts/test amd` compiles what is looked at here: for gfx942, and with `ci` for all chips.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time

import pytest

import code_objects
import kernel_table
from code_objects import Compiler, built_archs
from kernel_notes import NOTES, OF_CDNA, WITHOUT_MATRICES, may_spill
from kernel_table import MOST_VECTOR, Row
from occupancy import FAMILIES, LDS_BYTES
from shortfalls import crowded_out, products_beside_the_matrix_unit, round_trips
from xlstm_hip import _native

pytestmark = pytest.mark.amd
CDNA = ("gfx90a", "gfx942")
OUTPUTS = code_objects.ROOT / "test_outputs"
AGAIN = "PYTHONPATH=build_backend python tests/amd/kernel_table.py --write"


@pytest.fixture(scope="session")
def table() -> list[Row]:
    try:
        code_objects.build()
    except code_objects.NoCompiler as error:
        pytest.skip(f"no compiler for AMD GPUs; ./scripts/test amd installs one as root: {error}")
    rows = kernel_table.rows()
    folder = OUTPUTS / time.strftime("amd_%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "amd_kernels.md").write_text(kernel_table.markdown(rows, Compiler.of_build().version))
    with (folder / "amd_kernels.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")
    print(f"written to {folder}")
    return rows


def text(rows: list[Row], *facts: str) -> str:
    """For the message of a failed check."""
    return "\n".join(f"{r.arch} {r.kernel}: " + ", ".join(f"{f} {getattr(r, f)}" for f in facts) for r in rows)


def test_every_chip_has_the_kernels(table: list[Row]) -> None:
    templates = {arch: {row.kernel.partition("<")[0] for row in table if row.arch == arch} for arch in built_archs()}
    expected = templates["gfx942"]
    assert {"chunk_walk", *OF_CDNA, "chunk_scores", "recurrent_step", "recurrent_tokens"} <= expected
    assert all(found | OF_CDNA == expected for found in templates.values())


def test_no_scratch_and_no_spills(table: list[Row]) -> None:
    bad = [row for row in table if (row.spills or row.scratch) and not may_spill(row.arch, row.kernel)]
    assert not bad, "\n" + text(bad, "scratch", "spills", "vgprs", "agprs")


def test_lds_fits_a_block(table: list[Row]) -> None:
    bad = [row for row in table if row.lds > LDS_BYTES]
    assert not bad, "\n" + text(bad, "lds")
    for family in FAMILIES:
        for element_bytes in (2, 4):
            for rows in (64, 128, 256, 512):
                shapes = [_native.walk_shape(family, element_bytes, rows, chunk) for chunk in (32, 16)]
                assert min(shape["lds_bytes"] for shape in shapes if shape) <= LDS_BYTES, (family, element_bytes, rows)


def test_as_many_blocks_fit_a_compute_unit_as_plans_count_on(table: list[Row]) -> None:
    bad = crowded_out(table)
    assert not bad, "\n" + text(bad, "blocks", "planned_blocks", "waves", "threads", "vgprs", "lds")
    walks = {
        row.planned_blocks
        for row in table
        if row.arch in CDNA and re.fullmatch(r"chunk_walk(_cdna)?<.*, (64|128), .*", row.kernel)
    }
    assert walks == {2}, "a second walk hides latency"


def test_matrix_products_are_made_by_the_matrix_unit(table: list[Row]) -> None:
    multiplying = [row for row in table if row.kernel.partition("<")[0] not in WITHOUT_MATRICES]
    idle = [row for row in multiplying if not row.matrix]
    assert not idle, "no MFMA or WMMA in a loop (kernel_notes.py lists the kernels that need none)\n" + text(idle)
    unknown = [row for row in multiplying if not row.least_units]
    assert not unknown, "kernel_shapes.py must say what they multiply\n" + text(unknown, "units")
    bad = products_beside_the_matrix_unit(table)
    assert not bad, "products beside the matrix unit\n" + text(bad, "units", "least_units", "fma_share")


def test_sums_of_the_walks_stay_in_registers(table: list[Row]) -> None:
    """A state that is summed up feeds the next product from there: LDS has what comes from memory and goes there."""
    bad = round_trips(table)
    assert not bad, "\n" + text(bad, "lds_written", "staged", "lds_writes_beside_products")
    counted = {row.kernel.partition("<")[0] for row in table if row.staged is not None}
    assert counted == {"chunk_walk", "chunk_walk_cdna", "chunk_walk_wide"}
    walks = [row for row in table if row.kernel.startswith(("chunk_walk<", "chunk_walk_cdna<"))]
    moved = [row for row in walks if row.arch in CDNA and row.moves]
    assert not moved, "between register files, in every chunk\n" + text(moved, "moves", "agprs")


def test_vector_instructions_around_the_matrix_unit(table: list[Row]) -> None:
    """At most ten a unit, moves among them; with a note, not over a tenth more than docs/amd_kernels.md has."""
    many = [row for row in table if row.around > MOST_VECTOR]
    unexplained = [row for row in many if not row.note]
    assert not unexplained, "a note in kernel_notes.py must say what for\n" + text(unexplained, "vector", "moves")
    _, cells = kernel_table.recorded()
    columns = [kernel_table.COLUMNS.index(column) for column in ("vector", "acc moves")]
    before = {key: sum(float(row[index]) for index in columns) for key, row in cells.items() if row[columns[0]]}
    worse = [row for row in many if row.around > 1.1 * before.get((row.arch, row.kernel), MOST_VECTOR) + 0.1]
    assert not worse, f"more than docs/amd_kernels.md has; on purpose? {AGAIN}\n" + text(worse, "vector", "moves")


def test_every_note_is_of_a_kernel(table: list[Row]) -> None:
    for archs, kernels, _ in NOTES:
        if any(re.fullmatch(archs, arch) for arch in built_archs()):
            assert any(re.fullmatch(archs, r.arch) and re.fullmatch(kernels, r.kernel) for r in table), (archs, kernels)
    assert {row.kernel.partition("<")[0] for row in table} >= WITHOUT_MATRICES


def test_the_page_is_not_stale(table: list[Row]) -> None:
    """Row by row of the chips that the build has; the figures of another compiler may differ."""
    compiler, every_chip = kernel_table.recorded()
    now = {(row.arch, row.kernel): row.cells() for row in table}

    def is_built(arch: str, kernel: str) -> bool:
        has_all_types = arch not in code_objects.bfloat16_archs() or (arch, kernel) in now
        return arch in built_archs() and (has_all_types or not re.search(r"\b(fp16|fp32|Float16Weights)\b", kernel))

    cells = {key: row for key, row in every_chip.items() if is_built(*key)}
    assert set(cells) == set(now), f"docs/amd_kernels.md lists other kernels: {AGAIN}"
    if compiler != Compiler.of_build().version:
        pytest.skip(f"docs/amd_kernels.md is of {compiler}, this is {Compiler.of_build().version}")
    changed = [key for key, row in now.items() if row != cells[key]]
    assert not changed, f"docs/amd_kernels.md has other figures for {changed}: {AGAIN}"
