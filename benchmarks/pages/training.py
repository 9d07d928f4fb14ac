# SPDX-License-Identifier: Apache-2.0
"""Training steps: a table of each size, and a picture of where the time goes."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import finish, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import heading, lines_of, section, spread_text


def row(entry: Results) -> list[str]:
    if "ms" not in entry:
        return [entry["name"], "", "", "", "", entry.get("missing", "")]
    ratio = f"{entry['times_ours']['median']:.2f}x" if "times_ours" in entry else ""
    memory = f"{entry['bytes'] / 2**30:.1f}" if entry.get("bytes") else "n/a"
    return [entry["name"], spread_text(entry["ms"]), f"{entry['tokens_per_s']:,.0f}", ratio, memory, ""]


def groups(size: Results) -> list[str]:
    profiled = [e for e in size["contenders"] if e.get("groups")]
    if not profiled:
        return []
    names = list(profiled[0]["groups"])
    rows = [[e["name"], *(f"{e['groups'][name]:.1f}" for name in names)] for e in profiled]
    return ["", "Where a step's ms go, by the names of the GPU's kernels:", "", *lines_of(["", *names], rows)]


def markdown(results: Results) -> str:
    lines = heading(
        "Training whole models",
        results,
        f"{summary(results['environment'])}; device {results['settings']['device']}.",
    )
    lines += [
        "",
        "A step of AdamW under autocast to bfloat16, the same weights and tokens. *times*: the time as a multiple of "
        "that of xlstm_hip, eager. *GiB*: what a step takes beyond weights and optimizer at its worst moment. The "
        f"official model runs `{results['settings']['official_kernel']}` on a GPU.",
    ]
    for size in results["sizes"]:
        text = (
            f"{size['blocks']} blocks of {size['features']} features, {size['heads']} heads, {size['vocab']} tokens in "
            f"the vocabulary; {size['batch']} x {size['length']} tokens a step."
            + (f" Taken on {size['date'][:10]}." if "date" in size else "")
        )
        lines += section(size["size"], text)
        lines += ["", *lines_of(["", "ms", "tokens/s", "times", "GiB", "note"], [row(e) for e in size["contenders"]])]
        lines += groups(size)
    return "\n".join(lines) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    sizes = [s for s in results["sizes"] if any("ms" in e for e in s["contenders"])]
    figure, axes = panels(len(sizes))
    for panel, size in zip(axes, sizes, strict=True):
        timed = [e for e in size["contenders"] if "ms" in e]
        names = [e["name"] for e in timed]
        left = [0.0] * len(timed)
        for group in timed[0].get("groups") or ():
            widths = [(e.get("groups") or {}).get(group, 0.0) for e in timed]
            panel.barh(names, widths, left=left, label=group)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        if not any(left):
            panel.barh(names, [e["ms"]["median"] for e in timed], color="0.5")
        panel.invert_yaxis()
        panel.set(title=size["size"], xlabel="ms a step")
        panel.grid(axis="y", visible=False)
    if any(e.get("groups") for s in sizes for e in s["contenders"]):
        axes[0].legend(fontsize=6, frameon=False)
    return finish(results, figure, "training", base.with_suffix(".png"))
