# SPDX-License-Identifier: Apache-2.0
"""Kernels of several sides in a result file: {"name", "side", times by mode, "errors" or what is "missing"}."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xlstm_hip.bench.contest import Entry
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.table import inexact, lines_of, spread_text
from xlstm_hip.bench.timing import paired_ratio


def sided(entries: Iterable[Entry]) -> list[Entry]:
    """The entries with an implementation's provider under the key `side`."""
    return [{("side" if key == "provider" else key): x for key, x in entry.items()} for entry in entries]


def fastest(kernels: Iterable[Entry], side: str | None, mode: str = "ms") -> Entry | None:
    """By its median; side None: of all but ours."""
    candidates = [k for k in kernels if (k["side"] != XLSTM_HIP if side is None else k["side"] == side) and mode in k]
    return min(candidates, key=lambda k: k[mode]["median"], default=None)


def ratio_to(kernels: Iterable[Entry], kernel: Entry, side: str | None, mode: str = "ms") -> dict[str, float] | None:
    """The ratio of the time of that side's fastest kernel to this kernel's, from ratios within each round."""
    peer = fastest(kernels, side, mode)
    if peer is None or mode not in kernel:
        return None
    return paired_ratio(peer[mode]["samples"], kernel[mode]["samples"])


def error_table(
    columns: Sequence[str], cells: Sequence[tuple[tuple[str, ...], float, Sequence[Entry]]], mode: str | None = None
) -> list[str]:
    """Every kernel's relative errors, and what is wrong or missing. columns: of what leads each row; a cell: that lead,
    the limit of an error, the kernels. mode: of a time that stands there too."""
    found = dict.fromkeys(name for _, _, kernels in cells for k in kernels for name in k.get("errors", {}))
    names = sorted(found, key=lambda name: name.startswith("d"))  # gradients behind results
    rows = []
    for lead, limit, kernels in cells:
        for kernel in kernels:
            errors = kernel.get("errors", {})
            wrong = inexact(errors, limit)
            note = kernel.get("missing") or kernel.get("failed") or (f"inexact: {', '.join(wrong)}" if wrong else "")
            time = [] if mode is None else [spread_text(kernel[mode]) if mode in kernel else "n/a"]
            error_cells = (f"{errors[name]:.1e}" if name in errors else "" for name in names)
            rows.append((*lead, kernel["name"], *time, *error_cells, note))
    return lines_of((*columns, "kernel", *([] if mode is None else [mode]), *names, "note"), rows)
