# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, and figures as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def lines_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    padded = [
        "| " + " | ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) + " |" for row in (columns, *rows)
    ]
    return [padded[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *padded[1:]]


def short(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def spread_text(ms: dict[str, Any]) -> str:
    return f"{short(ms['median'])} ({short(ms['min'])}..{short(ms['max'])})"
