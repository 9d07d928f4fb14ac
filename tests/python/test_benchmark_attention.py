# SPDX-License-Identifier: Apache-2.0
"""The benchmark of attention: it runs, holds results to the truth, and makes its tables and picture from the file."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from xlstm_hip.bench.machine import Machine
from xlstm_hip.progress import Tasks

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_smoke_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "made" / "smoke.json"
    command = [sys.executable, str(BENCHMARKS / "attention.py"), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = out.with_suffix(".md").read_text()
    assert done.stdout.startswith(text) and "A smoke run" in text
    assert out.with_suffix(".png").stat().st_size > 10_000

    results = json.loads(out.read_text())
    assert {(c["work"], c["dtype"], c["causal"]) for c in results["speed"]} == {
        (work, dtype, causal)
        for work in ("forward", "forward+backward")
        for dtype in ("fp32", "bf16")
        for causal in (False, True)
    }
    for cell in results["speed"]:
        names = [entry["name"] for entry in cell["contenders"]]
        assert names == ["ours", "torch SDPA", "standard attention"]
        for entry in cell["contenders"]:
            assert entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"] and entry["times_ours"]["min"] > 0
            assert entry["error"] < (1e-5 if cell["dtype"] == "fp32" else 1e-1)
    (memory,) = results["memory"]
    assert memory["contenders"][0]["bytes"] > 0


def test_smoke_run_of_features(tmp_path: Path) -> None:
    out = tmp_path / "made" / "features.json"
    command = [
        sys.executable,
        str(BENCHMARKS / "attention_features.py"),
        "--quick",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(out.with_suffix(".md").read_text())
    tables = json.loads(out.read_text())["tables"]
    assert [len(rows) for rows in tables.values()] == [7, 7, 5, 5]
    assert all(row["ms"]["median"] > 0 and row["error"] < 5e-3 for rows in tables.values() for row in rows)
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_a_wrong_feature_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    features = importlib.import_module("attention_features")
    x = torch.ones(1, 2, 1, 8)
    row = features.Row("a row", lambda: 1.1 * x, lambda: x)
    with pytest.raises(SystemExit, match="a row: error 0.1, expected at most 0.02"):
        features.measure([row], Machine("cpu"), True, Tasks(1))
