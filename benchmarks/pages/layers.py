# SPDX-License-Identifier: Apache-2.0
"""The layers beside plain torch and a copy."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, finish, panels, rows_of_bars
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import entry_of, heading, lines_of, short

PLAIN, COPY = "plain torch", "copy"
HOST = 1.25  # a row that takes at most so many times what a call of one token does shows the host


def us(cell: Results, name: str) -> float:
    return 1e3 * entry_of(cell["contenders"], name)["ms"]["median"]


def shows_the_host(results: Results, cell: Results) -> bool:
    """Of calls that were made one by one: whether the host was slower than the GPU."""
    if cell["tokens"] == 1 or results["settings"].get("graphs", True):
        return False
    same = ("layer", "work", "dtype")
    ones = (c for c in results["cells"] if c["tokens"] == 1 and all(c[key] == cell[key] for key in same))
    return any(us(cell, XLSTM_HIP) < HOST * us(one, XLSTM_HIP) for one in ones)


def share(results: Results, cell: Results) -> str:
    if cell["tokens"] == 1:
        return ""
    ratio = entry_of(cell["contenders"], COPY)["times_ours"]["median"]
    return f"{100 * ratio:.0f} %{', host' if shows_the_host(results, cell) else ''}"


def row(results: Results, cell: Results) -> list[str]:
    fused, plain = (entry_of(cell["contenders"], name) for name in (XLSTM_HIP, PLAIN))
    return [
        cell["layer"], cell["work"], cell["dtype"], f"{cell['tokens']} x {cell['width']}",
        short(us(cell, XLSTM_HIP), 4), short(us(cell, PLAIN), 4), f"{plain['times_ours']['median']:.2f}x",
        share(results, cell), f"{fused['error']:.1e}", f"{plain['error']:.1e}",
    ]  # fmt: skip


def markdown(results: Results) -> str:
    columns = (
        "layer", "work", "dtype", "tokens x width", XLSTM_HIP, PLAIN, "times ours", "of a copy", "error", "plain"
    )  # fmt: skip
    lines = heading(
        "The layers beside plain torch and a copy",
        results,
        f"{summary(results['environment'])}; device {results['settings']['device']}.",
    )
    lines += [
        "",
        "Median us. *of a copy*: the time of a copy of the bytes that the layer must move, as a share of its own time. "
        "*host*: a call of one token takes about as long, so the row shows what the host needs, not the GPU.",
        "",
        *lines_of(columns, [row(results, cell) for cell in results["cells"]]),
    ]
    return "\n".join(lines) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    many = [c for c in results["cells"] if c["tokens"] > 1]
    kinds = list(dict.fromkeys((c["work"], c["dtype"]) for c in many))
    figure, axes = panels(len(kinds))
    for panel, kind in zip(axes, kinds, strict=True):
        cells = [c for c in many if (c["work"], c["dtype"]) == kind]
        shares = {name: [100 * us(c, COPY) / us(c, name) for c in cells] for name in (XLSTM_HIP, PLAIN)}
        bars, _ = rows_of_bars(panel, [c["layer"] for c in cells], shares, colours_of(shares))
        for bar, cell in zip(bars, cells, strict=True):
            if shows_the_host(results, cell):
                bar.set(alpha=0.35, hatch="///")
        panel.axvline(100, color="0.5", linewidth=0.8)
        panel.set(title=", ".join(kind), xlabel="% of a copy's bandwidth")
    axes[0].legend(fontsize=7, frameon=False)
    pale = "; pale: what the host needs" if any(shows_the_host(results, c) for c in many) else ""
    return finish(results, figure, f"layers{pale}", base.with_suffix(".png"))
