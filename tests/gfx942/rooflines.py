# SPDX-License-Identifier: Apache-2.0
"""The package's kernels at the shapes of xLSTM-7B, run as gfx942 code, and what binds each on an MI300X.

PYTHONPATH=build_backend:tests:tests/amd python tests/gfx942/rooflines.py            shows the tables
PYTHONPATH=build_backend:tests:tests/amd python tests/gfx942/rooflines.py --write    and writes docs/amd_roofline.*
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch

import builds
import device
import emulated_torch
import roofline
from code_objects import short_name
from roofline import Row

DOCS = builds.ROOT / "docs"
PAGE = DOCS / "amd-without-amd.md"
BEGIN, END = "<!-- rooflines.py writes from here", "to here -->"
HEADS, DQK, DHV = 8, 256, 512
LEAST_SHARE = 0.5  # of MFMA peak with everything overlapped, or a note

# (kernel as a regular expression, why it stays below): shown under the tables, and what a test asks for.
NOTES = (
    (
        r"walk<bf16, 512, .*",
        "the vector unit binds, in short segments the scalar one: its eight waves have 128 rows of the state each, and "
        "what a chunk costs whatever the rows (addresses, operands weighted and rounded, outputs through LDS and added "
        "up) goes with half as many products as in walk<bf16, 256>. Four waves of 256 rows would need more registers "
        "than two waves of a SIMD have.",
    ),
    (
        r"scores<.*",
        "the vector unit binds: a score is 256 multiply-adds, and beside them an exp, products with gates, sums over "
        "rows, rounding and a place in LDS. It is a tenth of the walks' time.",
    ),
)


def _inputs(batch: int, length: int, grad: bool) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [(DQK,), (DQK,), (DHV,), (), ()]
    made = [torch.randn(batch, HEADS, length, *d, generator=g) for d in shapes]
    made[4] += 3
    return [x.to(torch.bfloat16).to("cuda").requires_grad_(grad) for x in made]


def forward_and_backward(batch: int, length: int) -> None:
    from xlstm_hip import mlstm_interface

    q, k, v, i, f = _inputs(batch, length, True)
    h = mlstm_interface(q, k, v, i, f)
    h.backward(torch.ones_like(h))


def step(batch: int) -> None:
    from xlstm_hip import mlstm_step_interface

    q, k, v, i, f = _inputs(batch, 1, False)
    states = [torch.randn(batch, HEADS, *d).to("cuda") for d in ((DQK, DHV), (DQK,), (1,))]
    mlstm_step_interface(q[:, :, 0], k[:, :, 0], v[:, :, 0], i, f, *states, in_place=True)


SHAPES: dict[str, Callable[[], None]] = {
    "forward + backward, B8 NH8 S2048, 256/512, bf16": lambda: forward_and_backward(8, 2048),
    "forward + backward, B1 NH8 S8192, 256/512, bf16": lambda: forward_and_backward(1, 8192),
    "step in place, B1 NH8, 256/512, bf16": lambda: step(1),
    "step in place, B64 NH8, 256/512, bf16": lambda: step(64),
}


def demangled(names: list[str]) -> list[str]:
    tool = builds.compiler().tool("llvm-cxxfilt")
    done = subprocess.run([str(tool), *names], capture_output=True, text=True, check=True)
    return [short_name(line) for line in done.stdout.splitlines()]


def rows_of(run: Callable[[], None]) -> list[Row]:
    """The largest first."""
    device.reset_counters()
    run()
    counted = device.counters()
    names = demangled([c.kernel.name for c in counted])
    rows = [roofline.row_of(c, name) for c, name in zip(counted, names, strict=True)]
    return sorted(rows, key=lambda row: -max(row.units().values()))


def note_of(row: Row) -> str:
    return next((text for pattern, text in NOTES if re.fullmatch(pattern, row.kernel)), "")


def page_part(tables: dict[str, list[Row]]) -> str:
    lines = [f"{BEGIN}", "", "![what each unit needs](amd_roofline.png)", ""]
    for title, rows in tables.items():
        lines += [f"### {title}", "", "Microseconds.", "", roofline.markdown(rows)]
    below = {row.kernel: note_of(row) for rows in tables.values() for row in rows if row.overlapped < LEAST_SHARE}
    for kernel, text in below.items():
        if text:
            lines += [*textwrap.wrap(f"- `{kernel}`: {text}", 118, subsequent_indent="  "), ""]
    return "\n".join([*lines, END])


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    emulated_torch.import_package()
    tables = {}
    for title, run in SHAPES.items():
        print(title, flush=True)
        tables[title] = rows_of(run)
        print(roofline.markdown(tables[title]), flush=True)
    if arguments:
        roofline.write(DOCS / "amd_roofline.json", tables)
        roofline.plot(DOCS / "amd_roofline.png", tables)
        write_part(PAGE, page_part(tables))
    return 0


def write_part(page: Path, part: str) -> None:
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + part + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
