# SPDX-License-Identifier: Apache-2.0
"""Servers under load: tokens a second, times to the first token and between tokens, and their curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, finish, over, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import heading, lines_of, section, short

NAMES = {"xlstm_hip": "ours", "vllm": "vLLM with the plug-in", "transformers": "transformers serve"}
COLUMNS = (
    "server", "load", "tokens a second", "first token, p50 and p99", "between tokens, p50 and p99",
    "a request's mean, p50 and p99",
)  # fmt: skip


def load_text(row: dict[str, Any]) -> str:
    return f"{row['at_a_time']} at a time" if row["rate"] is None else f"{row['rate']:g} a second"


def pair(row: dict[str, Any], metric: str) -> str:
    return " and ".join(short(row[f"{metric}_ms"][share]) for share in ("p50", "p99"))


def markdown(results: Results) -> str:
    settings = results["settings"]
    lines = heading(
        "Serving over HTTP",
        results,
        f"{summary(results['environment'])}. Requests of {settings['prompt']} tokens in and {settings['new']} out by "
        "`vllm bench serve` on loopback, which has its share of the machine. Times in ms. Between tokens: of all pairs "
        "of tokens; where two come in one read, the client sees a short wait and a long one, so beside it stands each "
        "request's mean. `transformers serve` answers with an empty part at once, which the client takes for the first "
        "token.",
    )
    for model in dict.fromkeys(row["model"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["model"] == model]
        cells = [
            (NAMES[row["server"]], load_text(row), f"{row['tokens_per_s']:,.0f}")
            + tuple(pair(row, metric) for metric in ("ttft", "itl", "tpot"))
            for row in rows
            if "missing" not in row
        ]
        missing = [f"- {NAMES[row['server']]}: {row['missing']}" for row in rows if "missing" in row]
        lines += section(f"Model {model}", *lines_of(COLUMNS, cells), *(["", *missing] if missing else []))
    return "\n".join(lines) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    """Tokens a second over the requests at a time, a panel for each model."""
    rows = [row for row in results["rows"] if row.get("rate", 0) is None]
    models = list(dict.fromkeys(row["model"] for row in rows))
    if not models:
        return []
    figure, axes = panels(len(models))
    colours = colours_of(NAMES.values())
    for panel, model in zip(axes, models, strict=True):
        for server, name in NAMES.items():
            points = [(r["at_a_time"], r["tokens_per_s"]) for r in rows if (r["model"], r["server"]) == (model, server)]
            over(panel, points, color=colours[name], label=name)
        panel.set(title=f"model {model}, tokens a second", xlabel="requests at a time", xscale="log", yscale="log")
        panel.legend(fontsize=8, frameon=False)
    return finish(results, figure, "Serving over HTTP, by vLLM's client", base.with_suffix(".png"))
