# SPDX-License-Identifier: Apache-2.0
"""Whether a plan leaves results as good as they were, for ops that no text of a model can be made with.

A trial was held to float64 at one draw of inputs and one length. An entry of the table stands for more: under each of
the best trials, and under the shipped plans, results are made again from other draws, and at the shortest length of the
entry's class. Their errors are saved; judged is whether all are within twice plain torch's in the same dtype.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._core.plans import Plan, rounded_up
from .judge import SHIPPED
from .problem import Judged, Problem
from .runs import write_json

SEEDS = (1, 2)  # a trial's own is 0


def draws(problem: Problem) -> list[tuple[Problem, int]]:
    """Problems with a seed each: as it was tuned, then at its class's shortest length."""
    shortest = rounded_up(problem.length) // 2 + 1
    short = replace(problem, length=shortest, queries=min(problem.queries, shortest))
    return [*((problem, seed) for seed in SEEDS), (short, SEEDS[-1] + 1)]


def save_errors_for_trials(problem: Problem, trials: Mapping[str, Plan], folder: Path) -> None:
    """Writes what each trial's results are off by, by name, and the shipped plan's, to <folder>/<name>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    plans = {SHIPPED: problem.shipped(), **trials}
    rows_of: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    for drawn, seed in draws(problem):
        judged = Judged(drawn, seed)
        for name, plan in plans.items():
            row: dict[str, Any] = {"seed": seed, "length": drawn.length, "allowed": judged.tolerances}
            try:
                row["errors"] = judged.errors(judged.call(plan)())
            except Exception as error:  # a call of its class that it cannot make
                row["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
            rows_of[name].append(row)
    for name, rows in rows_of.items():
        write_json(folder / f"{name}.json", {"trial": name, "op": problem.op, "plan": dict(plans[name]), "draws": rows})


def judge_errors(folder: Path) -> dict[str, dict[str, Any]]:
    """For each trial in the folder: the largest errors of the trial and of the shipped plan as a share of what is
    allowed, and `refused`: the reason, or an empty text.
    """
    rows_of = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["draws"] for path in sorted(folder.glob("*.json"))
    }
    if SHIPPED not in rows_of:
        raise ValueError(f"folder: expected errors with {SHIPPED}.json, got {str(folder)!r}")
    shares = {name: [share for row in rows for share in _shares(row)] for name, rows in rows_of.items()}
    return {
        name: {
            "share_of_tolerance": max(shares[name], default=None),
            "shipped_share": max(shares[SHIPPED], default=None),
            "refused": next(filter(None, map(_why_refused, rows)), ""),
        }
        for name, rows in rows_of.items()
    }


def _shares(row: Mapping[str, Any]) -> list[float]:
    return [error / allowed for error, allowed in zip(row.get("errors", ()), row["allowed"], strict=False)]


def _why_refused(row: Mapping[str, Any]) -> str:
    where = f"at length {row['length']}, seed {row['seed']}"
    if "failed" in row:
        return f"{where}: {row['failed']}"
    for n, (error, allowed) in enumerate(zip(row["errors"], row["allowed"], strict=True)):
        if not error <= allowed:  # NaN too
            return f"{where}, result {n}: error {error:.2g}, allowed are {allowed:.2g}"
    return ""
