# SPDX-License-Identifier: Apache-2.0
"""scripts/train.py: exact resume, the same run on one process and on two, checkpoints that transformers reads."""

from __future__ import annotations

import argparse
import csv
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import train_parts as parts
from train_parts import ByteWindows, learning_rate, read_progress
from xlstm_hip.models import checkpoint, load_pretrained, save_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.quantize import quantize

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


def moments_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return parts.read_moments(checkpoint, load_pretrained(checkpoint, progress=False).named_parameters())


def same_checkpoint(one: Path, other: Path) -> None:
    """Bit for bit."""
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    moments, others = moments_of(one), moments_of(other)
    assert all(torch.equal(moments[name], others[name]) for name in moments)


def same_run(plain: Path, other: Path) -> None:
    both = zip(losses(other), losses(plain), strict=True)
    assert all(abs(float(a[1]) - float(b[1])) < 1e-4 for a, b in both)
    one, two = (load_pretrained(f / "step-8", progress=False).state_dict() for f in (plain, other))
    assert all(torch.allclose(one[name], two[name], atol=2e-3) for name in one)
    # AdamW hides a gradient's scale; its moments do not.
    one, two = (moments_of(f / "step-8") for f in (plain, other))
    assert all((one[name] - two[name]).norm() <= 0.01 * one[name].norm() for name in one)


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
    same_checkpoint(tmp_path / "step-8", plain / "step-8")


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=pytest.mark.rows("ci"))])
def test_two_processes_are_one_run(plain: Path, text: Path, tmp_path: Path, how: str) -> None:
    """Resumed on the way from what one process wrote."""
    done = train("--resume", str(plain / "step-4"), "--output", str(tmp_path), "--parallel", how, processes=2)
    assert done.returncode == 0, done.stderr
    same_run(plain, tmp_path)


@pytest.mark.parametrize(
    ("processes", "how"),
    [
        pytest.param(2, "ddp", marks=pytest.mark.rows("ci")),
        pytest.param(2, "fsdp", marks=pytest.mark.rows("ci")),
        pytest.param(4, "fsdp", marks=pytest.mark.rows("ci")),
    ],
)
def test_processes_that_share_windows_are_one_run(
    plain: Path, text: Path, tmp_path: Path, processes: int, how: str
) -> None:
    """Two a window; of four, as a mesh of two by two."""
    done = train(
        "--resume", str(plain / "step-4"), "--output", str(tmp_path), "--parallel", how, "--context", "2",
        "--checkpoint-activations", processes=processes,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    same_run(plain, tmp_path)


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        pytest.param(2, (), marks=pytest.mark.rows("ci")),
        pytest.param(4, ("--parallel", "fsdp"), marks=pytest.mark.rows("ci")),
        (4, ("--parallel", "fsdp", "--context", "2")),
    ],
)
def test_processes_that_share_the_weights_are_one_run(
    plain: Path, tmp_path: Path, processes: int, options: tuple[str, ...]
) -> None:
    done = train(
        "--resume", str(plain / "step-4"), "--output", str(tmp_path), "--tensor", "2", *options, processes=processes
    )
    assert done.returncode == 0, done.stderr
    same_run(plain, tmp_path)


MESHES = (
    (2, "--parallel ddp"), (2, "--parallel fsdp"), (2, "--context 2"), (2, "--context 2 --parallel fsdp"),
    (2, "--tensor 2"), (4, "--parallel ddp"), (4, "--parallel fsdp"), (4, "--context 2 --parallel fsdp"),
    (4, "--context 4"), (4, "--tensor 2 --parallel fsdp"), (4, "--context 2 --tensor 2 --parallel fsdp"),
    (4, "--tensor 4"),
)  # fmt: skip


@pytest.mark.rows("everything")
def test_two_hundred_steps_are_the_same_in_every_mesh(text: Path, tmp_path: Path) -> None:
    """Up to the order of sums. How much that is after so many steps, the plain mesh of windows says: four times that
    for all others."""
    shape = ("--dim", "64", "--heads", "4", "--blocks", "2", "--length", "128", "--batch", "4")
    run = (str(text), *shape, "--warmup", "20", "--steps", "200", "--validate-every", "100", "--save-every", "200")

    def curve(processes: int, options: str) -> list[float]:
        folder = tmp_path / f"{processes}{options.replace(' ', '')}"
        done = train(*run, "--threads", "1", "--output", str(folder), *options.split(), processes=processes)
        assert done.returncode == 0, done.stderr
        return [float(row[1]) for row in losses(folder)]

    one = curve(0, "")
    apart = {
        (n, options): max(abs(a - b) for a, b in zip(curve(n, options), one, strict=True)) for n, options in MESHES
    }
    limit = 4 * max(apart[mesh] for mesh in MESHES if mesh[1] == "--parallel ddp")
    assert len(one) == 200 and max(apart.values()) <= limit < 1e-2 < one[0] - one[-1], apart


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=pytest.mark.rows("ci"))])
def test_resume_of_two_processes_is_exact(text: Path, tmp_path: Path, how: str) -> None:
    uninterrupted, again = tmp_path / "whole", tmp_path / "again"
    options = ("--parallel", how, "--amp", "bfloat16", "--checkpoint-activations")
    done = train(str(text), "--output", str(uninterrupted), *RUN, *options, processes=2)
    assert done.returncode == 0, done.stderr
    done = train("--resume", str(uninterrupted / "step-4"), "--output", str(again), "--parallel", how, processes=2)
    assert done.returncode == 0, done.stderr
    assert losses(again) == losses(uninterrupted)
    same_checkpoint(again / "step-8", uninterrupted / "step-8")


