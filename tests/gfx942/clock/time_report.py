# SPDX-License-Identifier: Apache-2.0
"""What the clock says of launches, as a profiler would: a text, a picture of a compute unit's time, a trace for
Perfetto or Chrome, and the difference of two builds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from timing import Launch, Stall, launch_of

WORST = 12  # instructions that a text lists
COLOURS = {
    "MFMA": "#c0392b",
    "VALU": "#2980b9",
    "SALU": "#8e44ad",
    "LDS": "#27ae60",
    "memory": "#16a085",
    "other": "#7f8c8d",
    "wait: MFMA unit": "#f5b7b1",
    "wait: VALU port": "#aed6f1",
    "wait: memory": "#f9e79f",
    "wait: scalar memory": "#fdebd0",
    "wait: LDS": "#abebc6",
    "wait: barrier": "#d5d8dc",
}
OTHER_WAITS = "#eeeeee"


def worst(launch: Launch, count: int = WORST) -> list[Stall]:
    return sorted(launch.stalls, key=lambda s: -s.stall)[:count]


def by_source(launch: Launch) -> list[tuple[str, int]]:
    """Cycles of waiting by source line, where the object has line numbers; of inlined code by the line it is from."""
    sums: dict[str, int] = {}
    for s in launch.stalls:
        if s.source:
            line = s.source.partition(" in ")[0].rpartition(":")[0]  # without its column
            sums[line] = sums.get(line, 0) + s.stall
    return sorted(sums.items(), key=lambda item: -item[1])


def text_of(launch: Launch, name: str = "") -> str:
    every = f"one workgroup in {launch.workgroups / launch.sampled:.0f} was simulated"
    error = f" +- {launch.error:.1%} by the sample" if launch.error else ""
    lines = [
        f"{name or launch.kernel}",
        f"  predicted {launch.microseconds / 1000:.4f} ms{error} at {launch.mhz:.0f} MHz;"
        f" MFMA busy {launch.matrix_busy:.0%}; {launch.workgroups} workgroups, {launch.resident} at once on each of"
        f" {launch.busy_cus:.0f} compute units" + (f"; {every}" if launch.sampled < launch.workgroups else ""),
        "  where waves' cycles go: "
        + ", ".join(f"{what} {share:.0%}" for what, share in by_size(launch.shares()) if share >= 0.005),
        "  lines loaded from: " + ", ".join(f"{where} {count}" for where, count in launch.lines.items()),
        "  waited for most (share of all cycles, reason, times, instruction):",
    ]
    for s in worst(launch):
        share = s.stall / max(1, launch.wave_cycles)
        lines.append(f"    {share:6.1%}  {s.reason:20} {s.executed:8}  {s.offset:6x}: {s.text}")
    by_line = by_source(launch)[:WORST]
    if by_line:
        lines.append("  source lines that wait most (0: what the compiler has no line for):")
    for line, stall in by_line:
        lines.append(f"    {stall / max(1, launch.wave_cycles):6.1%}  {line}")
    return "\n".join(lines)


def by_size(shares: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


# ---- a difference


def write(path: Path, launches: Sequence[Launch]) -> None:
    path.write_text(json.dumps([asdict(x) | {"trace": []} for x in launches]) + "\n", encoding="utf-8")


def read(path: Path) -> list[Launch]:
    return [launch_of(x) for x in json.loads(path.read_text(encoding="utf-8"))]


def difference(before: Sequence[Launch], after: Sequence[Launch]) -> str:
    """Launches in their order; those of the same kernel are compared by what their waves' cycles go to."""
    if [x.kernel for x in before] != [x.kernel for x in after]:
        raise ValueError("the two runs launched other kernels: " + ", ".join(x.kernel for x in (*before, *after)))
    lines = []
    for a, b in zip(before, after, strict=True):
        lines.append(
            f"{a.kernel}: predicted {a.microseconds:.1f} -> {b.microseconds:.1f} us"
            f" ({b.microseconds / a.microseconds - 1:+.1%})"
        )
        # Of a workgroup, since samples may differ.
        spent = [{what: share * x.group_cycles for what, share in x.shares().items()} for x in (a, b)]
        changes = {what: spent[1][what] - spent[0][what] for what in spent[0]}
        for what, cycles in sorted(changes.items(), key=lambda item: -abs(item[1])):
            if abs(cycles) >= 0.01 * a.group_cycles:
                lines.append(f"  {what:20} {cycles:+10.0f} cycles of a workgroup's {a.group_cycles:.0f}")
    return "\n".join(lines)


# ---- a trace and a picture


def perfetto(launch: Launch) -> dict[str, object]:
    """Chrome's trace format: a process per SIMD, a thread per wave, a slice per stretch. ui.perfetto.dev opens it."""
    names = list(launch.spent)
    events: list[dict[str, object]] = []
    threads: dict[tuple[int, int], int] = {}
    for group, wave, simd, begin, end, which in launch.trace:
        thread = threads.setdefault((group, wave), len(threads))
        times = {"ts": begin / launch.mhz, "dur": (end - begin) / launch.mhz}
        events.append({"name": names[which], "ph": "X", "pid": simd, "tid": thread, **times})
    for (group, wave), thread in threads.items():
        simds = {t[2] for t in launch.trace if (t[0], t[1]) == (group, wave)}
        for simd in simds:
            label = {"name": f"workgroup {group}, wave {wave}"}
            events.append({"name": "thread_name", "ph": "M", "pid": simd, "tid": thread, "args": label})
    for simd in sorted({t[2] for t in launch.trace}):
        events.append({"name": "process_name", "ph": "M", "pid": simd, "args": {"name": f"SIMD {simd} (predicted)"}})
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def picture(path: Path, launch: Launch, cycles: int = 8000) -> None:
    """What the waves of the compute unit do, from the middle of the trace."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(launch.spent)
    begin = (min(t[3] for t in launch.trace) + max(t[4] for t in launch.trace)) // 2
    shown = [t for t in launch.trace if t[4] > begin and t[3] < begin + cycles]
    waves = sorted({(t[2], t[0], t[1]) for t in shown})
    figure, axes = plt.subplots(figsize=(14, 1 + 0.3 * len(waves)))
    for row, (simd, group, wave) in enumerate(waves):
        mine = [t for t in shown if (t[2], t[0], t[1]) == (simd, group, wave)]
        axes.broken_barh(
            [(t[3], t[4] - t[3]) for t in mine],
            (row - 0.4, 0.8),
            facecolors=[COLOURS.get(names[t[5]], OTHER_WAITS) for t in mine],
        )
    axes.set_yticks(range(len(waves)), [f"SIMD {s}, workgroup {g}, wave {w}" for s, g, w in waves], fontsize=7)
    axes.set_xlim(begin, begin + cycles)
    axes.set_xlabel("cycles (predicted)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    axes.legend(handles, COLOURS, ncols=6, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
