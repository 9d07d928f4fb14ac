# SPDX-License-Identifier: Apache-2.0
"""The cost of attention's features."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench import metrics
from xlstm_hip.bench.contest import Entry
from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import COLOURS, finish, labelled_bars, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import heading, lines_of, section

HEAD_DIM = 128
UNITS = ("tflops", "gb_per_second")


def table(entries: list[Entry]) -> list[str]:
    units = [unit for unit in UNITS if unit in entries[0]]
    columns = ["", "ms", f"times {entries[0]['name']}", *(metrics.METRICS[unit].heading for unit in units), "error"]
    rows = [
        [e["name"], f"{e['ms']['median']:.3g}", f"{e['times_first']['median']:.2f}", *(f"{e[u]:.0f}" for u in units),
         f"{e['error']:.1e}"]
        for e in entries
    ]  # fmt: skip
    return lines_of(columns, rows)


def markdown(results: Results) -> str:
    copied = results["ceilings"]["copy_bytes_per_second"] / 1e9
    machine = f"{summary(results['environment'])}. bfloat16, head dim {HEAD_DIM}; a copy moves {copied:.0f} GB/s."
    lines = heading("What features cost attention", results, machine)
    for title, entries in results["tables"].items():
        lines += section(title, *table(entries))
    return "\n".join(lines) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    """Bars of each table's rows, as times of its first."""
    tables = results["tables"]
    figure, axes = panels(len(tables))
    for panel, (title, entries) in zip(axes, tables.items(), strict=True):
        unit = next(unit for unit in UNITS if unit in entries[0])
        times = {e["name"]: e["times_first"]["median"] for e in entries}
        labelled_bars(panel, times, [f"{e[unit]:.0f}" for e in entries], COLOURS[:1])
        panel.set_title(f"{title}\n({metrics.METRICS[unit].heading} beside the bars)", fontsize=9)
        panel.set_xlabel(f"times {entries[0]['name']}")
    return finish(results, figure, "what features cost attention", base.with_suffix(".png"))
