# SPDX-License-Identifier: Apache-2.0
"""The benchmark of attention: it runs, holds results to the truth, and makes its tables and picture from the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
