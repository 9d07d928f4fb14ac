# SPDX-License-Identifier: Apache-2.0
"""Whole models."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, finish, labelled_bars, panels
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import entry_of, heading, lines_of, section


def rate(job: Results, name: str) -> str:
    """Tokens a second, or the time where one token is all there is."""
    entry = entry_of(job["contenders"], name)
    if not entry:
        return ""
    ratio = "" if name == XLSTM_HIP else f" ({entry['times_ours']['median']:.2f}x)"
    return (f"{entry['ms']['median']:,.1f} ms" if job["tokens"] == 1 else f"{entry['tokens_per_s']:,.0f}") + ratio


def memory_and_loading(size: Results) -> list[str]:
    if "loading" not in size:  # a run that was ended early
        return []
    grown = ", ".join(
        f"{row['length']} tokens {row['bytes'] / 2**20:.1f} MiB" if "bytes" in row else row["missing"]
        for row in size["memory"]
    )
    load, known = size["loading"], [row["bytes"] for row in size["memory"] if "bytes" in row]
    total = ""
    if known:
        total = f", {(size['weights_bytes'] + max(known)) / 2**30:.2f} GiB with its weights at the most"
    return [
        "",
        f"Memory that writing takes beyond the model, ours: {grown}{total}. Loading {load['bytes'] / 1e6:.1f} MB: "
        f"{load['load']:.3f} s; reading the files alone {load['read']:.3f} s ({100 * load['share']:.0f}% of it).",
    ]


def errors(size: Results) -> list[str]:
    if "errors" not in size:  # older files have none
        return []
    rows = (
        f"{name} {row['logits']:.1e} and {row['text']:.1e}"
        f"{'' if max(row['logits'], row['text']) <= row['limit'] else ' (INEXACT)'}"
        for name, row in size["errors"].items()
    )
    return ["", f"Errors to the plain kernels, of logits and of a text: {', '.join(rows)}."]


def measured(results: Results) -> list[Results]:
    return [size for size in results["sizes"] if size["jobs"]]


def markdown(results: Results) -> str:
    settings = results["settings"]
    lines = heading(
        "Whole models",
        results,
        f"{summary(results['environment'])}; device {settings['device']}, {settings['dtype']}.",
    )
    lines += ["", "Tokens a second, medians; in brackets how many times as long as ours it takes."]
    for size in measured(results):
        names = [entry["name"] for entry in size["jobs"][0]["contenders"]]
        rows = [[job["job"], *(rate(job, name) for name in names)] for job in size["jobs"]]
        lines += section(f"{size['size']}: {size['weights']:,} weights", *lines_of(["", *names], rows))
        lines += errors(size) + memory_and_loading(size)
    return "\n".join(lines) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    jobs = [(size["size"], job) for size in measured(results) for job in size["jobs"]]
    if not jobs:  # a run that was ended early
        return []
    colours = colours_of(e["name"] for _, job in jobs for e in job["contenders"])
    figure, axes = panels(len(jobs), columns=5)
    for panel, (size, job) in zip(axes, jobs, strict=True):
        one = job["tokens"] == 1
        values = {e["name"]: e["ms"]["median"] if one else e["tokens_per_s"] for e in job["contenders"]}
        labelled_bars(panel, values, [f"{x:,.0f}" for x in values.values()], [colours[name] for name in values])
        panel.set_title(f"{size}: {job['job']}", fontsize=10)
        panel.set_xlabel("ms" if one else "tokens a second", fontsize=8)
    title = f"whole models, {results['settings']['dtype']}"
    return finish(results, figure, title, base.with_suffix(".png"))
