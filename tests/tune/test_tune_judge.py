# SPDX-License-Identifier: Apache-2.0
"""Judging outputs: plans that only cut a call up otherwise pass, one that changes what is said does not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from xlstm_hip import kernel_info, register_mlstm_kernel
from xlstm_hip._core.plans import Plan
from xlstm_hip.mlstm import registry
from xlstm_hip.models import load_pretrained, xLSTMLarge
from xlstm_hip.models.tokenizer import Tokenizer, load_tokenizer
from xlstm_hip.tune import judge_outputs, save_outputs_for_trials
from xlstm_hip.tune.judge import SHIPPED, why_refused

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
FEW: dict[str, int] = {"texts": 2, "read": 160, "written": 60}
METRICS = ("avg_logprob", "perplexity", "distinct-2", "distinct-3", "read_logprob")


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return load_pretrained(DEMO, torch.float32, "cpu", progress=False)


@pytest.fixture(scope="module")
def tokenizer(model: xLSTMLarge) -> Tokenizer:
    return load_tokenizer(DEMO, model.config.vocab_size)


@pytest.fixture
def worse_kernels() -> Iterator[None]:
    """Planted: a chunkwise kernel and a step whose h has the other sign. Its length alone would be normed away."""

    def turned(*tensors: Any, **options: Any) -> Any:
        results = kernel_info("chunkwise--fused").function(*tensors, **options)
        return (results[0] * -1, results[1]) if isinstance(results, tuple) else results * -1

    def step(*tensors: Any, **options: Any) -> Any:
        h, states = kernel_info("fused", "step").function(*tensors, **options)
        return h * -1, states

    names = (("chunkwise--worse", "chunkwise", turned), ("worse", "step", step))
    for name, kind, function in names:
        register_mlstm_kernel(
            name, function, kind=kind, devices=("cpu",), dtypes=(torch.float32,), gradient="none",
            options=("layout",) if kind == "chunkwise" else ("in_place",),
        )  # fmt: skip
    yield
    for name, kind, _ in names:
        registry.unregister_mlstm_kernel(name, kind)


def judged(model: xLSTMLarge, tokenizer: Tokenizer, op: str, folder: Path, **trials: Plan) -> dict[str, dict[str, Any]]:
    save_outputs_for_trials(model, tokenizer, op, trials, folder, **FEW)
    return judge_outputs(model, folder)


def test_plans_that_only_cut_otherwise_pass(model: xLSTMLarge, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = (model.config.chunkwise_kernel, model.config.step_kernel, model.config.chunk_size)
    trials: dict[str, Plan] = {
        "chunks": {"chunk_size": 16, "segments": 3},
        "native": {"kernel": "chunkwise--native_autograd", "chunk_size": 32},
    }
    verdicts = judged(model, tokenizer, "mlstm_chunkwise", tmp_path, **trials)
    assert sorted(verdicts) == ["chunks", "native", SHIPPED]
    for verdict in verdicts.values():
        assert verdict["refused"] == "" and set(verdict) == {*METRICS, "refused"}
        assert verdict["perplexity"] == pytest.approx(math.exp(-verdict["avg_logprob"]))
        assert verdict["read_logprob"] == pytest.approx(verdicts[SHIPPED]["read_logprob"], abs=1e-4)
    assert verdicts["chunks"]["read_logprob"] != verdicts[SHIPPED]["read_logprob"]  # it was cut up otherwise
    outputs = json.loads((tmp_path / "chunks.json").read_text())
    assert outputs["plan"] == trials["chunks"] and len(outputs["texts"]) == 2 and len(outputs["tokens"][0]) == 60
    assert before == (model.config.chunkwise_kernel, model.config.step_kernel, model.config.chunk_size)


def test_the_outputs_are_the_models(model: xLSTMLarge, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The demo model writes words of its language, and knows it: about 1.2 nats a byte."""
    verdicts = judged(model, tokenizer, "mlstm_step", tmp_path, same={"kernel": "native"})
    assert 0.4 < -verdicts["same"]["read_logprob"] < 1.6 and 0.4 < -verdicts["same"]["avg_logprob"] < 1.6
    assert verdicts["same"]["refused"] == "" and verdicts["same"]["distinct-2"] > 0.5


@pytest.mark.usefixtures("worse_kernels")
@pytest.mark.parametrize(("op", "kernel"), [("mlstm_chunkwise", "chunkwise--worse"), ("mlstm_step", "worse")])
def test_a_plan_that_changes_outputs_is_refused(
    model: xLSTMLarge, tokenizer: Tokenizer, tmp_path: Path, op: str, kernel: str
) -> None:
    verdicts = judged(model, tokenizer, op, tmp_path, worse={"kernel": kernel})
    assert verdicts["worse"]["refused"].startswith("read_logprob is -") and verdicts[SHIPPED]["refused"] == ""


GOOD = {"avg_logprob": -1.0, "distinct-2": 0.8, "distinct-3": 0.9, "read_logprob": -1.2}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, ""),
        ({"read_logprob": -1.204}, ""),
        ({"read_logprob": -1.21}, "read_logprob"),
        ({"read_logprob": -1.19}, "read_logprob"),
        ({"read_logprob": math.nan}, "read_logprob"),
        ({"avg_logprob": -1.2}, "avg_logprob"),
        ({"avg_logprob": -0.8}, ""),
        ({"avg_logprob": math.nan}, "avg_logprob"),
        ({"distinct-2": 0.6}, "distinct-2"),
        ({"distinct-3": 0.7}, "distinct-3"),
        ({"distinct-3": math.nan}, "distinct-3"),
    ],
)
def test_what_is_refused(changed: dict[str, float], named: str) -> None:
    why = why_refused(GOOD | changed, GOOD)
    assert why.partition(" ")[0] == named


def test_texts_without_words_say_nothing_of_variety() -> None:
    none = GOOD | {"distinct-2": math.nan, "distinct-3": math.nan}
    assert why_refused(none, none) == ""


def test_a_folder_without_outputs(model: xLSTMLarge, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder: expected outputs with shipped.json, got"):
        judge_outputs(model, tmp_path)
