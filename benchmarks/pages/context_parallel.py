# SPDX-License-Identifier: Apache-2.0
"""A sequence over several ranks: times, how much of the ranks is used, and its curve."""

from __future__ import annotations

from pathlib import Path

from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.plot import colours_of, finish, over, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import heading, lines_of, section, spread_text

COLUMNS = ("work", "tokens", "ranks", "ms", "tokens a second", "efficiency", "GiB of a rank")


def alone(row: Results, rows: list[Results]) -> Results | None:
    """The same by one rank, if it was measured."""
    return next((x for x in rows if (x["work"], x["tokens"], x["ranks"]) == (row["work"], row["tokens"], 1)), None)


def efficiency(row: Results, rows: list[Results]) -> float | None:
    """One rank's time over this one's times its ranks."""
    one = alone(row, rows)
    return None if one is None else one["ms"]["median"] / (row["ranks"] * row["ms"]["median"])


def markdown(results: Results) -> str:
    settings, rows = results["settings"], results["rows"]
    heads, dqk, dhv = settings["heads"]
    lines = heading(
        "A sequence over several ranks",
        results,
        f"{summary(results['environment'])}. One row of tokens in {settings['dtype']}, divided evenly; "
        f"{settings['backend']}, one thread a rank. The mLSTM has {heads} heads of {dqk}/{dhv}, attention "
        f"as many of 128, the model is {settings['shape']}. *ms*: a round's slowest rank. *efficiency*: one rank's "
        "time over the ranks' times theirs. A result that differs from one rank's ends the run.",
    )
    cells = []
    for row in rows:
        share = efficiency(row, rows)
        cells.append(
            (
                row["work"], f"{row['tokens']:,}", str(row["ranks"]), spread_text(row["ms"]),
                f"{1e3 * row['tokens'] / row['ms']['median']:,.0f}", "" if share is None else f"{share:.0%}",
                f"{row['peak_bytes'] / 2**30:.2f}" if row["peak_bytes"] else "",
            )
        )  # fmt: skip
    return "\n".join([*lines, *section("Times", *lines_of(COLUMNS, cells))]) + "\n"


def draw(results: Results, base: Path) -> list[Path]:
    """Efficiency over the ranks."""
    rows = results["rows"]
    names = list(dict.fromkeys(f"{row['work']}, {row['tokens']:,} tokens" for row in rows))
    if not names:
        return []
    figure, (panel, *_) = panels(1, size=(7, 4))
    colours = colours_of(names)
    for name in names:
        own = [row for row in rows if f"{row['work']}, {row['tokens']:,} tokens" == name]
        points = [(row["ranks"], share) for row in own if (share := efficiency(row, rows)) is not None]
        over(panel, points, color=colours[name], label=name)
    panel.axhline(1, color="0.4", linestyle="--")
    panel.set(xlabel="ranks", title="efficiency", ylim=(0, None), xticks=sorted({row["ranks"] for row in rows}))
    panel.get_xaxis().set_major_formatter("{x:g}")
    panel.legend(fontsize=8, frameon=False, loc="lower left")
    return finish(results, figure, "A sequence over several ranks", base.with_suffix(".png"))
