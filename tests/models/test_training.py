# SPDX-License-Identifier: Apache-2.0
"""scripts/train.py: exact resume, the same run on one process and on two, checkpoints that transformers reads."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from xlstm_hip.models import load_pretrained
from xlstm_hip.training import ByteWindows, learning_rate

TRAIN = Path(__file__).resolve().parents[2] / "scripts" / "train.py"
TINY = ("--dim", "32", "--heads", "2", "--blocks", "2", "--ffn-factor", "1", "--batch", "4", "--length", "24")
RUN = (*TINY, "--steps", "8", "--warmup", "2", "--validate-every", "4", "--save-every", "4", "--threads", "1")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("the quick brown fox jumps over the lazy dog, and then it does so again. " * 40)
    return file


def train(*arguments: str, processes: int = 0, script: Path = TRAIN) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes else []
    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *torchrun, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )


def losses(folder: Path) -> list[list[str]]:
    with open(folder / "losses.csv") as file:
        return list(csv.reader(file))[1:]


@pytest.fixture(scope="module")
def plain(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    done = train(str(text), "--output", str(folder), *RUN)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run(plain: Path) -> None:
    rows = losses(plain)
    assert len(rows) == 8 and float(rows[-1][1]) < float(rows[0][1])
    assert [row[0] for row in rows if row[2]] == ["4", "8"]
    assert (plain / "losses.png").exists()
    transformers = pytest.importorskip("transformers")
    peer, report = transformers.xLSTMForCausalLM.from_pretrained(plain / "step-8", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    model, x = load_pretrained(plain / "step-8", progress=False), torch.tensor([[0, 116, 104, 101]])
    with torch.no_grad():
        # Without a cache: the one of transformers has heads of 64 features at least.
        assert torch.allclose(peer(x, use_cache=False).logits, model(x)[0], atol=1e-4)


def test_resume_is_exact(plain: Path, tmp_path: Path) -> None:
    done = train("--resume", str(plain / "step-4"), "--output", str(tmp_path), "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path) == losses(plain)
    done = train("--resume", str(plain / "step-4"), "--output", str(tmp_path), "--threads", "1")
    assert done.returncode == 0, done.stderr  # over what is there
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "step-8" / name).read_bytes() == (plain / "step-8" / name).read_bytes()


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_are_one_run(plain: Path, text: Path, tmp_path: Path, how: str) -> None:
    """Resumed on the way from what one process wrote."""
    done = train("--resume", str(plain / "step-4"), "--output", str(tmp_path), "--parallel", how, processes=2)
    assert done.returncode == 0, done.stderr
    both = zip(losses(tmp_path), losses(plain), strict=True)
    assert all(abs(float(a[1]) - float(b[1])) < 1e-4 for a, b in both)
    one, two = (load_pretrained(f / "step-8", progress=False).state_dict() for f in (plain, tmp_path))
    assert all(torch.allclose(one[name], two[name], atol=2e-3) for name in one)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_ddp_lets_go_of_its_group_before_it_is_destroyed(plain: Path, tmp_path: Path) -> None:
    """DDP's own end waits for the group's threads with Python's lock held: one run in many never returned."""
    script = tmp_path / "looking.py"
    script.write_text(
        "import runpy, sys\n"
        "from pathlib import Path\n"
        "import torch.distributed as dist\n"
        "destroy = dist.destroy_process_group\n"
        "def destroyed():\n"
        "    destroy()\n"
        "    names = [file.read_text().strip() for file in Path('/proc/self/task').glob('*/comm')]\n"
        "    if any('gloo' in name for name in names):\n"
        "        sys.exit(f'still there: {names}')\n"
        "dist.destroy_process_group = destroyed\n"
        f"runpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"
    )
    resumed = ("--resume", str(plain / "step-4"), "--output", str(tmp_path / "run"))
    done = train(*resumed, "--parallel", "ddp", processes=2, script=script)
    assert done.returncode == 0, done.stderr


def test_amp_and_activation_checkpointing(text: Path, plain: Path, tmp_path: Path) -> None:
    done = train(str(text), "--output", str(tmp_path), *RUN, "--amp", "bfloat16", "--checkpoint-activations")
    assert done.returncode == 0, done.stderr
    got, want = ([float(row[1]) for row in losses(folder)] for folder in (tmp_path, plain))
    assert got != want
    assert all(abs(a - b) < 0.05 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected text files, or --resume"),
        (("--resume", "nowhere"), "'nowhere' is no checkpoint of this script"),
        (("nothing.txt",), "No such file or directory: 'nothing.txt'"),
        ((str(TRAIN), "--length", "100000"), "data: expected at least"),
        ((str(TRAIN), "--amp", "int8"), "argument --amp: invalid choice"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = train(*arguments, "--output", str(tmp_path), "--steps", "1")
    assert done.returncode != 0 and words in done.stderr and "Traceback" not in done.stderr


def test_windows() -> None:
    data = ByteWindows([TRAIN], 16, 0.1)
    x, targets = data.batch(0, 3, 6)
    assert x.shape == targets.shape == (6, 16)
    assert torch.equal(x[:, 1:], targets[:, :-1]) and not x[:, 0].any()
    parts = [data.batch(0, 3, 6, rank, 2)[0] for rank in range(2)]
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), x)
    assert not torch.equal(data.batch(0, 4, 6)[0], x) and not torch.equal(data.batch(1, 3, 6)[0], x)
    held_out = bytes(data.validation(2)[1][1].tolist())
    assert TRAIN.read_bytes().endswith(held_out)


def test_learning_rate() -> None:
    rates = [learning_rate(step, 100, 10, 1.0) for step in range(100)]
    assert rates[0] == 0.1 and max(rates) == rates[10] == rates[9] == 1.0 and 0.1 < rates[-1] < 0.11
