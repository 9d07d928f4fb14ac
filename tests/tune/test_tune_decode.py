# SPDX-License-Identifier: Apache-2.0
"""Tuning the path of a decode step: its trials, and that models read the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.peer_models import small_model
from xlstm_hip import cli
from xlstm_hip._core import plans
from xlstm_hip.models import decode_engine
from xlstm_hip.models.quantize import quantize
from xlstm_hip.tune import Problem, tuner
from xlstm_hip.tune.measure import OK, WRONG, Pace, measure

QUICK = Pace(2, 1e-4)
SIZES: dict[str, Any] = {"heads": 2, "length": 1, "dqk": 16, "dhv": 32}
BY_OP, BY_LAYERS = {"path": 1}, {"path": 2}


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("XLSTM_HIP_DECODE_OP_ROWS", raising=False)
    yield
    plans.use_plans(*plans.default_tables())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("plan", [BY_OP, BY_LAYERS], ids=["op", "layers"])
def test_both_paths_are_right(dtype: str, plan: dict[str, int]) -> None:
    result = measure(Problem("decode_step", dtype=dtype, batch=3, **SIZES), plan, QUICK, 2)
    assert result.status == OK, result.error
    assert 0 < result.share_of_tolerance <= 1 and len(result.ms) == len(result.shipped_ms) == 2


def test_a_wrong_path_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the op leaves out the gates' cap."""
    call = decode_engine.DecodeEngine._call

    def planted(engine, out, tokens, keep, states, numbers):
        call(engine, out, tokens, keep, states, numbers._replace(gate_cap=0.5))

    monkeypatch.setattr(decode_engine.DecodeEngine, "_call", planted)
    problem = Problem("decode_step", dtype="float32", batch=2, **SIZES)
    assert measure(problem, BY_OP, QUICK, 2).status == WRONG
    assert measure(problem, BY_LAYERS, QUICK, 2).status == OK


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "SEARCH_PACE", QUICK)
    monkeypatch.setattr(tuner, "FINAL_PACE", QUICK)
    arguments = ["--op", "decode_step", "--dtype", "int8", "--batch", "4", "--heads", "2", "--dqk", "16", "--dhv", "32"]
    assert cli.main(["tune", *arguments, "--threads", "2", "--budget", "9", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("\ntrial ") == 2  # there are no more
    (folder,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert sorted(line["plan"]["path"] for line in lines) == [1, 2] and all(line["status"] == OK for line in lines)
    for entry in plans.read_table(folder / "table.json"):  # where one was faster than the shipped plan
        assert entry["class"] == {"dtype": "int8", "batch": 4, "heads": 2, "dqk": 16, "dhv": 32}


def _table(folder: Path, dtype: str, batch: int, path: int) -> Path:
    sizes = {"dtype": dtype, "batch": batch, "heads": 2, "dqk": 16, "dhv": 32}
    entry = {"op": "decode_step", "arch": plans.arch_of("cpu"), "class": sizes, "plan": {"path": path}}
    file = folder / f"{dtype}.json"
    file.write_text(json.dumps({"format": plans.FORMAT, "entries": [entry]}))
    return file


def test_models_read_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs_layers(model: Any, rows: int) -> bool:
        return decode_engine.engine_of(model, model._new_engine).runs_layers((rows, 2, 16, 32))

    of_floats = small_model(embedding_dim=64, num_heads=2)
    of_bytes, _ = quantize(small_model(embedding_dim=64, num_heads=2), 8, progress=False)
    plans.use_plans(_table(tmp_path, "float32", 4, 2), _table(tmp_path, "int8", 128, 1))
    assert [runs_layers(of_floats, rows) for rows in (2, 3, 4, 5)] == [False, True, True, False]
    assert [runs_layers(of_bytes, rows) for rows in (4, 65, 128, 129)] == [False, False, False, True]
    with plans.trying("decode_step", {"path": 0}):
        assert not runs_layers(of_floats, 4)
    monkeypatch.setenv("XLSTM_HIP_DECODE_OP_ROWS", "4")  # the user's word is the last
    assert not runs_layers(of_floats, 4)


def test_layers_of_several_formats_have_no_entry(tmp_path: Path) -> None:
    model = small_model(embedding_dim=64, num_heads=2)
    model.lm_head.to(torch.bfloat16)
    plans.use_plans(_table(tmp_path, "float32", 4, 2))
    assert not decode_engine.engine_of(model, model._new_engine).runs_layers((4, 2, 16, 32))


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"plan.path: expected one of 0 \(as planned\), 1 \(the decode engine's op\)"):
        plans.check_plan("plan", "decode_step", {"path": 3})
    with pytest.raises(ValueError, match="dtype: expected one of .*int4.*, got 'int2'"):
        Problem("decode_step", dtype="int2", **SIZES)
    with pytest.raises(ValueError, match="dtype: expected one of .*, got 'int8'"):
        Problem("mlstm_step", dtype="int8", **SIZES)
    with pytest.raises(ValueError, match=r"class.dtype: expected one of .*int8.*, got 'int2'"):
        plans.read_table(_table(tmp_path, "int2", 4, 1))
