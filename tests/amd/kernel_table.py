# SPDX-License-Identifier: Apache-2.0
"""The table of what each GPU kernel needs of an AMD chip: docs/amd_kernels.md, and its rows for the tests.

PYTHONPATH=build_backend python tests/amd/kernel_table.py            shows it
PYTHONPATH=build_backend python tests/amd/kernel_table.py --write    writes docs/amd_kernels.md
"""

from __future__ import annotations

import re
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jobs
from code_objects import ARCHS, ROOT, Compiler, Kernel, build, gpu_objects, kernels_in
from control_flow import MACS_OF_A_UNIT, Loop, lds_writes_beside_products, matrix_loops
from kernel_notes import NOTES
from kernel_shapes import shape_of
from occupancy import FAMILIES, waves_and_blocks

PAGE = ROOT / "docs" / "amd_kernels.md"
MOST_VECTOR = 10.0  # instructions for each unit of matrix work, moves among them, without a note
CHIPS = {
    "gfx90a": "CDNA2: MI210, MI250, MI250X",
    "gfx942": "CDNA3: MI300A, MI300X, MI325X",
    "gfx1100": "RDNA3: RX 7900 (experimental: never executed)",
}


@dataclass(frozen=True)
class Row:
    arch: str
    kernel: str
    threads: int
    vgprs: int  # of both kinds
    agprs: int
    sgprs: int
    lds: int
    scratch: int
    spills: int
    sgpr_spills: int
    waves: int  # of a SIMD, by registers
    blocks: int  # of a CU, or a WGP, by registers and LDS
    planned_blocks: int  # that the plan counts on
    code_bytes: int
    least_units: float  # of matrix work, in one pass through each loop that has any
    units: float  # that are there
    fma_share: float  # of the multiply-adds of such a pass that are made one by one, in the loop that has most of them
    lds_written: int  # bytes of a lane, by all instructions of such loops
    staged: int | None  # of them, what operands and outputs explain, where that is counted
    lds_writes_beside_products: int  # on CDNA: with no barrier between
    double_buffered: bool  # they are the next chunk's
    # One pass of the loop that has most instructions around the matrix unit.
    matrix: int = 0  # instructions
    vector: float = 0  # instructions a unit of matrix work
    moves: float = 0  # between register files, a unit
    flat: int = 0

    @property
    def around(self) -> float:
        """The vector unit's instructions for a unit of matrix work, with moves."""
        return self.vector + self.moves

    @property
    def note(self) -> str:
        for archs, kernels, text in NOTES:
            if re.fullmatch(archs, self.arch) and re.fullmatch(kernels, self.kernel):
                return text
        return ""

    def cells(self) -> list[str]:
        loop = (
            [str(self.matrix), f"{self.vector:.1f}", f"{self.moves:.1f}", str(self.flat)] if self.matrix else [""] * 4
        )
        numbers = (self.threads, self.vgprs, self.agprs, self.sgprs, self.lds, self.scratch)
        spills = f"{self.spills} / {self.sgpr_spills}"
        occupancy = (f"{self.waves}", f"{self.blocks}", f"{self.code_bytes / 1024:.0f}")
        return [f"`{self.kernel}`", *map(str, numbers), spills, *occupancy, *loop]


COLUMNS = [
    *("kernel", "threads", "VGPRs", "of them acc", "SGPRs", "LDS", "scratch", "spills V / S"),
    *("waves", "blocks", "KB of code", "matrix", "vector", "acc moves", "flat"),
]


def loop_facts(loop: Loop) -> dict[str, float | int]:
    cost = loop.one_pass
    return {
        "matrix": cost.matrix,
        "vector": cost.vector / cost.units,
        "moves": cost.moves / cost.units,
        "flat": cost.flat,
    }


def fma_share(loop: Loop, lanes: int) -> float:
    single = loop.one_pass.fmas * lanes
    return single / (single + loop.one_pass.units * MACS_OF_A_UNIT)


