# SPDX-License-Identifier: Apache-2.0
"""Decoding over the batch: tokens a second, shares of the floor, and the curves with the floors drawn in."""

from __future__ import annotations

from pathlib import Path

from pages.model_grid import curves, head, ms_text, names_in, rate, share_of_floor, table, tail
from xlstm_hip.bench.plot import finish, over, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import lines_of, section, short

FLOOR_STYLES = ("--", ":", "-.")


def kinds_in(results: Results) -> list[str]:
    """Of weights that a contender was timed with."""
    entries = (e for point in results["points"] for e in point["contenders"])
    return list(dict.fromkeys(e["weights"] for e in entries if "ms" in e))


def floors(results: Results) -> list[str]:
    kinds = kinds_in(results)
    rows = [[p["title"], *(short(p["floors_ms"][kind]) for kind in kinds)] for p in results["points"]]
    return lines_of(["", *kinds], rows)


def markdown(results: Results) -> str:
    lines = head(
        "Decoding over the batch",
        results,
        f"Greedy decoding after {results['points'][0]['length']} tokens, {results['settings']['steps']} steps a call. "
        "A floor is the time of a copy of what a step must move: all weights but the embedding once, as they are "
        "stored, and the float32 states of the batch in and out.",
    )
    if names_in(results):
        lines += section("Tokens a second", *table(results, rate))
        lines += section("Milliseconds of a step", *table(results, ms_text))
        lines += section("The floor as a share of the time", *table(results, share_of_floor))
        lines += section("Floors of a step by the weights, ms", *floors(results))
    return "\n".join([*lines, *tail(results)]) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    if not names_in(results):  # a run that was ended early
        return []
    figure, axes = panels(2, size=(6, 5))
    curves(axes[0], results, "batch", lambda point, entry: entry["tokens_per_s"])
    curves(axes[1], results, "batch", lambda point, entry: entry["ms"]["median"])
    for kind, style in zip(kinds_in(results), FLOOR_STYLES, strict=False):
        ms = [(p["batch"], p["floors_ms"][kind]) for p in results["points"]]
        over(axes[0], [(b, 1e3 * b / x) for b, x in ms], color="0.4", linestyle=style, label=f"floor of {kind}")
        over(axes[1], ms, color="0.4", linestyle=style)
    axes[0].set(title="tokens a second", xlabel="sequences", yscale="log")
    axes[1].set(title="ms of a step", xlabel="sequences", yscale="log")
    axes[0].legend(fontsize=7, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.14))
    title = f"decoding, model {results['model']['name']}, {results['settings']['dtype']}"
    return finish(results, figure, title, base.with_suffix(".png"))
