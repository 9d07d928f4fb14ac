# SPDX-License-Identifier: Apache-2.0
"""benchmarks/context_parallel.py: a smoke run over processes, its table, and numbers that fit nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/context_parallel.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_smoke_run(tmp_path: Path) -> None:
    done = run(
        "--quick",
        "--works",
        "causal attention with gradients",
        "a prompt read by the model",
        "--out",
        tmp_path / "c.json",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [row["ranks"] for row in rows] == [1, 2, 1, 2]
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        assert abs(two["check"] / one["check"] - 1) < 1e-4 and two["ms"]["median"] > 0
    assert "100%" in (tmp_path / "c.md").read_text() and (tmp_path / "c.png").stat().st_size > 8000


def test_wrong_numbers() -> None:
    done = run("--quick", "--ranks", 3, "--tokens", 2)
    assert done.returncode == 2 and "--tokens: expected 12 or more, 4 for each rank, got 2" in done.stderr
