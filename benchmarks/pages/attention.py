# SPDX-License-Identifier: Apache-2.0
"""Attention beside torch's: speed, memory, aims."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, finish, over, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import UNKNOWN, heading, lines_of, section, short

AIMED_AT = ("torch SDPA", "torch SDPA FLASH")


def mask(cell: Results) -> str:
    return "causal" if cell["causal"] else "full"


def time_text(entry: Results) -> str:
    if "ms" not in entry:
        return UNKNOWN
    ratio = "" if entry["name"] == "ours" or "times_ours" not in entry else f" ({entry['times_ours']['median']:.2f}x)"
    return f"{short(entry['ms']['median'])}{ratio}"


def fused_value(cell: Results, key: str) -> str:
    return next(f"{e[key]:.0f}" if key in e else UNKNOWN for e in cell["contenders"] if e["name"] == "ours")


def below_aim(results: Results) -> list[str]:
    lines = []
    for cell in results["speed"]:
        aim = results["aims"].get(cell["work"], {}).get(cell["dtype"])
        for entry in cell["contenders"]:
            if aim and entry["name"] in AIMED_AT and entry.get("times_ours", {}).get("median", aim) < aim:
                shape = f"D {cell['head_dim']}, {mask(cell)}, S {cell['tokens']}"
                lines.append(f"- {cell['work']}, {cell['dtype']}, {shape}: {entry['times_ours']['median']:.2f}x")
    return lines


def aims(results: Results, gpu: bool) -> list[str]:
    below = below_aim(results)
    texts = "; ".join(f"{work} {d} {x:g}x" for work, by_dtype in results["aims"].items() for d, x in by_dtype.items())
    sentence = f"Aims, times faster than torch SDPA{', FLASH' if gpu else ''}: {texts}."
    return ["", f"{sentence} {'Below them:' if below else 'All are met.'}", *(["", *below] if below else [])]


def memory_section(cells: list[Results]) -> list[str]:
    first = cells[0]
    rows = [
        [
            str(cell["tokens"]),
            *(f"{e['bytes'] / 1e6:.0f}" if e.get("bytes") is not None else UNKNOWN for e in cell["contenders"]),
        ]
        for cell in cells
    ]
    of = f"batch {first['batch']}, {first['heads']} heads of {first['head_dim']}"
    text = f"MB that one forward and backward adds to its inputs, causal, {of}."
    return section("Memory", text, "", *lines_of(["S", *(e["name"] for e in first["contenders"])], rows))


def markdown(results: Results) -> str:
    cells, gpu = results["speed"], results["settings"]["device"] != "cpu"
    first, names = cells[0], [entry["name"] for entry in cells[0]["contenders"]]
    dims = " and ".join(dict.fromkeys(str(cell["head_dim"]) for cell in cells))
    rows = [
        [cell["work"], cell["dtype"], str(cell["head_dim"]), mask(cell), str(cell["tokens"]),
         *map(time_text, cell["contenders"]), *([fused_value(cell, "tflops")] if gpu else []),
         *(f"{entry['error']:.1e}" if "error" in entry else UNKNOWN for entry in cell["contenders"][:2])]
        for cell in cells
    ]  # fmt: skip
    columns = ["work", "dtype", "D", "mask", "S", *names, *(["TFLOP/s of ours"] if gpu else [])]
    columns += [f"error of {name}" for name in names[:2]]
    shape = f"batch {first['batch']}, {first['heads']} heads of {dims}"
    lines = heading(
        "Attention beside torch's",
        results,
        f"{summary(results['environment'])}; device {results['settings']['device']}.",
    )
    lines += section(
        "Speed",
        f"Median ms of {shape}; in brackets how many times longer than ours, the median of the rounds' ratios.",
        "",
        *lines_of(columns, rows),
    )
    lines += aims(results, gpu) + (memory_section(results["memory"]) if results["memory"] else [])
    entries = (entry for cell in cells + results["memory"] for entry in cell["contenders"])
    missing = sorted({f"n/a: {entry['name']}: {entry['missing']}" for entry in entries if "missing" in entry})
    return "\n".join(lines + ["", *missing]).rstrip() + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    unit, size = ("TFLOP/s", 1.0) if results["settings"]["device"] != "cpu" else ("GFLOP/s", 1e3)
    kinds = list(dict.fromkeys((c["work"], c["dtype"], c["head_dim"]) for c in results["speed"]))
    names = [entry["name"] for entry in results["speed"][0]["contenders"]]
    colours = colours_of(names)
    figure, axes = panels(len(kinds) + 1)

    def points(cells: list[Results], name: str, key: str, scale: float) -> list[tuple[float, float]]:
        entries = ((cell["tokens"], e) for cell in cells for e in cell["contenders"] if e["name"] == name)
        return [(tokens, e[key] * scale) for tokens, e in entries if e.get(key)]

    for panel, kind in zip(axes, kinds, strict=False):
        selected = [c for c in results["speed"] if (c["work"], c["dtype"], c["head_dim"]) == kind]
        for causal, style in ((False, "-"), (True, "--")):
            for name in names:
                spots = points([c for c in selected if c["causal"] == causal], name, "tflops", size)
                over(panel, spots, linestyle=style, color=colours[name], label=f"{name}{', causal' if causal else ''}")
        panel.set(title=", ".join(map(str, kind)), xlabel="tokens")
        panel.set_ylim(bottom=0)
    for name in names:
        over(axes[-1], points(results["memory"], name, "bytes", 1e-6), color=colours[name], label=name)
    axes[-1].set(title="forward+backward: memory, MB", xlabel="tokens", yscale="log")
    axes[0].set_ylabel(f"{unit} of the products")
    if any("ms" in entry for cell in results["speed"] for entry in cell["contenders"]):
        axes[0].legend(fontsize=6, frameon=False)
    return finish(results, figure, "attention", base.with_suffix(".png"))
