# SPDX-License-Identifier: Apache-2.0
"""The package's kernels in the calls of roofline_shapes.py, run as gfx942 code, and what binds each on an MI300X.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support
python tests/gfx942/roofline/rooflines.py            shows the tables
python tests/gfx942/roofline/rooflines.py --write    and writes docs/amd_roofline.*
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable

import builds
import device
import emulated_torch
import roofline
from code_objects import short_name
from roofline import Row
from roofline_shapes import SHAPES, Shape

DOCS = builds.ROOT / "docs"
PAGE, DATA, PICTURE = (DOCS / f"amd_roofline.{end}" for end in ("md", "json", "png"))
LEAST_SHARE = 0.5  # of MFMA peak with everything overlapped, or a note

# (kernel as a regular expression, why it stays below): shown under the tables, and what a test asks for.
NOTES = (
    (
        r"(chunk_walk|segment_states)_cdna<bf16, .*",
        "the vector unit binds, in short segments the scalar unit. Its waves have 128 rows of the state each, which "
        "share the fixed cost of a chunk: addresses, weighting and rounding of operands, the sum of outputs through "
        "LDS. Waves of 256 rows would need more registers than two waves of a SIMD have.",
    ),
    (
        r"chunk_scores_cdna<.*",
        "the vector unit binds: a score is 256 multiply-adds, and also an exp, products with gates, sums over "
        "rows and columns, and rounding; rows of k and q are weighted and summed, too. This kernel takes a tenth of "
        "the walks' time.",
    ),
    (
        r"decode_kernel<.*",
        "memory binds: 16 rows share a key, of which a group of four heads fills 4, and each unit needs a "
        "fraction of the time of loading the key.",
    ),
    (
        r"gemm_row_cdna_kernel<.*",
        "one row of x is few of the matrix unit's 16. Memory binds, for the time in the column `memory`; with 4-bit "
        "weights, which are multiplied as bytes, the vector unit and L1 need half of that: two loads of three are of "
        "scales and offsets.",
    ),
    (
        r"gemm_(mma|batch)_kernel<.*",
        "16 or 32 rows share a weight, of which a small batch fills few. With 2-byte weights memory binds, for the "
        "time in the column `memory`; with 4-bit weights the vector unit, which converts them to bfloat16.",
    ),
)

HEAD = """\
# AMD: computed roofline of an MI300X

Made by `tests/gfx942/roofline/rooflines.py --write` from counts of executed gfx942 code: an interpreter runs the
package's calls ([AMD without an AMD GPU](amd-without-amd.md)). Nothing here was measured on a GPU. The model has
neither clock nor latency: each figure is a bound, the time that a unit would need alone.

- Times are in microseconds, for work that is spread evenly over the compute units that have any (304 CUs of 4 SIMDs at
  2.1 GHz; LDS 128 bytes and L1 64 bytes per clock and CU). *binds*: the unit that needs the most time.
- *memory*: the bytes that waves moved, at 5.3 TB/s: the time of memory if no cache kept a byte. This column does not
  count for *binds*; where each byte is used once it is the time of HBM.
- *MFMA peak, overlapped*: the share of MFMA peak if all units work at the same time, an upper bound; *serial*:
  if one unit works at a time. *LDS conflicts*: the share of LDS cycles lost to bank conflicts. *lanes on*: active
  lanes of vector and memory instructions.
- If the text below a title says so, one workgroup in several ran, and the others are assumed to be equal.
"""


def demangled(names: list[str]) -> list[str]:
    tool = builds.compiler().tool("llvm-cxxfilt")
    done = subprocess.run([str(tool), *names], capture_output=True, text=True, check=True)
    return [short_name(line) for line in done.stdout.splitlines()]


def rows_of(run: Callable[[], None], every: int = 1) -> list[Row]:
    """The largest first. every: one workgroup in so many runs."""
    device.reset_counters()
    device.set_sample(every)
    try:
        run()
    finally:
        device.set_sample(1)
    counted = device.counters()
    names = demangled([c.kernel.name for c in counted])
    rows = [roofline.row_of(c, name) for c, name in zip(counted, names, strict=True)]
    return sorted(rows, key=lambda row: -max(row.units().values()))


def note_of(row: Row) -> str:
    return next((text for pattern, text in NOTES if re.fullmatch(pattern, row.kernel)), "")


def aimed_at(shape: Shape, rows: list[Row]) -> Row:
    """The row of the kernel that the shape's aim is for."""
    assert shape.aim
    (row,) = [row for row in rows if re.fullmatch(shape.aim.kernel, row.kernel)]
    return row


def aims(tables: dict[str, list[Row]]) -> list[str]:
    lines = ["| required | kernel | of MFMA peak, at least | overlapped | binds |", "|---|---|---:|---:|---|"]
    for shape in SHAPES:
        if shape.aim:
            row = aimed_at(shape, tables[shape.title])
            lines.append(
                f"| {shape.title} | `{row.kernel}` | {shape.aim.share:.0%} | {row.overlapped:.0%} | {row.binds} |"
            )
    return lines


def page(tables: dict[str, list[Row]]) -> str:
    lines = [HEAD, *aims(tables), "", f"![what each unit needs]({PICTURE.name})", ""]
    for shape in SHAPES:
        rows = tables[shape.title]
        notes = [shape.words] if shape.words else []
        if shape.every > 1:
            notes.append(f"One workgroup in {shape.every} ran.")
        lines += [f"## {shape.title}", ""]
        lines += [*textwrap.wrap(" ".join(notes), 118), ""] if notes else []
        lines.append(roofline.markdown(rows))
    below = {row.kernel: note_of(row) for rows in tables.values() for row in rows if row.overlapped < LEAST_SHARE}
    lines += [f"## Below {LEAST_SHARE:.0%} of MFMA peak", ""]
    for text in dict.fromkeys(filter(None, below.values())):
        kernels = ", ".join(f"`{kernel}`" for kernel in sorted(below) if below[kernel] == text)
        lines += [*textwrap.wrap(f"- {kernels}: {text}", 118, subsequent_indent="  "), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    emulated_torch.import_package()
    tables = {}
    for shape in SHAPES:
        print(shape.title, flush=True)
        tables[shape.title] = rows_of(shape.run, shape.every)
        print(roofline.markdown(tables[shape.title]), flush=True)
    if arguments:
        roofline.write(DATA, tables)
        roofline.plot(PICTURE, tables)
        PAGE.write_text(page(tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
