# SPDX-License-Identifier: Apache-2.0
"""benchmarks/tensor_parallel.py: a smoke run over processes, its table, and options that fit nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/tensor_parallel.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_smoke_run(tmp_path: Path) -> None:
    done = run("--quick", "--dtypes", "int8", "--out", tmp_path / "t.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [(row["work"], row["ranks"]) for row in rows] == [
        ("writing", 1), ("writing", 2), ("training", 1), ("training", 2),
    ]  # fmt: skip
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        assert abs(two["check"] / one["check"] - 1) < 5e-3 and two["tokens_per_s"] > 0
    assert "1.00x" in (tmp_path / "t.md").read_text() and (tmp_path / "t.png").stat().st_size > 8000


def test_a_rank_that_fails_ends_the_run(tmp_path: Path) -> None:
    done = run("--quick", "--dtypes", "--sizes", "24x1024", "--ranks", 3, "--out", tmp_path / "t.json")
    assert done.returncode == 1 and "rank 0 failed" in done.stderr
    assert "mesh: expected a number of ranks that divides num_heads = 4, got 3" in done.stderr


def test_wrong_dtypes() -> None:
    done = run("--quick", "--dtypes", "bf16")
    assert done.returncode == 2 and "--dtypes: expected fp32, int8 or int4 on this device, got bf16" in done.stderr
