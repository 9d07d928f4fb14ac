# SPDX-License-Identifier: Apache-2.0
"""scripts/demo.py runs at a small size, and names the argument that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo.py"
SMALL = ("--length", "100", "--heads", "2", "--dqk", "16", "--dhv", "24", "--decode", "32", "--threads", "1")


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_small_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = demo(*SMALL, "--dtypes", "fp32", "bf16", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    for words in ("fp32, 100 tokens", "bf16, 100 tokens", "peak memory", "decoding", "worst gradient"):
        assert words in done.stdout
    assert (tmp_path / "out" / "mlstm_demo.png").read_bytes().startswith(b"\x89PNG")


def test_one_token(tmp_path: Path) -> None:
    done = demo(*SMALL, "--length", "1", "--dtypes", "fp16", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--length", "0"), "argument --length: expected a whole number >= 1, got '0'"),
        (("--length", "many"), "argument --length: expected a whole number >= 1, got 'many'"),
        (("--heads", "-1"), "argument --heads: expected a whole number >= 1, got '-1'"),
        (("--decode", "3"), "argument --decode: expected a whole number >= 32, got '3'"),
        (("--dtypes", "int8"), "argument --dtypes: invalid choice: 'int8'"),
        (("--output", str(DEMO)), "argument --output: expected a folder, got the file"),
        (("--speed", "1"), "unrecognized arguments: --speed"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], words: str) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
