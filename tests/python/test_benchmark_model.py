# SPDX-License-Identifier: Apache-2.0
"""The benchmark of whole models: it runs, all contenders write the same, and its files hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_smoke_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    pytest.importorskip("xlstm")
    out = tmp_path / "made" / "smoke.json"
    options = ("--quick", "--size", "demo", "--threads", "1", "--out", str(out))
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "model.py"), *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    text = out.with_suffix(".md").read_text()
    assert done.stdout.startswith(text) and "A smoke run" in text
    assert out.with_suffix(".png").stat().st_size > 10_000

    (size,) = json.loads(out.read_text())["sizes"]
    assert size["weights"] == 923_296
    jobs = {job["job"]: job for job in size["jobs"]}
    assert list(jobs) == ["write B1", "write B8", "read B1 S32", "read B2 S128", "first token after 32"]
    names = [entry["name"] for entry in jobs["write B8"]["contenders"]]
    assert names == ["xlstm_hip", "xlstm_hip int8", "xlstm_hip int4", "transformers", "xlstm_large"]
    for job in size["jobs"]:
        for entry in job["contenders"]:
            assert entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"] and entry["tokens_per_s"] > 0
    assert [row["length"] for row in size["memory"]] == [4, 8] and size["loading"]["load"] > 0
