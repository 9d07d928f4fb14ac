# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the layers: it runs, holds results to the truth, and makes its table and picture from the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "layers.py"


def test_smoke_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "made" / "smoke.json"
    command = [sys.executable, str(BENCHMARK), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = out.with_suffix(".md").read_text()
    assert done.stdout.startswith(text) and "A smoke run" in text
    assert out.with_suffix(".png").stat().st_size > 10_000

    results = json.loads(out.read_text())
    assert len({(c["layer"], c["work"], c["dtype"], c["tokens"]) for c in results["cells"]}) == 6 * 2 * 2 * 2
    for cell in results["cells"]:
        assert [entry["name"] for entry in cell["contenders"]] == ["xlstm_hip", "plain torch", "copy"]
        for entry in cell["contenders"]:
            assert entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"] and entry["times_ours"]["min"] > 0
