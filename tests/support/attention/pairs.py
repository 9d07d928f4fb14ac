# SPDX-License-Identifier: Apache-2.0
"""A table in which any two values of any two arguments meet in some row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = tuple[str, int, str, int]

# Shared by the tables of forward and backward on a GPU: values of arguments; (queries, keys) of a packed row.
ON_A_GPU: dict[str, list[Any]] = {
    "layout": ["dense", "strided", "packed"],
    "scale": [None, 0.3, -0.2],
    "causal": [False, True],
    "window": [(-1, -1), (9, 4), (3, -1), (-1, 0)],
    "softcap": [0.0, 2.0],
    "alibi": ["", "h", "bh"],
    "sink": [False, True],
    "dropout_p": [0.0, 0.2],
    "leftpad": [False, True],
    "unused": [False, True],
}
RAGGED = ((3, 5), (0, 7), (41, 100), (6, 0), (33, 32), (0, 0), (1, 1))


def pairwise(values: Mapping[str, Sequence[Any]], legal: Callable[[Row], bool], tries: int = 60) -> list[Row]:
    """Greedy: the row, of several made around a pair that is missing, that brings most of the missing pairs."""
    draw = random.Random(0)
    names = list(values)
    missing: set[Pair] = set()
    for a, b in itertools.combinations(names, 2):
        missing |= {(a, i, b, j) for i in range(len(values[a])) for j in range(len(values[b]))}
    rows = []

    def row_of(chosen: dict[str, int]) -> Row:
        return {name: values[name][chosen[name]] for name in names}

    def brings(chosen: dict[str, int]) -> set[Pair]:
        pairs = ((a, chosen[a], b, chosen[b]) for a, b in itertools.combinations(names, 2))
        return {pair for pair in pairs if pair in missing}

    while missing:
        a, i, b, j = min(missing)
        best: dict[str, int] | None = None
        for _ in range(tries):
            chosen = {name: draw.randrange(len(values[name])) for name in names} | {a: i, b: j}
            if legal(row_of(chosen)) and (best is None or len(brings(chosen)) > len(brings(best))):
                best = chosen
        if best is None:
            missing.discard((a, i, b, j))  # no legal row has it
            continue
        missing -= brings(best)
        rows.append(row_of(best))
    return rows
