# SPDX-License-Identifier: Apache-2.0
"""The mLSTM on a GPU, held to aims by shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.modes import EAGER, GRAPH, REPLAY
from harness.sides import error_table, ratio_to
from xlstm_hip.bench.metrics import MIB
from xlstm_hip.bench.mlstm_contenders import COMMON
from xlstm_hip.bench.mlstm_points import WORKS
from xlstm_hip.bench.plot import Bar, colours_of, finish, groups_of_bars, over, panels
from xlstm_hip.bench.registry import FLA, OFFICIAL, XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import UNKNOWN, heading, lines_of, section, short, verdict

Aims = Mapping[str, Mapping[str, Mapping[str, float]]]  # by shape, work and what is aimed at


def shape_of(cell: Results) -> str:
    return cell["title"].removeprefix(cell["work"]).strip()


def measured(results: Results, *works: str) -> Iterator[tuple[Results, Results]]:
    """Cells of these works, and the kernels that were timed."""
    for cell in (cell for cell in results["cells"] if cell["work"] in works):
        yield from ((cell, kernel) for kernel in cell.get("kernels", ()) if "host_ms" in kernel)


def median(kernel: Results, mode: str, scale: float = 1) -> float | None:
    return kernel[mode]["median"] * scale if mode in kernel else None


def ratio_text(cell: Results, kernel: Results, side: str, aims: Mapping[str, float]) -> str:
    """As called, then in graphs, where the host does not count. Each is held to the aim."""
    ratios = {mode: ratio_to(cell["kernels"], kernel, side, mode) for mode in (EAGER, GRAPH)}
    medians = {mode: ratio["median"] for mode, ratio in ratios.items() if ratio}
    texts = [f"{x:.2f}x" for x in medians.values()]
    aim = (
        aims.get({"ours": side, COMMON: f"common {side}"}.get(kernel["name"], ""))
        if kernel["side"] == XLSTM_HIP
        else None
    )
    if aim is not None and medians:
        verdicts = {mode: verdict(x >= aim) for mode, x in medians.items()}
        agreed = len(set(verdicts.values())) == 1
        texts.append(f"aim {aim:g} " + ("{eager}" if agreed else "{eager}, in a graph {graph}").format(**verdicts))
    return ", ".join(texts)


def sequence_row(cell: Results, kernel: Results, aims: Mapping[str, float]) -> tuple[str, ...]:
    is_fused = kernel["side"] == XLSTM_HIP
    ratios = [ratio_text(cell, kernel, side, aims) if is_fused else "" for side in (OFFICIAL, FLA)]
    peak, result_mib = kernel["peak_bytes"], cell["result_bytes"] / MIB
    memory = UNKNOWN if peak is None else f"{peak / MIB:.0f} (results {result_mib:.0f})"
    if peak is not None and "MiB" in aims and kernel["name"] == "ours":
        memory += f", aim {aims['MiB']:g} {verdict(peak / MIB <= aims['MiB'])}"
        memory += "" if result_mib <= aims["MiB"] else ", which the results alone are"
    floors = ", ".join(short(cell["floors_ms"][name]) for name in ("bytes", "flops"))
    times = (short(x) for x in (median(kernel, EAGER), median(kernel, GRAPH), kernel["host_ms"]))
    return (shape_of(cell), cell["work"], kernel["name"], *times, *ratios, floors, memory)


def step_row(cell: Results, kernel: Results, aim: float | None) -> tuple[str, ...]:
    once = median(kernel, REPLAY, 1e3)
    is_fused = kernel["side"] == XLSTM_HIP
    ratio = ratio_to(cell["kernels"], kernel, OFFICIAL, REPLAY) if is_fused else None
    aim_text = f"aim {aim:g} {verdict(once <= aim)}" if is_fused and once is not None and aim is not None else ""
    floors = [ms * 1e3 for ms in (cell["floors_ms"]["bytes"], *cell.get("replay_floors_ms", {}).values())]
    times = (short(x) for x in (once, median(kernel, GRAPH, 1e3), kernel["host_ms"] * 1e3))
    against = f"{ratio['median']:.2f}x" if ratio else ""
    return (shape_of(cell), kernel["name"], *times, against, ", ".join(map(short, floors)), aim_text)


def length_row(point: Results) -> tuple[str, ...]:
    lead, why = (point["work"], str(point["tokens"])), point.get("missing") or point.get("failed")
    if why:
        return (*lead, why, "", "", "")
    ms, peak = point["ms"]["median"], point["peak_bytes"]
    memory = (UNKNOWN, UNKNOWN)
    if peak is not None:
        memory = (f"{peak / MIB:.0f}", f"{(peak - point['result_bytes']) / point['tokens']:.1f}")
    return (*lead, short(ms), short(ms * 1e6 / point["tokens"]), *memory)


def missing_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for cell in results["cells"]:
        if "missing" in cell:
            yield cell["title"], "all", cell["missing"]
        for kernel in cell.get("kernels", ()):
            for reason in ("missing", "failed", "no graph"):
                if reason in kernel:
                    yield cell["title"], kernel["name"], f"{reason}: {kernel[reason]}"


def machine_line(results: Results) -> str:
    facts = results["environment"]
    device = f"{facts['gpu']['name']}, {facts['gpu']['units']} units" if facts["gpu"] else facts["cpu"]
    versions = [f"{name} {version}" for name, version in results.get("peers", {}).items()]
    return ", ".join([device, f"torch {facts['packages']['torch']}", *versions]) + f"; {facts['date'][:10]}"


def other_days(results: Results) -> Iterator[str]:
    """The lines about cells that an earlier run left."""
    days: dict[str, list[str]] = {}
    for cell in results["cells"]:
        days.setdefault(cell.get("date", "")[:10], []).append(cell["title"])
    for day in sorted(days.keys() - {"", results["environment"]["date"][:10]}):
        yield from ("", f"Measured on {day}, by the kernels of then: {'; '.join(days[day])}.")


def markdown(results: Results, aims: Aims) -> str:
    rates, exact = results["ceilings"], results["settings"]["exact"]
    lines = heading(
        "mLSTM on a GPU",
        results,
        f"{machine_line(results)}.",
        f"Device copy {rates['copy_bytes_per_second'] / 1e12:.2f} TB/s; bf16 matmul {rates['bf16_flops'] / 1e12:.0f} "
        "TFLOP/s: the floors are by these.",
        *other_days(results),
    )
    columns: tuple[str, ...] = ("shape", "work", "kernel", "ms", "in a graph", "host ms", "to mlstm_kernels", "to FLA")

    def aims_of(cell: Results) -> Mapping[str, float]:
        return aims.get(shape_of(cell), {}).get(cell["work"], {})

    rows = [sequence_row(cell, kernel, aims_of(cell)) for cell, kernel in measured(results, *WORKS)]
    lines += section(
        "Sequences, bf16",
        *lines_of((*columns, "floors ms: bytes, flops", "peak MiB"), rows),
        "",
        "Medians. ms: called as a user calls it, back to back; in a graph: the GPU's part alone. A ratio is the median",
        "of the rounds' own, as called then in graphs, against the fastest kernel of that side; aims are for an H200,",
        "and both are held to them. host ms: what the host needs for a call; where it is not below ms, it binds.",
        f"Flops: the products that the definition needs in chunks of {results['settings']['floor_chunk']}, a backward",
        "pass as two forward ones. peak MiB: beyond the inputs; results are h and gradients. FLA has no normaliser.",
    )
    columns = ("shape", "kernel", "one replay us", "in a row us", "host us", "to mlstm_kernels", "floors us", "")
    lines += section(
        "Step, float32 states, in a graph",
        *lines_of(
            columns, [step_row(cell, kernel, aims_of(cell).get("us")) for cell, kernel in measured(results, "step")]
        ),
        "",
        "One replay of one step with a cold L2; in a row: many steps in one graph, over states that fill L2. Floors:",
        "the states' bytes at the rate of a long copy; one replay of an empty kernel; one replay of a copy of C.",
    )
    columns = ("work", "S", "ms", "ns per token", "peak MiB", "bytes per token beyond results")
    lines += section("Ours over the length", *lines_of(columns, [length_row(point) for point in results["lengths"]]))
    leads = [
        ((cell["title"],), exact, [k for k in cell.get("kernels", ()) if "errors" in k]) for cell in results["cells"]
    ]
    lines += section("Relative errors to float64", *error_table(("shape",), leads))
    missing = list(missing_rows(results))
    lines += section("Not measured", *(lines_of(("shape", "contender", "why"), missing) if missing else ["Nothing."]))
    return "\n".join(lines) + "\n"


# ---- the picture


def draw(results: Results, base: Path) -> list[Path]:
    """Times of a shape as shares of its slowest kernel's, so that shapes share an axis; above a bar the time."""
    kernels = [kernel for cell in results["cells"] for kernel in cell.get("kernels", ())]
    colours = colours_of(kernel["name"] for kernel in kernels)
    figure, axes = panels(4, size=(6, 6))
    for panel, work in zip(axes, (*WORKS, "step"), strict=False):
        mode, scale, unit = (REPLAY, 1e3, "us, one replay of a graph") if work == "step" else (EAGER, 1, "ms")
        groups: dict[str, list[Bar]] = {}
        for cell in (cell for cell in results["cells"] if cell["work"] == work and "kernels" in cell):
            slowest = max((k[mode]["median"] for k in cell["kernels"] if mode in k), default=math.inf)
            bars = groups[shape_of(cell).replace(" ", "\n")] = []
            for k in cell["kernels"]:
                share = {key: k[mode][key] / slowest for key in ("min", "median", "max")} if mode in k else None
                bars.append((k["name"], share, k[mode]["median"] * scale if mode in k else 0.0))
        groups_of_bars(panel, groups, colours)
        panel.set(title=f"{work}, {unit}", ylabel="time, of the slowest")
        panel.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    for work in WORKS:
        points = [(p["tokens"], p["ms"]["median"]) for p in results["lengths"] if p["work"] == work and "ms" in p]
        over(axes[-1], points, label=work)
    axes[-1].set(title="ours over the length, ms", xlabel="tokens", yscale="log")
    axes[-1].legend(frameon=False)
    return finish(
        results, figure, f"mLSTM in bf16 on {machine_line(results)}; lower is better", base.with_suffix(".png")
    )
