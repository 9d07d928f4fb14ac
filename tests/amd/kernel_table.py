# SPDX-License-Identifier: Apache-2.0
"""The table of what each GPU kernel needs of an AMD chip: docs/amd_kernels.md, and its rows for the tests.

PYTHONPATH=build_backend python tests/amd/kernel_table.py            shows it
PYTHONPATH=build_backend python tests/amd/kernel_table.py --write    writes docs/amd_kernels.md
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from code_objects import ARCHS, ROOT, Compiler, Kernel, all_kernels, build
from control_flow import MACS_OF_A_UNIT, Loop, matrix_loops
from kernel_notes import NOTES
from occupancy import FAMILIES, SHARED_LDS, SIMDS
from xlstm_hip import _native

PAGE = ROOT / "docs" / "amd_kernels.md"
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
LDS_BYTES = 64 << 10  # that a block may have, on all of them
MOST_VECTOR = 10.0  # instructions for each unit of matrix work, without a note
CHIPS = {
    "gfx90a": "CDNA2: MI210, MI250, MI250X",
    "gfx942": "CDNA3: MI300A, MI300X, MI325X",
    "gfx1100": "RDNA3: RX 7900",
}


def walk_shape(kernel: Kernel) -> dict[str, int] | None:
    element, rows, chunk = kernel.arguments[:3]
    return _native.walk_shape(kernel.family, ELEMENT_BYTES[element], int(rows), int(chunk))


def dynamic_lds(kernel: Kernel) -> int | None:
    """What a launch asks for; None where no plan launches this kernel on its family."""
    if kernel.template == "walk":
        shape = walk_shape(kernel)
        return shape["lds_bytes"] if shape and shape["lds_bytes"] <= LDS_BYTES else None
    if kernel.template == "scores":
        element, chunk, backward = kernel.arguments[:3]
        if not _native.walk_shape(kernel.family, ELEMENT_BYTES[element], 64, int(chunk)):
            return None
        return _native.scores_lds_bytes(kernel.family, ELEMENT_BYTES[element], int(chunk), backward == "true")
    if kernel.template == "decode":
        element, dqk, dv = kernel.arguments[:3]
        return _native.decode_lds_bytes(kernel.family, ELEMENT_BYTES[element], int(dqk), int(dv))
    if kernel.template == "mla":
        _, rows, features, ahead = kernel.arguments
        return _native.mla_lds_bytes(kernel.family, int(rows), int(features), ahead == "true")
    if kernel.template == "matrix_products":  # as for the inputs of xLSTM-7B's blocks
        weights, batch, rows = kernel.arguments
        bits, converted = {"ByteWeights": 8, "NibbleWeights": 4}.get(weights, 16), weights != "Bfloat16Weights"
        return _native.matrix_lds_bytes(kernel.family, bits, converted, int(batch), int(rows), 4096)
    if kernel.template == "attention_gradients":
        element, dqk, dv, _, of_keys = kernel.arguments
        bytes_of = ELEMENT_BYTES[element]
        return _native.attention_gradients_lds_bytes(kernel.family, bytes_of, int(dqk), int(dv), of_keys == "true")
    return 0


def walk_units(kernel: Kernel) -> float:
    """The matrix work of one wave for one chunk, without the scores: a C, and x^T y."""
    shape = walk_shape(kernel)
    assert shape
    element, rows, chunk = kernel.arguments[0], int(kernel.arguments[1]), int(kernel.arguments[2])
    waves = shape["threads"] // FAMILIES[kernel.family].lanes
    # Floats: CDNA's own instruction takes 8 times as long, RDNA3 makes 6 products of parts.
    times = 1 if ELEMENT_BYTES[element] == 2 else 8 if kernel.family == "cdna" else 6
    return 2 * times * chunk * rows * shape["y_tile"] / waves / MACS_OF_A_UNIT


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
    code_bytes: int
    matrix: int = 0  # instructions in one pass through a loop; the loop that is worst in `vector`
    vector: float = 0  # instructions a unit of matrix work
    moves: float = 0
    flat: int = 0  # in one pass
    units: float = 0  # of matrix work in that pass
    least_units: float = 0  # that the kernel must have there
    fma_share: float = 0  # of the multiply-adds of a pass that are made one by one

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


def loop_facts(loop: Loop, lanes: int) -> dict[str, float | int]:
    cost = loop.one_pass
    single = cost.fmas * lanes
    return {
        "matrix": cost.matrix,
        "units": cost.units,
        "vector": cost.vector / cost.units,
        "moves": cost.moves / cost.units,
        "flat": cost.flat,
        "fma_share": single / (single + cost.units * MACS_OF_A_UNIT),
    }


def row_of(kernel: Kernel) -> Row | None:
    """None where the kernel is never launched."""
    dynamic = dynamic_lds(kernel)
    if kernel.is_empty or dynamic is None:
        return None
    family = FAMILIES[kernel.family]
    threads, vgprs = kernel.note("max_flat_workgroup_size"), kernel.note("vgpr_count")
    lds = kernel.note("group_segment_fixed_size") + dynamic
    waves, of_block = family.waves(vgprs), threads // family.lanes
    by_lds = SHARED_LDS[kernel.family] // lds if lds else SIMDS * family.most_waves
    loops = [loop_facts(loop, family.lanes) for loop in matrix_loops(kernel.instructions)]
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
        blocks=min(waves * SIMDS // of_block, by_lds),
        code_bytes=last - first,
        least_units=walk_units(kernel) if kernel.template == "walk" else 0,
        **(max(loops, key=lambda loop: loop["vector"]) if loops else {}),  # type: ignore[arg-type]
    )


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        kernels = all_kernels(Path(scratch))
    found = {(row.arch, row.kernel): row for row in map(row_of, kernels) if row}  # a template may be in two objects
    return sorted(found.values(), key=lambda row: (ARCHS.index(row.arch), natural(row.kernel)))


def natural(name: str) -> list[str]:
    return [part.zfill(6) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


HEAD = """\
# What the GPU kernels need of an AMD chip

Made by `tests/amd/kernel_table.py --write` from the code objects of {compiler}; a test holds it to the build. Nothing
here was measured on a GPU: it is what the compiler made, and what follows from it.

- *VGPRs*: of a lane, accumulation registers among them; a wave on CDNA may have 512, on RDNA3 256. *LDS*: of a block,
  in bytes, with what the plan asks for at launch. *scratch*: bytes of a lane in memory. *spills*: of vector and of
  scalar registers; the latter go into lanes of vector registers.
- *waves*: of a SIMD at once, by registers. *blocks*: of a CU (RDNA3: of a WGP, two CUs) at once, by registers and LDS.
- *matrix*: MFMA or WMMA instructions in one pass through the innermost loop that has any: a chunk of the walk, a slice
  of 64 features of the scores. Of the ways through it, the one that aligned inputs take.
- *vector*: other vector instructions in that pass for each unit of matrix work: 32x32x8 of 2-byte elements, or what
  takes as long on a gfx942 (two 16x16x16, one 16x16x4 of floats). *acc moves*: between accumulation registers and
  others, counted apart. *flat*: loads and stores in the pass that do not say whether they mean memory or LDS, and so
  wait for both.

A kernel that no plan launches on a chip is left out. More than {most:.0f} vector instructions a unit need a reason:
"""


def markdown(table: list[Row], compiler: str) -> str:
    lines = [HEAD.format(compiler=compiler, most=MOST_VECTOR).rstrip()]
    for _, _, text in NOTES:
        noted = [row for row in table if row.note == text and row.vector > MOST_VECTOR]
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
    build()
    page = markdown(rows(), Compiler.of_build().version)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page)
