# SPDX-License-Identifier: Apache-2.0
"""examples/python/long_prompt.py: the same text after a prompt over two ranks as after one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/python/long_prompt.py"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def written(ranks: int, prompt: Path) -> str:
    done = run("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", EXAMPLE, str(prompt))
    assert done.returncode == 0, done.stderr[-3000:]
    first, text = done.stdout.split("\n", 1)
    assert re.fullmatch(rf"[\d,]+ tokens over {ranks} ranks in [\d.]+ s", first), done.stdout
    return text


def test_a_prompt_over_two_ranks(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(
        "And it came to pass in those days, that there went out a decree. " * 100 + "And", encoding="utf-8"
    )
    over_two, alone = written(2, prompt), written(1, prompt)
    assert over_two == alone and len(alone) == 41, (over_two, alone)


def test_without_torchrun() -> None:
    done = run(EXAMPLE, "README.md")
    assert done.returncode == 2 and "start it with torchrun" in done.stderr
