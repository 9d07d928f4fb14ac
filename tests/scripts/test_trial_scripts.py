# SPDX-License-Identifier: Apache-2.0
"""scripts/save_outputs_for_trials.py and judge_outputs.py: texts of a run's trials, and their verdicts."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from xlstm_hip.tune.measure import OK, Result
from xlstm_hip.tune.runs import Run

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path) -> Run:
    new_run = Run.create(
        tmp_path, "cpu", "mlstm_chunkwise", {"op": "mlstm_chunkwise", "dtype": "float32", "device": "cpu"}
    )
    for number, (chunk, ms, status) in enumerate([(16, 2.0, OK), (32, 1.0, OK), (64, 0.1, "wrong"), (128, 1.5, OK)]):
        new_run.add(number, {"chunk_size": chunk}, Result(status, ms=(ms,), shipped_ms=(1.0,)))
    return new_run


def test_the_best_trials_are_written_and_judged(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, judge = script("save_outputs_for_trials"), script("judge_outputs")
    few = functools.partial(save.save_outputs_for_trials, texts=1, read=40, written=20)
    monkeypatch.setattr(save, "save_outputs_for_trials", few)
    assert save.main([str(run.folder), "--best", "2"]) == 0
    outputs = run.folder / "outputs"
    assert {path.stem for path in outputs.glob("*.json")} == {"shipped", "trial-1", "trial-3"}
    capsys.readouterr()
    assert judge.main([str(outputs), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["trial-1"]["refused"] == "" and judged["trial-1"]["perplexity"] > 1
    # Planted: a text of which the model has another opinion than it had when it wrote it.
    worse = json.loads((outputs / "trial-3.json").read_text())
    worse["read_logprob"] -= 1
    (outputs / "trial-3.json").write_text(json.dumps(worse))
    assert judge.main([str(outputs)]) == judge.REFUSED
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "trial-3" in line)
    assert "read_logprob is" in line


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("--trials", "1", "9"), "--trials: expected trials of the run, 0 to 3, got [9]"),
        (("--best", "0"), "run: expected a trial with right results, got none"),
        (("--model", "nowhere"), "--model: expected the folder of a checkpoint, or a model of the Hugging Face hub"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("save_outputs_for_trials").main([str(run.folder), *arguments]) == 1
    assert text in capsys.readouterr().err


def test_folders_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("save_outputs_for_trials").main([str(tmp_path)]) == 1
    assert "expected the folder of a run with run_meta.json" in capsys.readouterr().err
    assert script("judge_outputs").main([str(tmp_path)]) == 1
    assert "folder: expected outputs with shipped.json" in capsys.readouterr().err
