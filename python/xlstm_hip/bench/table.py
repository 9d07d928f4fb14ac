# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, the lines above them, and figures as words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .environment import BUSY

UNKNOWN = "n/a"
SMOKE_RUN = "**A smoke run: small shapes and too few rounds to be figures.**"


def lines_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    padded = [
        "| " + " | ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) + " |" for row in (columns, *rows)
    ]
    return [padded[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *padded[1:]]


def heading(title: str, results: dict[str, Any], *lines: str) -> list[str]:
    """The head of a page: the lines, and then the reasons why its figures must not be quoted."""
    facts, warnings = results["environment"], []
    if results["settings"]["quick"]:
        warnings.append(SMOKE_RUN)
    if results.get("ended_early"):
        warnings.append("**Ended early: not all points are here.**")
    if facts["load_before"] > BUSY and not facts.get("gpu"):
        warnings.append(f"**The machine was busy when this began (load {facts['load_before']:.1f}).**")
    return [f"# {title}", "", *lines, *(x for warning in warnings for x in ("", warning))]


def section(title: str, *lines: str) -> list[str]:
    return ["", f"## {title}", "", *lines]


def entry_of(entries: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    """Empty where there is none."""
    return next((entry for entry in entries if entry["name"] == name), {})


def short(value: float | None, digits: int = 3) -> str:
    """So many digits, never an exponent."""
    if value is None:
        return UNKNOWN
    return f"{value:.{digits}g}" if value < 10 ** (digits - 1) else f"{value:.0f}"


def spread_text(ms: dict[str, Any]) -> str:
    return f"{short(ms['median'])} ({short(ms['min'])}..{short(ms['max'])})"


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def inexact(errors: dict[str, float], limit: float) -> list[str]:
    """The results whose errors are above the limit, or not a number."""
    return [name for name, error in errors.items() if not error <= limit]


def and_list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
