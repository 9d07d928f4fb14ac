# SPDX-License-Identifier: Apache-2.0
"""Judging results where no text can be made: every plan of the space passes, planted errors do not."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlstm_hip._core.plans import Plan
from xlstm_hip.cli.tune import _judge, _model_folder
from xlstm_hip.tune import judge_errors, save_errors_for_trials, space_of
from xlstm_hip.tune import problem as problems
from xlstm_hip.tune.errors import draws
from xlstm_hip.tune.problem import Problem

ATTENTION = Problem("attention_forward", dtype="bfloat16", batch=2, heads=2, length=80, dqk=16, dhv=16, causal=True)
BACKWARD = Problem("mlstm_backward", dtype="float32", batch=1, heads=2, length=100, dqk=16, dhv=24)
ATTENTION_BACKWARD = Problem(
    "attention_backward", dtype="float32", batch=1, heads=4, heads_k=1, length=100, queries=70, dqk=16, dhv=24
)
MLA = Problem("mla_decode", batch=2, heads=4, heads_k=1, length=100, queries=1, dqk=24, dhv=16)
VERDICT = {"share_of_tolerance", "shipped_share", "refused"}


def judged(problem: Problem, folder: Path, **trials: Plan) -> dict[str, dict[str, Any]]:
    save_errors_for_trials(problem, trials, folder)
    return judge_errors(folder)


@pytest.mark.parametrize("problem", [ATTENTION, BACKWARD, ATTENTION_BACKWARD, MLA], ids=lambda problem: problem.op)
def test_plans_that_only_cut_otherwise_pass(problem: Problem, tmp_path: Path) -> None:
    plans = {f"trial-{n}": plan for n, plan in enumerate(space_of(problem, 2).candidates())}
    verdicts = judged(problem, tmp_path, **plans)
    assert sorted(verdicts) == sorted(["shipped", *plans])
    for name, verdict in verdicts.items():
        assert verdict["refused"] == "", (plans.get(name), verdict)
        assert set(verdict) == VERDICT and 0 < verdict["share_of_tolerance"] <= 1
        assert verdict["shipped_share"] == verdicts["shipped"]["share_of_tolerance"]
    saved = json.loads((tmp_path / "trial-0.json").read_text())
    assert saved["plan"] == plans["trial-0"] and [row["length"] for row in saved["draws"]] == [
        problem.length, problem.length, 65
    ]  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[Problem, Any], Any], choice: str) -> None:
    """In calls whose plan names the choice."""
    right = problems.call_of

    def planted(problem: Problem, x: Any, plan: Plan) -> Callable[[], Any]:
        call = right(problem, x, plan)
        return (lambda: change(problem, call())) if choice in plan else call

    monkeypatch.setattr(problems, "call_of", planted)


@pytest.mark.parametrize(
    ("problem", "plan", "wrong"),
    [
        (ATTENTION, {"splits": 2}, 1.02),
        (BACKWARD, {"segments": 2}, 1.02),
        (ATTENTION_BACKWARD, {"parts": 2}, 1.02),
        (MLA, {"splits": 2}, 1.1),  # on CPUs without AVX-512 2 % are within its tolerance
    ],
    ids=lambda x: getattr(x, "op", ""),
)
@pytest.mark.parametrize("at", ["at length", "error nan"])
def test_a_plan_that_changes_results_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problem: Problem, plan: Plan, wrong: float, at: str
) -> None:
    factor = math.nan if at == "error nan" else wrong
    plant(monkeypatch, lambda problem, results: (*results[:-1], results[-1] * factor), *plan)
    results = judged(problem, tmp_path, wrong=plan)
    assert at in results["wrong"]["refused"] and results["shipped"]["refused"] == ""


def test_a_plan_that_is_wrong_at_another_length_of_its_class_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(
        monkeypatch,
        lambda problem, results: tuple(x * (1.02 if problem.length == 65 else 1) for x in results),
        "splits",
    )
    assert judged(ATTENTION, tmp_path, short={"splits": 2})["short"]["refused"].startswith("at length 65, seed 3, ")


def test_a_plan_that_cannot_make_a_call_of_its_class_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(problem: Problem, results: Any) -> Any:
        raise RuntimeError("no such cut")

    plant(monkeypatch, fails, "splits")
    results = judged(ATTENTION, tmp_path, fails={"splits": 2})["fails"]
    assert results["refused"].endswith("RuntimeError: no such cut") and results["share_of_tolerance"] is None


def test_few_queries_stay_few() -> None:
    decoding = Problem("attention_forward", heads=2, length=300, dqk=16, dhv=16, queries=1)
    assert [drawn.queries for drawn, _ in draws(decoding)] == [1, 1, 1]
    long = Problem("attention_forward", heads=2, length=300, dqk=16, dhv=16, queries=290)
    assert [(drawn.queries, drawn.length) for drawn, _ in draws(long)] == [(290, 300), (290, 300), (257, 257)]


def test_a_folder_without_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder: expected errors with shipped.json, got"):
        judge_errors(tmp_path)


def test_the_command_judges_by_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Verdicts are the numbers' own, and a table gets what passed."""
    plant(monkeypatch, lambda problem, results: tuple(x * 1.02 for x in results), "block_size")
    results = _judge(None, ATTENTION)({12: {"block_size": 32}, 3: {"splits": 2}}, tmp_path)
    assert results[3]["refused"] == "" and results[12]["refused"].startswith(
        "at length 80, seed 1, result 0: error 0.02"
    )
    with pytest.raises(ValueError, match="--model: expected none for mlstm_backward"):
        _model_folder(argparse.Namespace(model=str(tmp_path), revision=None), BACKWARD)
