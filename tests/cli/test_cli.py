# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip: what its commands print, their exit codes, errors of one line, Ctrl-C."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import xlstm_hip_command
from support.peer_models import scramble
from support.terminal import command
from xlstm_hip import __version__, cli
from xlstm_hip._core.device import DeviceFacts
from xlstm_hip.cli import doctor
from xlstm_hip.models import SpecialTokens, generate, load_pretrained, save_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.evaluation import distinct

DEMO = Path(__file__).parents[2] / "models" / "demo"
MI300X = DeviceFacts("AMD Instinct MI300X", "amd", "gfx942", 304, 65536, 64, 192 << 30)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    model = xLSTMLarge(xLSTMLargeConfig(64, 2, 2, 256, ffn_proj_factor=1.0))
    scramble(model)
    save_pretrained(model, folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = cli.main([str(x) for x in arguments])
    except SystemExit as stopped:  # argparse
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_generate(checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_pretrained(checkpoint, weight_mode="fused", progress=False)
    generated = generate(model, [list(b"Hello")], 30, temperature=0.7, seed=3, eos=()).tokens[0].tolist()
    want = bytes(generated).decode("utf-8", "replace")
    options = ("--max-tokens", 30, "--temperature", 0.7, "--seed", 3, "--ignore-end")
    code, out, _ = run(capsys, "generate", checkpoint, "--prompt", "Hello", *options)
    assert code == 0 and len(out) > 10 and want.startswith(out[:-1])  # less the bytes of a character without its end
    file = checkpoint / "prompt.txt"
    file.write_text("Hello")
    assert run(capsys, "generate", checkpoint, "--file", file, *options)[1] == out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello")))
    code, again, err = run(capsys, "generate", checkpoint, "--echo", "--stats", *options)
    assert again == "Hello" + out
    assert "prefill: 6 tokens in" in err and "decode: 30 tokens in" in err


def test_characters_of_several_bytes_come_whole(capsys: pytest.CaptureFixture[str]) -> None:
    from xlstm_hip.models.tokenizer import BYTES

    complete = BYTES.streamer(())
    assert [complete(token) for token in "é€a".encode()] == ["", "é", "", "", "€", "a"]
    assert BYTES.decode(BYTES.encode("é€a")) == "é€a"


def test_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from xlstm_hip.models.tokenizer import load_tokenizer

    words = {"the": 0, "fox": 1, "[UNK]": 2}
    word_tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    word_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    word_tokenizer.enable_truncation(1)  # of training's batches
    word_tokenizer.enable_padding(length=8)
    word_tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path, 3)
    assert loaded.encode("the fox") == [0, 1]
    complete = loaded.streamer(())
    assert "".join(complete(t) for t in (0, 1)).split() == ["the", "fox"]
    with pytest.raises(FileNotFoundError, match="expected tokenizer.json for a vocabulary of 50304"):
        load_tokenizer(str(DEMO), 50304)
    with pytest.raises(FileNotFoundError, match="path: expected the folder of a checkpoint, or a model of the Hugging"):
        load_tokenizer(tmp_path / "none", 50304)


def test_convert(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new"
    options = ("--scheme", "xlstm_large", "--weights", "fused", "--dtype", "bfloat16", "--shard-gb", 0.0001)
    code, out, _ = run(capsys, "convert", checkpoint, target, *options)
    assert code == 0 and "weights, " in out
    assert (target / "model_0.safetensors").exists() and (target / "config.yaml").exists()
    old, new = (load_pretrained(f, torch.float32, progress=False).state_dict() for f in (checkpoint, target))
    assert all(torch.allclose(old[name], new[name], rtol=1e-2) for name in old)
    code, _, err = run(capsys, "convert", checkpoint, target)
    assert (
        code == 1
        and err.startswith("xlstm-hip convert: target: expected a new or empty folder")
        and err.count("\n") == 1
    )


def test_special_tokens_that_a_scheme_cannot_keep_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = xLSTMLarge(xLSTMLargeConfig(64, 2, 1, 256, ffn_proj_factor=1.0))
    model.special_tokens = SpecialTokens(bos=5)
    save_pretrained(model, tmp_path / "own")
    assert "special" not in run(capsys, "convert", tmp_path / "own", tmp_path / "hf")[2]
    code, _, err = run(capsys, "convert", tmp_path / "own", tmp_path / "large", "--scheme", "xlstm_large")
    assert code == 0 and "note: config.yaml cannot store special tokens: SpecialTokens(bos=5" in err


def test_eval(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a b a b a\nb a b\n\n")
    code, out, _ = run(capsys, "eval", "--model", checkpoint, "--lines", "--json", "--weights", "single", file)
    actual = json.loads(out)
    model = load_pretrained(checkpoint, progress=False)
    scores = []
    for line in (b"a b a b a", b"b a b"):
        x = torch.tensor([[0, *line]])
        with torch.no_grad():
            logits = model(x)[0][:, :-1].log_softmax(-1)
        scores += logits.gather(-1, x[:, 1:, None]).flatten().tolist()
    assert code == 0 and actual["texts"] == 2 and actual["tokens"] == len(scores) == 14
    assert actual["avg_logprob"] == pytest.approx(sum(scores) / 14, rel=1e-4)
    assert actual["perplexity"] == pytest.approx(math.exp(-actual["avg_logprob"]), rel=1e-6)
    assert actual["distinct-2"] == 2 / 6 and actual["distinct-3"] == 2 / 4
    code, out, _ = run(capsys, "eval", "--lines", file)
    assert code == 0 and "perplexity" not in out and "distinct-2   0.3333" in out
    assert distinct(["one"], 2) != distinct(["one"], 2)


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "--device", "mi300x", "--length", 8192)
    assert code == 0 and "compute_units 304" in out and "forward: schedule common, rows 256" in out
    assert "segments" in json.loads(run(capsys, "plan", "--json")[1])
    assert "MI300X" in run(capsys, "plan", "--device", "list")[1].splitlines()
    code, _, err = run(capsys, "plan", "--device", "MI9000")
    assert code == 1 and "--device: expected one of cpu, MI300X" in err


def test_doctor_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor")
    assert "the mLSTM on cpu is right" in out
    assert code == (1 if "PROBLEM" in out else 0)


def levels(findings: object) -> str:
    return " ".join(f"{x.level}: {x.text} -> {x.remedy}" for x in findings)  # type: ignore[attr-defined]


def test_doctor_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    kfd = {"/dev/kfd"}.__contains__
    maps = (
        "7f0 r-xp 00 08:01 1 /opt/rocm-6.4/lib/libamdhip64.so.6.4.2\n"
        "7f1 r-xp 00 08:01 1 /opt/rocm-6.4/lib/libamdhip64.so.6.4.2\n"
        "7f2 r-xp 00 08:01 2 /venv/torch/lib/libamdhip64.so\n"
    )
    assert "PROBLEM: 2 HIP runtimes in one process: /opt/rocm-6.4" in levels(doctor.runtime_findings(maps))
    assert levels(doctor.runtime_findings(maps.splitlines()[2])).startswith("ok: HIP runtime: /venv")
    of_pip = "/venv/_rocm_sdk_core/lib/libamdhip64.so.7"
    assert levels(doctor.runtime_findings(f"7f2 r-xp 00 08:01 2 {of_pip}\n")).startswith(f"ok: HIP runtime: {of_pip}")
    assert "join the groups" in levels(doctor.torch_findings("HIP", None, kfd))
    assert "an AMD GPU, but this torch was not built for it" in levels(doctor.torch_findings("", None, kfd))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "unset CUDA_VISIBLE_DEVICES" in levels(doctor.torch_findings("CUDA", None, {"/dev/nvidia0"}.__contains__))
    assert "no GPU: " in levels(doctor.torch_findings("", None, lambda path: False))
    assert "experimental" not in levels(doctor.torch_findings("HIP", MI300X, kfd))
    rdna = dataclasses.replace(MI300X, arch="gfx1201")
    assert "note: kernels for gfx1201 are experimental" in levels(doctor.torch_findings("HIP", rdna, kfd))
    assert "PYTORCH_ROCM_ARCH=gfx942" in levels(doctor.kernel_findings(MI300X, "HIP", ["gfx90a"], "", "HIP"))
    assert "PROBLEM" not in levels(doctor.kernel_findings(MI300X, "HIP", ["gfx942"], "", "HIP"))
    assert "built for CUDA, torch for HIP" in levels(doctor.kernel_findings(MI300X, "CUDA", ["90a"], "", "HIP"))
    assert "XLSTM_HIP_GPU=HIP" in levels(doctor.kernel_findings(MI300X, "", [], "no hipcc", "HIP"))
    assert doctor.same_arch("sm_90", "90a") and not doctor.same_arch("sm_80", "90")
    assert "reports another arch" in levels(doctor.environment_findings({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}))
    assert "plain torch" in levels(doctor.environment_findings({"XLSTM_HIP_BACKEND": "reference"}))


@pytest.mark.parametrize("command", ["", "generate", "chat", "convert", "eval", "doctor", "plan"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *([command] if command else []), "--help")
    assert code == 0 and out.startswith("usage: xlstm-hip") and max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "the following arguments are required: COMMAND"),
        (("quantise",), 2, "invalid choice: 'quantise'"),
        (("generate", "nowhere", "--prompt", "x"), 1, "xlstm-hip generate: model: expected the folder of a checkpoint"),
        (
            ("convert", "nowhere", "y"),
            1,
            "source: expected the folder of a checkpoint, or a model of the Hugging Face hub",
        ),
        (
            ("quantize", "nowhere", "y"),
            1,
            "source: expected the folder of a checkpoint, or a model of the Hugging Face hub",
        ),
        (("generate", "x", "--prompt", "x", "--top-k", "9" * 20), 2, f"whole number >= 0 up to {2**63 - 1}, got '999"),
        (("generate", "x", "--temperature", "0", "--top-k", "5"), 2, "--temperature: expected above 0 with top_k"),
        (("generate", "x", "--top-p", "0", "--prompt", "x"), 2, "--top-p: expected a number above 0, up to 1, got '0'"),
        (("generate", "x", "--temperature", "hot"), 2, "--temperature: expected a finite number >= 0, got 'hot'"),
        (("generate", "x", "--repetition-penalty", "0"), 2, "expected a finite number above 0, got '0'"),
        (("convert", "x", "y", "--shard-gb", "inf"), 2, "--shard-gb: expected a number above 0, up to 1e6, got 'inf'"),
        (("convert", "x", "y", "--shard-gb", "1e300"), 2, "expected a number above 0, up to 1e6, got '1e300'"),
        (("quantize", "x", "y", "--shard-gb", "0"), 2, "--shard-gb: expected a number above 0, up to 1e6, got '0'"),
        (("generate", "x", "--max-tokens", "-1"), 2, "expected a whole number >= 0, got '-1'"),
        (("generate", "x", "--file", "nothing.txt"), 1, "No such file or directory: 'nothing.txt'"),
        (("eval", "nothing.txt"), 1, "No such file or directory: 'nothing.txt'"),
        (("eval", "x.txt", "--device", "cpu"), 2, "--device: expected --model with it, got 'cpu'"),
        (("eval", "x.txt", "--dtype", "float16"), 2, "--dtype: expected --model with it, got 'float16'"),
        (("eval", "x.txt", "--weights", "fused"), 2, "--weights: expected --model with it, got 'fused'"),
        (("eval", "x.txt", "--threads", "2"), 2, "--threads: expected --model with it, got 2"),
        (("generate", "x", "--prompt", "x", "--device", "nowhere"), 2, "--device: expected cpu, cuda or cuda:N, got"),
        (("generate", DEMO, "--prompt", "x", "--device", "cuda:99"), 1, "--device: expected a device that torch sees"),
        (("plan", "--device", "MI300X", "--chunk-size", "32"), 2, "--chunk-size: expected none on a GPU, got 32"),
        (("plan", "--device", "MI300X", "--threads", "2"), 2, "--threads: expected none on a GPU, got 2"),
        (("plan", "--dqk", "32"), 2, "--dqk: expected none on a CPU, got 32"),
        (("plan", "--dhv", "32"), 2, "--dhv: expected none on a CPU, got 32"),
        (("plan", "--dtype", "float16"), 2, "--dtype: expected none on a CPU, got 'float16'"),
        (("plan", "--walk-chunk", "64"), 2, "--walk-chunk: expected none on a CPU, got 64"),
    ],
)
def test_errors(arguments: tuple, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    actual, _, err = run(capsys, *arguments)
    assert actual == code and words in err and err.count("\n") == 1


def test_texts_that_are_none(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    where = f"expected UTF-8 in {tmp_path / 'latin.txt'}, got byte 0xe9\n"
    for arguments, name in (
        (("generate", checkpoint, "--file", tmp_path / "latin.txt"), "generate: --file"),
        (("eval", tmp_path / "latin.txt"), "eval: texts"),
        (("quantize", checkpoint, tmp_path / "new", "--text", tmp_path / "latin.txt"), "quantize: --text"),
    ):
        code, _, err = run(capsys, *arguments)
        assert (code, err) == (1, f"xlstm-hip {name}: {where}")
    code, _, err = run(capsys, "generate", checkpoint, "--prompt", "a\udcff")
    assert (code, err) == (1, "xlstm-hip generate: --prompt: expected UTF-8\n")
    code, _, err = run(capsys, "eval", tmp_path / "nowhere")
    assert (code, err) == (1, f"xlstm-hip eval: texts: No such file or directory: '{tmp_path / 'nowhere'}'\n")
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run(capsys, "generate", checkpoint)
    assert (code, err) == (1, "xlstm-hip generate: prompt: expected text in stdin, which is closed\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), errors="surrogateescape"))
    code, _, err = run(capsys, "generate", checkpoint)
    assert (code, err) == (1, "xlstm-hip generate: prompt: expected UTF-8 in stdin, got byte 0xff\n")


def test_a_tokenizer_that_is_none(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(checkpoint, tmp_path / "own")
    (tmp_path / "own" / "tokenizer.json").write_text("{")
    code, _, err = run(capsys, "generate", tmp_path / "own", "--prompt", "x")
    assert code == 1 and "tokenizer.json: nothing that the tokenizers package reads" in err and err.count("\n") == 1


def started(code: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess:
    """The installed command, in a process in which something else happens first."""
    run_it = f"{code}\nimport sys; sys.argv = {['xlstm-hip', *arguments]!r}\n"
    run_it += "from xlstm_hip_command import main\nsys.exit(main())"
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    return subprocess.run([sys.executable, "-c", run_it], capture_output=True, text=True, env=environment, timeout=120)


# A signal while torch is imported: in a finder that is asked for it, or in a callback, which loses exceptions.
INTERRUPTED_IMPORT = """
import signal, sys, weakref
class Freed: pass
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            {}
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("where", ("interrupt()", "freed = Freed(); ref = weakref.ref(freed, interrupt); del freed"))
def test_ctrl_c_while_it_starts(where: str) -> None:
    heard, ignored = (  # said, as tests that run in the background are started with the latter
        f"import signal; signal.signal(signal.SIGINT, signal.{handler})\n{INTERRUPTED_IMPORT.format(where)}"
        for handler in ("default_int_handler", "SIG_IGN")
    )
    done = started(heard, "doctor")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")
    done = started(ignored, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"xlstm-hip {__version__}\n", "")


# The finder of an editable install comes before PYTHONPATH and imports the source tree: Python's own finders alone.
WITHOUT_EDITABLE_FINDERS = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = (BuiltinImporter, FrozenImporter, PathFinder)
"""


def test_a_library_that_is_missing(tmp_path: Path) -> None:
    package = Path(cli.__file__).parents[1]
    shutil.copytree(package, tmp_path / "xlstm_hip", ignore=shutil.ignore_patterns("_xlstm_hip_ops.so", "__pycache__"))
    shutil.copytree(Path(xlstm_hip_command.__file__).parent, tmp_path / "xlstm_hip_command")
    done = started(WITHOUT_EDITABLE_FINDERS, "doctor", path=tmp_path)
    assert done.returncode == 1 and done.stderr == ""
    assert "PROBLEM  _xlstm_hip_ops.so is missing" in done.stdout and f"for torch {torch.__version__}" in done.stdout
    done = started(WITHOUT_EDITABLE_FINDERS, "plan", path=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("xlstm-hip: _xlstm_hip_ops.so is missing") and done.stderr.count("\n") == 1


def test_an_environment_variable_that_is_wrong() -> None:
    done = started("import os; os.environ['XLSTM_HIP_LOGS'] = 'foo'", "plan")
    assert done.returncode == 1 and done.stderr.startswith("xlstm-hip: XLSTM_HIP_LOGS: expected any of")
    done = started("import os; os.environ['XLSTM_HIP_LOGS'] = 'foo'", "doctor")
    assert done.returncode == 1 and done.stderr == "" and "PROBLEM  XLSTM_HIP_LOGS: expected any of" in done.stdout


def test_ctrl_c_and_closed_pipes(checkpoint: Path) -> None:
    endless = ("generate", checkpoint, "--prompt", "x", "--max-tokens", 0, "--ignore-end")
    for stop in ("interrupt", "close"):
        running = command(*endless)
        assert running.stdout is not None and running.stderr is not None
        try:
            assert running.stdout.read(1)  # it streams before it ends
            if stop == "interrupt":
                time.sleep(0.2)
                running.send_signal(signal.SIGINT)
                _, err = running.communicate(timeout=60)
                assert running.returncode == 130
            else:
                running.stdout.close()
                err = running.stderr.read()
                assert running.wait(timeout=60) == 0
        finally:
            running.kill()
        assert "Traceback" not in err
