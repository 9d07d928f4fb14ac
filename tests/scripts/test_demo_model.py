# SPDX-License-Identifier: Apache-2.0
"""The model in models/demo: small, readable by both loaders, fluent; scripts/demo_model.py shows it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from xlstm_hip.models import Stream, generate, load_pretrained

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "demo"
UNSEEN = b"When the man saw that the water was deep, he went back to the house of his brother and said to him, "


def test_size() -> None:
    assert (MODEL / "model.safetensors").stat().st_size <= 2_000_000


def test_it_has_learnt_to_read_and_write() -> None:
    model = load_pretrained(MODEL, torch.float32, progress=False)
    scores = Stream(model).score(torch.tensor([[0, *UNSEEN]]))[0, 1:]
    assert scores.mean() > -1.4  # nats a byte, of a sentence that is not in the text it was trained on
    generated = generate(model, [list(UNSEEN)], 300, temperature=0.5, seed=1, eos=())
    words = bytes(generated.tokens[0].tolist()).decode("ascii").split()
    common = {"the", "and", "of", "to", "in", "he", "you", "that", "his", "will", "for", "I", "not", "is", "my", "who"}
    assert sum(word.strip('".,;') in common for word in words) > len(words) / 5


def test_transformers_loads_it() -> None:
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model, x = load_pretrained(MODEL, torch.float32, progress=False), torch.tensor([[0, *UNSEEN]])
    with torch.no_grad():
        assert torch.allclose(peer(x).logits, model(x)[0], atol=1e-3)


def test_the_demo_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = ("--tokens", "20", "--read", "70", "--write", "8", "--threads", "1", "--output", str(tmp_path))
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo_model.py"), *small],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "In the beginning" in done.stdout and "xlstm_hip" in done.stdout
    assert (tmp_path / "model_demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--read", "15"), "argument --read: expected a whole number >= 16, got '15'"),
        (("--temperature", "-1"), "argument --temperature: expected a finite number >= 0, got '-1'"),
        (("--output", __file__), "argument --output: expected a folder, got the file"),
    ],
)
def test_wrong_arguments_of_the_demo(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "argv", ["demo_model.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "scripts" / "demo_model.py"))["arguments"]()
    assert stopped.value.code == 2 and words in capsys.readouterr().err
