# SPDX-License-Identifier: Apache-2.0
"""Reading prompts: tokens a second, shares of the floor, what chunks cost, and the curves with the floor drawn in."""

from __future__ import annotations

from pathlib import Path

from pages.model_grid import Entry, curves, head, ms_text, names_in, rate, share_of_floor, table, tail
from xlstm_hip.bench.plot import finish, over, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import section


def loss(point: Results, entry: Entry) -> str:
    """Of reading in chunks, in time; empty where the prompt is one chunk."""
    return f"{entry['in_chunks']['ratio']['median'] - 1:+.0%}" if "in_chunks" in entry else ""


def markdown(results: Results) -> str:
    lines = head(
        "Reading a prompt",
        results,
        "Up to the logits of the next token. A floor is the larger of two times: that of the weights' matrix products "
        "at the rate of a large one, and that of a copy of all weights once and the states in and out.",
    )
    if names_in(results):
        chunk = results["settings"]["chunk"]
        lines += section("Tokens a second", *table(results, rate))
        lines += section("Milliseconds", *table(results, ms_text))
        lines += section("The floor as a share of the time", *table(results, share_of_floor))
        lines += section(f"What reading in chunks of {chunk} adds to the time", *table(results, loss))
    return "\n".join([*lines, *tail(results)]) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    """A panel for each batch."""
    if not names_in(results):  # a run that was ended early
        return []
    batches = list(dict.fromkeys(point["batch"] for point in results["points"]))
    figure, axes = panels(len(batches), size=(6, 5))
    kind = results["settings"]["dtype"]
    for panel, batch in zip(axes, batches, strict=True):
        points = [point for point in results["points"] if point["batch"] == batch]
        curves(panel, results | {"points": points}, "length", lambda point, entry: entry["tokens_per_s"])
        floor = [(p["length"], 1e3 * batch * p["length"] / p["floors_ms"][kind]) for p in points]
        over(panel, floor, color="0.4", linestyle="--", label=f"floor of {kind}")
        panel.set(title=f"batch {batch}, tokens a second", xlabel="tokens of a prompt", yscale="log")
    axes[0].legend(fontsize=7, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.14))
    return finish(results, figure, f"prefill, model {results['model']['name']}, {kind}", base.with_suffix(".png"))
