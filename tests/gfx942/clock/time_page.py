# SPDX-License-Identifier: Apache-2.0
"""Predicted times of the calls of docs/amd_roofline.md, kernel by kernel: docs/amd_time_kernels.md, from its JSON.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support:tests/gfx942/roofline:tests/gfx942/clock
python tests/gfx942/clock/time_page.py                  shows the tables
python tests/gfx942/clock/time_page.py --write          and writes docs/amd_time_kernels.*
python tests/gfx942/clock/time_page.py --write 'MLA'    of the tables with this in their title; the others stay
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import builds
import call_time
import trust
from call_time import KernelTime

PAGE, DATA = (builds.ROOT / "docs" / f"amd_time_kernels.{end}" for end in ("md", "json"))
SHOWN = 0.02  # of a call's time: what takes less is summed up


def read() -> dict[str, list[KernelTime]]:
    tables = json.loads(DATA.read_text(encoding="utf-8"))
    return {title: [KernelTime.read(row) for row in rows] for title, rows in tables.items()}


# ---- the page


HEAD = """\
# AMD: predicted times on an MI300X, kernel by kernel

Made by `tests/gfx942/clock/time_page.py --write`. **Every time here is predicted by a model; nothing was measured on
AMD hardware.** [amd_time.md](amd_time.md) says how far to trust the model, and has calls beside those of others.

- The calls are those of [the roofline](amd_roofline.md): cached keys and values are one tensor, or all sequences share
  16 pages, so that caches hold more of them than in earnest.
- *waves*: of a SIMD at once. *binds*: what most cycles of waves are spent on or wait for.
- `python tests/gfx942/predict.py --call 'MLA'` lists the instructions of such a call that wait most, and with
  [line tables](amd-without-amd.md#its-predicted-time) the source lines.
"""

COLUMNS = (
    *("kernel", "launches", "predicted, us", "error bar", "MHz", "MFMA busy", "workgroups", "waves", "binds"),
    "where waves' cycles go",
)


def markdown(rows: list[KernelTime]) -> str:
    total = sum(row.microseconds for row in rows)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * 7 + "---|---|"]
    small = [row for row in rows if row.microseconds < SHOWN * total]
    for row in (row for row in rows if row not in small):
        cells = (
            *(f"`{row.kernel}`", str(row.launches), f"{row.microseconds:.1f}", trust.error_bar(row), f"{row.mhz:.0f}"),
            *(f"{row.matrix_busy:.0%}", str(row.workgroups), f"{row.waves:g}", row.binds, row.causes_text),
        )
        lines.append("| " + " | ".join(cells) + " |")
    if small:
        rest = f"{sum(row.microseconds for row in small):.1f}"
        lines.append(f"| {len(small)} others | {sum(row.launches for row in small)} | {rest} |" + " |" * 7)
    lines.append(f"| **all** | {sum(row.launches for row in rows)} | **{total:.1f}** |" + " |" * 7)
    return "\n".join(lines) + "\n"


def page(tables: dict[str, list[KernelTime]]) -> str:
    lines = [HEAD]
    for title, rows in tables.items():
        lines += [f"## {title}", "", markdown(rows)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    if arguments[:1] not in ([], ["--write"]) or len(arguments) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    import emulated_torch

    emulated_torch.import_package()
    from roofline_shapes import SHAPES
    from rooflines import demangled

    before = read() if DATA.exists() else {}
    tables = {}
    for shape in SHAPES:
        if arguments[1:] and arguments[1] not in shape.title:
            if shape.title in before:
                tables[shape.title] = before[shape.title]
            continue
        print(shape.title, flush=True)
        is_uneven = shape.title.startswith("MLA")
        instructions = call_time.INSTRUCTIONS_OF_UNEVEN_PARTS if is_uneven else call_time.INSTRUCTIONS
        tables[shape.title] = call_time.predicted(shape.run, instructions, demangled)
        print(markdown(tables[shape.title]), flush=True)
        if arguments:
            rows = {title: [asdict(row) for row in found] for title, found in {**before, **tables}.items()}
            DATA.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments:
        PAGE.write_text(page(tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
