# SPDX-License-Identifier: Apache-2.0
"""The benchmark of attention: it runs, holds results to the truth, and makes its tables and picture from the file."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.benchmark import Session
from xlstm_hip.bench import timing
from xlstm_hip.bench.machine import Machine

pytestmark = pytest.mark.rows("ci")  # runs the script as a user does
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


def test_a_wrong_feature_ends_the_run(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And every row is held to the definition: planted, a window that is one token too wide."""
    features = load("attention_features")
    rows = features.sequences(True, "forward")
    (fused,) = features.OPERATOR.implementations

    def wider(cell: Any, inputs: Any) -> Any:
        return fused.prepare(cell if cell.window is None else replace(cell, window=cell.window + 1), inputs)

    planted = replace(features.OPERATOR, implementations=(replace(fused, prepare=wider),))
    monkeypatch.setattr(features, "OPERATOR", planted)
    session = Session(Namespace(quick=True), Machine("cpu"), timing.QUICK, {})
    with pytest.raises(
        SystemExit, match=r"a window of 16: wrong: out; not timed; errors: out .*; expected at most 0.02"
    ):
        features.measure(session, rows, (), lambda fraction: None)


@pytest.mark.parametrize("work", ["forward", "backward"])
def test_pairs_are_counted(load: Callable[[str], Any], work: str) -> None:
    rows = load("attention_features").sequences(True, work)
    length, heads = 512, 4
    assert rows["dense"].flops == rows["packed"].flops == rows["a key head for four"].flops
    assert rows["dense"].pairs == 2 * heads * length**2 / 2
    assert rows["a window of 64"].pairs == 2 * heads * (length * 64 - 64**2 / 2)
    assert rows["packed, unlike lengths"].pairs == heads * (64**2 + 192**2 + 3**2 + 765**2) / 2


def test_the_time_is_kept(load: Callable[[str], Any], tmp_path: Path) -> None:
    """What is not reached is said, of each contender."""
    out = tmp_path / "late.json"
    load("attention").BENCHMARK.main(["--quick", "--threads", "1", "--seconds", "1e-9", "--out", str(out)])
    results = json.loads(out.read_text())
    assert {e["missing"] for cell in results["speed"] for e in cell["contenders"]} == {"left out for time"}
    assert "n/a: ours: left out for time" in out.with_suffix(".md").read_text()