@pytest.mark.rows("ci")
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


def test_a_loss_that_is_no_number(plain: Path, tmp_path: Path) -> None:
    """Every process ends, which one had it is said, and the checkpoint before it goes on."""
    script = tmp_path / "planted.py"
    script.write_text(
        "import runpy\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "import train_parts\n"
        "forward, number = train_parts.LossOf.forward, 4\n"
        "def planted(self, x, targets):\n"
        "    global number\n"
        "    number += torch.is_grad_enabled()\n"
        "    return forward(self, x, targets) * (float('nan') if (dist.get_rank(), number) == (1, 6) else 1)\n"
        "train_parts.LossOf.forward = planted\n"
        f"runpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"
    )
    folder = shutil.copytree(plain / "step-4", tmp_path / "run" / "step-4")
    resumed = ("--resume", str(folder), "--output", str(tmp_path / "run"), "--save-every", "1")
    done = train(*resumed, processes=2, script=script)
    words = "train.py: step 6: the loss is nan on rank 1 of 2"
    assert done.returncode != 0 and words in done.stderr
    assert sorted(x.name for x in (tmp_path / "run").glob("step-*")) == ["step-4", "step-5"]
    done = train("--resume", str(tmp_path / "run" / "step-5"), "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert abs(float(losses(tmp_path / "run")[-1][1]) - float(losses(plain)[-1][1])) < 1e-4


def test_amp_and_activation_checkpointing(text: Path, plain: Path, tmp_path: Path) -> None:
    done = train(str(text), "--output", str(tmp_path), *RUN, "--amp", "bfloat16", "--checkpoint-activations")
    assert done.returncode == 0, done.stderr
    actual, want = ([float(row[1]) for row in losses(folder)] for folder in (tmp_path, plain))
    assert actual != want
    assert all(abs(a - b) < 0.05 for a, b in zip(actual, want, strict=True))


def test_an_optimizer_that_is_damaged(plain: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(plain / "step-4", tmp_path / "step-4")
    (file,) = (folder / "optimizer").glob("*.distcp")
    for damage in (
        lambda: file.write_bytes(file.read_bytes()[:-5000]),
        file.unlink,
        (folder / "optimizer" / ".metadata").unlink,
    ):
        damage()
        done = train("--resume", str(folder), "--output", str(tmp_path / "run"), "--steps", "5")
        assert done.returncode != 0 and "Traceback" not in done.stderr
        assert "optimizer: cannot be read: " in done.stderr, done.stderr


def test_moments_of_another_model(plain: Path) -> None:
    other = [("backbone.blocks.7.ffn.proj_up.weight", torch.zeros(2, 2))]
    with pytest.raises(ValueError, match="optimizer: cannot be read: .*blocks.7"):
        parts.read_moments(plain / "step-4", other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected text files, --dataset, or --resume"),
        ((str(TRAIN), "--dataset", "x"), "argument --dataset: expected nothing with text files, got 'x'"),
        (("--resume", "nowhere"), "'nowhere' is no checkpoint of this script"),
        (("nothing.txt",), "No such file or directory: 'nothing.txt'"),
        ((str(TRAIN), "--length", "100000"), "data: expected at least"),
        ((str(TRAIN), "--amp", "int8"), "argument --amp: invalid choice"),
        ((str(TRAIN), "--device", "cuda"), "argument --device: expected cpu or auto where torch sees no GPU, got cuda"),
    ],
)
def test_wrong_arguments(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments, "--output", str(tmp_path), "--steps", "1"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(TRAIN), run_name="__main__")
    assert words in capsys.readouterr().err + str(stopped.value.code)


def settings(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> argparse.Namespace:
    """The settings that the script reads from its command line."""
    script = runpy.run_path(str(TRAIN))
    monkeypatch.setattr(sys, "argv", ["train.py", "--output", "out", *map(str, arguments)])
    return script["settings_of"](script["arguments"]())


def error_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        settings(monkeypatch, *arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


COUNTS = ("dim", "heads", "blocks", "steps", "batch", "length", "threads", "save-every", "validate-every")


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        *((f"--{name}", ("0", "-1", "1.5", "x"), "expected a whole number >= 1, got ") for name in COUNTS),
        ("--warmup", ("-1",), "expected a whole number >= 0, got "),
        ("--lr", ("0", "nan", "inf", "x"), "expected a finite number above 0, got "),
        ("--ffn-factor", ("0", "nan"), "expected a finite number above 0, got "),
        ("--weight-decay", ("-1", "inf"), "expected a finite number >= 0, got "),
        ("--validation", ("-0.1", "1", "nan"), "expected a number from 0 to below 1, got "),
        ("--seed", ("-1", "1.5"), "expected a whole number >= 0, got "),
        ("--seed", (str(2**32), str(2**70)), f"expected a whole number >= 0 up to {2**32 - 1}, got "),
        ("--heads", (3, 5), "expected a divisor of 64 and 128, the widths of q and v, got "),
    ],
)  # fmt: skip
def test_numbers_are_named(
    option: str, values: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for value in values:
        assert f"argument {option}: {words}{value!r}" in error_text(
            monkeypatch, capsys, "text.txt", f"{option}={value}"
        )


def test_fsdp_is_for_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    words = "argument --parallel: expected torchrun to start this script, got fsdp for one process"
    assert words in error_text(monkeypatch, capsys, "text.txt", "--parallel", "fsdp")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert settings(monkeypatch, "text.txt", "--parallel", "fsdp").parallel == "fsdp"


def test_processes_that_share_are_for_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    words = "argument --tensor: expected torchrun to start this script, got 4 for one process"
    assert words in error_text(monkeypatch, capsys, "text.txt", "--tensor", "4")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    words = "argument --context: expected torchrun to start this script, got 2 for one process"
    assert words in error_text(monkeypatch, capsys, "text.txt", "--context", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    words = "argument --length: expected 4 or more for --context, got 3"
    assert words in error_text(monkeypatch, capsys, "text.txt", "--context", "4", "--length", "3")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is an OSError, which the script tells in one line, and leaves no checkpoint that looks like one."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    model = xLSTMLarge(xLSTMLargeConfig(32, 2, 1, 256, ffn_proj_factor=1.0))
    optimizer = parts.make_optimizer(model, 1e-3, 0.1)
    model.loss(torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    for owner, name, words in (
        (torch, "save", "optimizer: cannot be written: .*No space left on device"),
        (checkpoint, "save_file", "No space left on device"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(OSError, match=words):
                parts.save_checkpoint(tmp_path / "step-1", model, optimizer, {})
        assert not (tmp_path / "step-1").exists()
    parts.save_checkpoint(tmp_path / "step-1", model, optimizer, {})
    assert len(moments_of(tmp_path / "step-1")) == 2 * len(list(model.parameters()))


def test_a_checkpoint_has_its_shape(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """So options that would give a new model another one are refused, and those that say the same are not."""
    for start in (("--resume", plain / "step-4"), ("text.txt", "--init", plain / "step-4")):
        actual = settings(monkeypatch, *start, "--dim", 32, "--blocks", 2)
        assert (actual.dim, actual.heads, actual.blocks, actual.ffn_factor) == (32, 2, 2, 1.0)
        for option, value, stored in (("dim", 64, 32), ("heads", 4, 2), ("blocks", 4, 2), ("ffn-factor", 2.667, 1.0)):
            words = f"argument --{option}: expected {stored}, as the checkpoint has it, or nothing, got {value}"
            assert words in error_text(monkeypatch, capsys, *start, f"--{option}", value)
    resume = ("--resume", plain / "step-4")
    words = "argument --init: expected nothing with --resume, got 'models/demo'"
    assert words in error_text(monkeypatch, capsys, *resume, "--init", "models/demo")
    words = "argument --steps: expected 4 or more, which the checkpoint has, got 3"
    assert words in error_text(monkeypatch, capsys, *resume, "--steps", 3)
    assert "argument --init: nowhere: expected config" in error_text(
        monkeypatch, capsys, "text.txt", "--init", "nowhere"
    )
    (tmp_path / "training.json").write_text("[]")
    assert "is no checkpoint of this script" in error_text(monkeypatch, capsys, "--resume", tmp_path)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("xlstm_large", "scheme: transformers' model needs gate_soft_cap to be a number, got None"),
        ("hf", "init: expected weights that are not quantised, got those of "),
    ],
)
def test_what_cannot_be_saved_is_said_first(scheme: str, words: str, text: Path, tmp_path: Path) -> None:
    cap = None if scheme == "xlstm_large" else 15.0
    model = xLSTMLarge(xLSTMLargeConfig(32, 2, 2, 256, ffn_proj_factor=1.0, gate_soft_cap=cap))
    save_pretrained(model if cap is None else quantize(model, progress=False)[0], tmp_path / "start", scheme)
    done = train(str(text), "--init", str(tmp_path / "start"), "--output", str(tmp_path / "out"))
    assert done.returncode == 1 and f"train.py: {words}" in done.stderr and "Traceback" not in done.stderr


def test_only_models_of_bytes_go_on(text: Path, tmp_path: Path) -> None:
    save_pretrained(xLSTMLarge(xLSTMLargeConfig(32, 2, 2, 512, ffn_proj_factor=1.0)), tmp_path / "start")
    done = train(str(text), "--init", str(tmp_path / "start"), "--output", str(tmp_path / "out"))
    assert done.returncode == 1 and "init: expected a model of bytes, vocab_size 256, got 512" in done.stderr


def test_a_run_of_another_one_says_its_own_shape(plain: Path, text: Path, tmp_path: Path) -> None:
    short = ("--steps", "1", "--batch", "2", "--length", "24", "--threads", "1")
    done = train(str(text), "--init", str(plain / "step-4"), "--output", str(tmp_path), *short)
    assert done.returncode == 0, done.stderr
    saved = read_progress(tmp_path / "step-1")["settings"]
    assert (saved["dim"], saved["heads"], saved["blocks"], saved["ffn_factor"]) == (32, 2, 2, 1.0)


def test_windows() -> None:
    data = ByteWindows(TRAIN.read_bytes(), 16, 0.1)
    x, targets = data.batch(0, 3, 6)
    assert x.shape == targets.shape == (6, 16)
    assert torch.equal(x[:, 1:], targets[:, :-1]) and not x[:, 0].any()
    parts = [data.batch(0, 3, 6, rank, 2)[0] for rank in range(2)]
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), x)
    assert not torch.equal(data.batch(0, 4, 6)[0], x) and not torch.equal(data.batch(1, 3, 6)[0], x)
    held_out = bytes(data.validation(2)[1][1].tolist())
    assert TRAIN.read_bytes().endswith(held_out)


def test_a_dataset(tmp_path: Path, text: Path, plain: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "stories"
    folder.mkdir()
    rows = [{"story": text.read_text(), "number": n} for n in range(2)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    read = text.read_bytes() + b"\2"
    assert parts.bytes_of_dataset(str(folder), "train", "story") == read + read
    options = ("--dataset", str(folder), "--column", "story", "--output", str(tmp_path / "run"), *RUN)
    done = train(*options, "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert " tokens/s; " in done.stdout
    resumed = train("--resume", str(tmp_path / "run" / "step-4"), "--output", str(tmp_path / "run"), "--steps", "5")
    assert resumed.returncode == 0, resumed.stderr
    for name, split, column, words in (
        (str(folder), "train", "text", "column: expected one of story, number of"),
        (str(folder), "train", "number", "column: expected one of texts, got 'number', which has a int"),
        (str(folder), "test", "story", "dataset: cannot load"),
        (str(tmp_path / "nowhere"), "train", "story", "dataset: cannot load"),
    ):
        with pytest.raises(ValueError, match=words):
            parts.bytes_of_dataset(name, split, column)


def test_without_the_package_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"dataset: expected the package datasets \(pip install datasets\)"):
        parts.bytes_of_dataset("x", "train", "text")


def test_speed() -> None:
    model = xLSTMLarge(xLSTMLargeConfig(embedding_dim=64, num_heads=2, num_blocks=3, vocab_size=256))
    products = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    flops = parts.flops_of_token(model)
    assert flops == 3 * (2 * products + 4 * 3 * 2 * 16 * 32)
    speed = parts.Speed(1000, 1000 * flops, 10_000 * flops)
    speed.note(0.5)
    assert str(speed) == "2,000 tokens/s, MFU 20%"
    speed.note(1.5)
    assert str(speed) == "1,667 tokens/s, MFU 17%"
    without_rate = parts.Speed(10, 1, None)
    without_rate.note(2.0)
    assert str(without_rate) == "5 tokens/s"


def test_learning_rate() -> None:
    rates = [learning_rate(step, 100, 10, 1.0) for step in range(100)]
    assert rates[0] == 0.1 and max(rates) == rates[10] == rates[9] == 1.0 and 0.1 < rates[-1] < 0.11