def row_of(kernel: Kernel) -> Row | None:
    """None where the kernel is never launched."""
    shape = shape_of(kernel)
    if kernel.is_empty or shape is None:
        return None
    family = FAMILIES[kernel.family]
    threads, vgprs = kernel.note("max_flat_workgroup_size"), kernel.note("vgpr_count")
    lds = kernel.note("group_segment_fixed_size") + shape.lds
    waves, blocks = waves_and_blocks(kernel.family, threads, vgprs, lds)
    loops = matrix_loops(kernel.instructions)
    facts = [loop_facts(loop) for loop in loops]
    beside = [lds_writes_beside_products(kernel.instructions, loop) for loop in loops if kernel.family == "cdna"]
    first, last = kernel.instructions[0].address, kernel.instructions[-1].address
    return Row(
        arch=kernel.arch,
        kernel=kernel.name,
        threads=threads,
        vgprs=vgprs,
        agprs=int(kernel.notes.get("agpr_count", 0)),
        sgprs=kernel.note("sgpr_count"),
        lds=lds,
        scratch=kernel.note("private_segment_fixed_size"),
        spills=kernel.note("vgpr_spill_count"),
        sgpr_spills=kernel.note("sgpr_spill_count"),
        waves=waves,
        blocks=blocks,
        planned_blocks=shape.blocks,
        code_bytes=last - first,
        least_units=shape.units,
        units=sum(loop.one_pass.units for loop in loops),
        fma_share=max((fma_share(loop, family.lanes) for loop in loops), default=0),
        lds_written=sum(loop.all_ways.lds_written for loop in loops),
        staged=shape.staged,
        lds_writes_beside_products=sum(beside),
        double_buffered=shape.double_buffered,
        **(max(facts, key=lambda loop: loop["vector"] + loop["moves"]) if facts else {}),  # type: ignore[arg-type]
    )


def rows_in(object_file: Path) -> list[Row]:
    return [row for row in map(row_of, kernels_in(object_file)) if row]


def rows() -> list[Row]:
    """Of every kernel of the build; a process per core reads the object files."""
    with ProcessPoolExecutor(jobs.job_limit()) as pool:
        of_objects = list(pool.map(rows_in, gpu_objects()))
    found = {(row.arch, row.kernel): row for some in of_objects for row in some}  # a template may be in two objects
    return sorted(found.values(), key=lambda row: (ARCHS.index(row.arch), natural(row.kernel)))


def natural(name: str) -> list[str]:
    return [part.zfill(6) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


HEAD = """\
# AMD kernels: registers, LDS and occupancy

Made by `tests/amd/kernel_table.py --write` from the code objects of {compiler}; a test compares it with the build.
Nothing here was measured on a GPU: the figures come from the compiler's output.

- *VGPRs*: per lane, with the accumulation registers; a wave may have 512 on CDNA and 256 on RDNA3. *LDS*: bytes per
  block, with the LDS that the plan requests at launch. *scratch*: bytes per lane in memory. *spills*: of vector and of
  scalar registers; scalar registers spill into lanes of vector registers.
- *waves*: occupancy per SIMD, limited by registers. *blocks*: occupancy per CU (RDNA3: per WGP, two CUs), limited by
  registers and LDS.
- *matrix*: MFMA or WMMA instructions in one pass through the innermost loop that has any: a chunk of the walk, or a
  slice of 64 features of the scores. If the loop has several paths, the path of aligned inputs counts.
- *vector*: other vector instructions in that pass per unit of matrix work. A unit is 32x32x8 of 2-byte elements, or
  what takes as long on a gfx942 (two 16x16x16, two 16x16x32 of 8 bits, one 16x16x4 of floats). *acc moves*: moves
  between accumulation registers and others per unit, counted separately. With several loops, both columns are those of
  the loop that has most of them. *flat*: loads and stores in the pass that do not distinguish memory from LDS, and so
  wait for both.

The table leaves out kernels that no plan launches on a chip. More than {most:.0f} vector instructions per unit, moves
included, need a reason:
"""


def markdown(table: list[Row], compiler: str) -> str:
    lines = [HEAD.format(compiler=compiler, most=MOST_VECTOR).rstrip()]
    for _, _, text in NOTES:
        noted = [row for row in table if row.note == text and row.around > MOST_VECTOR]
        if noted:
            archs = ", ".join(dict.fromkeys(row.arch for row in noted))
            kernels = ", ".join(dict.fromkeys(f"`{row.kernel}`" for row in noted))
            lines += ["", *textwrap.wrap(f"- {archs}, {kernels}: {text}", 118, subsequent_indent="  ")]
    for arch in ARCHS:
        lines += ["", f"## {arch}", "", CHIPS[arch], ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in table if row.arch == arch]
    return "\n".join(lines) + "\n"


def recorded() -> tuple[str, dict[tuple[str, str], list[str]]]:
    """The compiler, and the cells by arch and kernel, of the page as it is."""
    text = PAGE.read_text(encoding="utf-8")
    compiler = re.search(r"code objects of (.*?);", text)
    cells, arch = {}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            arch = line[3:]
        elif line.startswith("| `"):
            row = [cell.strip() for cell in line.split("|")[1:-1]]
            cells[arch, row[0].strip("`")] = row
    return compiler[1] if compiler else "", cells


if __name__ == "__main__":
    build(archs=ARCHS)
    page = markdown(rows(), Compiler.of_build().version)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page)
