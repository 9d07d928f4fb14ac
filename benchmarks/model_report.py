# SPDX-License-Identifier: Apache-2.0
"""The tables and the figure of a result file of model.py, made from the file alone.

python benchmarks/model_report.py results/model_cpu.json [picture.png]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlstm_hip.bench.environment import BUSY, summary
from xlstm_hip.bench.plot import save, subplots
from xlstm_hip.bench.result_files import redraw
from xlstm_hip.bench.table import lines_of

Results = dict[str, Any]
OURS = "xlstm_hip"
COLOURS = {
    OURS: "#0072B2", f"{OURS} int8": "#56B4E9", f"{OURS} int4": "#009E73", "transformers": "#D55E00",
    "xlstm_large": "#E69F00", "xlstm_large graph": "#CC79A7",
}  # fmt: skip


def _rate(job: Results, name: str) -> str:
    """Tokens a second, or the time where one token is all there is."""
    for entry in job["contenders"]:
        if entry["name"] == name:
            ratio = "" if name == OURS else f" ({entry['times_ours']['median']:.2f}x)"
            figure = f"{entry['ms']['median']:,.1f} ms" if job["tokens"] == 1 else f"{entry['tokens_per_s']:,.0f}"
            return f"{figure}{ratio}"
    return ""


def _memory_and_loading(size: Results) -> list[str]:
    if "loading" not in size:  # a run that was ended early
        return []
    grown = ", ".join(
        f"{row['length']} tokens {row['bytes'] / 2**20:.1f} MiB" if "bytes" in row else row["missing"]
        for row in size["memory"]
    )
    load = size["loading"]
    known = [row["bytes"] for row in size["memory"] if "bytes" in row]
    total = ""
    if "weights_bytes" in size and known:
        total = f", {(size['weights_bytes'] + max(known)) / 2**30:.2f} GiB with its weights at the most"
    return [
        f"Memory that writing takes beyond the model, ours: {grown}{total}. Loading {load['bytes'] / 1e6:.1f} MB: "
        f"{load['load']:.3f} s; reading the files alone {load['read']:.3f} s ({100 * load['share']:.0f}% of it).",
        "",
    ]


def _errors(size: Results) -> list[str]:
    if "errors" not in size:  # older files have none
        return []
    rows = (
        f"{name} {row['logits']:.1e} and {row['text']:.1e}"
        f"{'' if max(row['logits'], row['text']) <= row['limit'] else ' (INEXACT)'}"
        for name, row in size["errors"].items()
    )
    return [f"Errors to the plain kernels, of logits and of a text: {', '.join(rows)}.", ""]


def markdown(results: Results) -> str:
    settings = results["settings"]
    lines = ["# Whole models", ""]
    if settings["quick"]:
        lines += ["**A smoke run: its figures mean nothing.**", ""]
    lines += [f"{summary(results['environment'])}; device {settings['device']}, {settings['dtype']}."]
    load = results["environment"]["load_before"]
    if load > BUSY and settings["device"] == "cpu":
        lines += ["", f"**The machine was busy when this began (load {load:.1f}).**"]
    lines += ["", "Tokens a second, medians; in brackets how many times as long as ours it takes.", ""]
    for size in results["sizes"]:
        names = [entry["name"] for entry in size["jobs"][0]["contenders"]]
        lines += [f"## {size['size']}: {size['weights']:,} weights", ""]
        rows = [[job["job"], *(_rate(job, name) for name in names)] for job in size["jobs"]]
        lines += [*lines_of(["", *names], rows), ""]
        lines += _errors(size) + _memory_and_loading(size)
    return "\n".join(lines)


def draw(results: Results, to: Path) -> None:
    sizes = results["sizes"]
    columns = max(len(size["jobs"]) for size in sizes)
    figure, panels = subplots(len(sizes), columns, (3.4 * columns, 3.0 * len(sizes)), squeeze=False)
    for size, row in zip(sizes, panels, strict=True):
        for axes, job in zip(row, size["jobs"], strict=False):
            entries = job["contenders"][::-1]  # the first is on top
            names = [entry["name"] for entry in entries]
            one = job["tokens"] == 1
            values = [entry["ms"]["median"] if one else entry["tokens_per_s"] for entry in entries]
            bars = axes.barh(names, values, color=[COLOURS[name] for name in names])
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
            axes.set_title(f"{size['size']}: {job['job']}", fontsize=10)
            axes.set_xlabel("ms" if one else "tokens a second", fontsize=8)
            axes.tick_params(labelsize=7)
            axes.margins(x=0.18)
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{summary(results['environment'])}, {results['settings']['dtype']}", fontsize=8)
    save(figure, to)


if __name__ == "__main__":
    redraw(draw)
