# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks: times, and how many times one rank's speed that is."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, finish, over, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import heading, lines_of, section, spread_text

COLUMNS = (
    "work",
    "model or weights",
    "batch",
    "ranks",
    "ms of a step",
    "tokens a second",
    "of one rank",
    "GiB of a rank",
)
KEYS = ("work", "weights", "batch")


def alone(row: Results, rows: list[Results]) -> Results | None:
    """The same by one rank, if it was measured."""
    return next((x for x in rows if x["ranks"] == 1 and all(x[key] == row[key] for key in KEYS)), None)


def speedup(row: Results, rows: list[Results]) -> float | None:
    one = alone(row, rows)
    return None if one is None else one["ms"]["median"] / row["ms"]["median"]


def title(row: Results) -> str:
    return f"{row['work']}, {row['weights']}, batch {row['batch']}"


def markdown(results: Results) -> str:
    settings, rows = results["settings"], results["rows"]
    lines = heading(
        "A model over several ranks",
        results,
        f"{summary(results['environment'])}. Each rank has some of the heads and features; {settings['backend']}, one "
        f"thread a rank. Writing: the model is {settings['shape']} with random weights, {settings['dtype']} but for "
        "int8 and int4. Training: autocast to bfloat16 and AdamW. *ms*: a round's slowest rank. *of one rank*: one "
        "rank's time over theirs. A result that differs from one rank's ends the run.",
    )
    cells = []
    for row in rows:
        times = speedup(row, rows)
        cells.append(
            (
                row["work"], row["weights"], str(row["batch"]), str(row["ranks"]), spread_text(row["ms"]),
                f"{row['tokens_per_s']:,.0f}", "" if times is None else f"{times:.2f}x",
                f"{row['peak_bytes'] / 2**30:.2f}" if row["peak_bytes"] else "",
            )
        )  # fmt: skip
    return "\n".join([*lines, *section("Times", *lines_of(COLUMNS, cells))]) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    """Speed over the ranks, as times one rank's."""
    rows = results["rows"]
    names = list(dict.fromkeys(title(row) for row in rows))
    if not names:
        return []
    figure, (panel, *_) = panels(1, size=(7, 4.5))
    colours = colours_of(names)
    for name in names:
        own = [row for row in rows if title(row) == name]
        over(
            panel,
            [(row["ranks"], times) for row in own if (times := speedup(row, rows)) is not None],
            color=colours[name],
            label=name,
        )
    ranks = sorted({row["ranks"] for row in rows})
    panel.plot(ranks, ranks, color="0.4", linestyle="--", label="as many times as ranks")
    panel.set(xlabel="ranks", title="speed, of one rank's", ylim=(0, None), xticks=ranks)
    panel.get_xaxis().set_major_formatter("{x:g}")
    panel.legend(fontsize=7, frameon=False, loc="upper left")
    return finish(results, figure, "A model over several ranks", base.with_suffix(".png"))
