# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by the name of a model of the Hugging Face hub: from a hub in this process, and errors of each kind."""

from __future__ import annotations

import importlib.util
import io
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.compat_parts import compat_part
from support.fake_hub import GATED, PRIVATE, TOKEN, FakeHub, fake_hub
from support.peer_models import scramble
from xlstm_hip import cli
from xlstm_hip.models import checkpoint, load_pretrained, save_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.hub import TOKENIZER_FILES, checkpoint_folder

NAME = "lab/tiny-xlstm"


def saved(folder: Path, seed: int) -> Path:
    model = xLSTMLarge(xLSTMLargeConfig(32, 2, 1, 256, ffn_proj_factor=1.0))
    scramble(model, seed)
    save_pretrained(model, folder, max_shard_bytes=40_000)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    new, old = (saved(tmp_path_factory.mktemp(name), seed) for seed, name in enumerate(("new", "old")))
    for name in TOKENIZER_FILES[1:]:
        (new / name).write_text(f'{{"of": "{name}"}}')
    for name in ("pytorch_model.bin", "README.md", "original/model.safetensors"):
        (new / name).parent.mkdir(exist_ok=True)
        (new / name).write_bytes(b"not for this package")
    return new, old


@pytest.fixture
def hub(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.chdir(tmp_path)
    with fake_hub(monkeypatch, tmp_path / "cache") as server:
        server.models = {NAME: {"main": folders[0], "v1": folders[1]}} | {
            name: {"main": folders[0]} for name in (GATED, PRIVATE)
        }
        yield server


def same(model: xLSTMLarge, folder: Path) -> bool:
    weights, reloaded = model.state_dict(), load_pretrained(folder, progress=False).state_dict()
    return weights.keys() == reloaded.keys() and all(torch.equal(weights[name], reloaded[name]) for name in weights)


def test_a_name_is_downloaded_once(hub: FakeHub, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert same(load_pretrained(NAME, progress=False), folders[0])
    weights = {file.name for file in folders[0].glob("*.safetensors*")}
    assert len(weights) > 2 and hub.files_sent() == {*weights, "config.json", *TOKENIZER_FILES[1:]}
    hub.requests.clear()
    assert same(xLSTMLarge.from_pretrained(NAME, progress=False), folders[0])
    assert not hub.files_sent()
    hub.requests.clear()
    assert same(load_pretrained(NAME, progress=False, local_files_only=True), folders[0])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert same(load_pretrained(NAME, progress=False), folders[0])
    assert not hub.requests


def test_a_revision_and_a_cache_of_its_own(hub: FakeHub, folders: tuple[Path, Path], tmp_path: Path) -> None:
    for revision in ("v1", hub.commit(NAME, "v1")):
        assert same(load_pretrained(NAME, revision=revision, cache_dir=tmp_path / "own", progress=False), folders[1])
    assert (tmp_path / "own").is_dir() and not (tmp_path / "cache").exists()
    with pytest.raises(
        FileNotFoundError, match=f"revision: expected a branch, a tag or a commit of '{NAME}', got 'v9'"
    ):
        load_pretrained(NAME, revision="v9")


def test_a_folder_comes_first(hub: FakeHub, folders: tuple[Path, Path], tmp_path: Path) -> None:
    assert same(xLSTMLarge.from_pretrained(NAME, progress=False), folders[0])
    hub.requests.clear()
    saved(tmp_path / NAME, 7)
    assert same(load_pretrained(NAME, progress=False), tmp_path / NAME)
    assert not hub.requests
    with pytest.raises(ValueError, match=f"revision: expected none for a folder, got 'v1' for '{NAME}'"):
        load_pretrained(NAME, revision="v1")


def test_a_token_for_private_and_gated_models(
    hub: FakeHub, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PermissionError) as gated:
        load_pretrained(GATED, progress=False)
    assert f"is gated: accept its terms at {hub.url}/{GATED}, and give a token" in str(gated.value)
    for name in (PRIVATE, "lab/no-such-model"):
        with pytest.raises(FileNotFoundError) as missing:
            load_pretrained(name, progress=False)
        assert str(missing.value).startswith(
            f"path: there is no folder '{name}', and the hub has no model of this name"
        )
        assert "hf auth login, HF_TOKEN or token=" in str(missing.value)
    assert same(load_pretrained(GATED, token=TOKEN, progress=False), folders[0])
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert same(load_pretrained(PRIVATE, progress=False), folders[0])


def test_without_a_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = (
        f"path: there is no folder '{NAME}', and revision 'main' of the hub's model of this name is not in the cache"
    )
    with pytest.raises(FileNotFoundError) as local:
        load_pretrained(NAME, local_files_only=True)
    assert str(local.value).startswith(begin) and str(local.value).endswith("(local_files_only)")
    assert not hub.requests
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError) as offline:
        load_pretrained(NAME)
    assert str(offline.value).startswith(begin) and str(offline.value).endswith("(HF_HUB_OFFLINE)")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", nobody)
        with pytest.raises(FileNotFoundError) as unreachable:
            load_pretrained(NAME)
    assert str(unreachable.value).startswith(begin) and f"{nobody} cannot be reached" in str(unreachable.value)


def test_a_download_that_breaks_off_is_an_error(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("of some network library")

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(OSError, match=f"there is no folder '{NAME}', and .* not be downloaded: KeyError: 'of some net"):
        load_pretrained(NAME)


def test_what_is_neither_is_not_asked_for(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "weights").write_text("a file")
    for text in ("nowhere", "./lab/none", "a/b/c", "none/", "/none", "lab/weights", "lab/what?", Path(NAME)):
        with pytest.raises(FileNotFoundError) as error:
            checkpoint_folder("path", text)
        assert str(error.value) == (
            "path: expected the folder of a checkpoint, or a model of the Hugging Face hub such as 'NX-AI/xLSTM-7b', "
            f"got {str(text)!r}"
        )
    with pytest.raises(TypeError, match="path: expected the name of a folder, got 3"):
        checkpoint_folder("path", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path: .*lab/a--b"):
        checkpoint_folder("path", "lab/a--b")
    assert not hub.requests


def test_a_model_without_a_checkpoint(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text("words")
    hub.models["lab/words"] = {"main": tmp_path / "data"}
    with pytest.raises(FileNotFoundError, match="path: the hub's 'lab/words' has none of the files of a checkpoint"):
        load_pretrained("lab/words", progress=False)


def test_without_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError) as error:
        load_pretrained(NAME)
    assert str(error.value) == (
        f"path: there is no folder '{NAME}', and a model of the hub needs huggingface_hub: pip install "
        '"xlstm_hip[hf]"'
    )
    load_pretrained(saved(tmp_path / "own", 0), progress=False)  # a folder needs none


@pytest.mark.parametrize("progress", [True, False])
def test_progress(hub: FakeHub, progress: bool, capfd: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    load_pretrained(NAME, progress=progress)
    assert are_progress_bars_disabled() == before
    assert ("Fetching" in capfd.readouterr().err) == (progress and not before)


def test_a_model_is_called_by_its_name_and_not_by_a_commit(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "default_dtype", lambda *_: torch.bfloat16)
    assert load_pretrained(NAME, progress=False).dtype == torch.bfloat16
    assert caplog.messages == [
        f'{NAME} is in float32 and is loaded in bfloat16; dtype="auto" (--dtype auto) keeps float32'
    ]


def test_the_official_loader(hub: FakeHub, folders: tuple[Path, Path]) -> None:
    assert same(compat_part("xlstm_large").load_from_pretrained(NAME), folders[0])


def test_commands(
    hub: FakeHub,
    folders: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "text").write_text("a text")

    def run(*arguments: object) -> tuple[int, str]:
        code = cli.main([str(x) for x in arguments])
        return code, capsys.readouterr().out

    for command in (
        ("generate", "--prompt", "x", "--max-tokens", 4),
        ("eval", tmp_path / "text", "--model"),
    ):
        named = run(*command, NAME, "--revision", "v1")
        assert named[0] == 0 and named == run(*command, folders[1]) != run(*command, folders[0])
    if importlib.util.find_spec("jinja2"):
        answers = []
        for model in ((NAME,), (folders[0],), (folders[1], "--template", folders[0] / "chat_template.jinja")):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n")))
            answers.append(run("chat", *model, "--max-tokens", 8))
        assert answers[0] == answers[1] != answers[2] and answers[0][0] == answers[2][0] == 0
    for command in ("convert", "quantize"):
        assert run(command, NAME, tmp_path / command)[0] == 0
        assert all((tmp_path / command / name).exists() for name in TOKENIZER_FILES[1:])
    assert same(load_pretrained(tmp_path / "convert", progress=False), folders[0])
    assert run("convert", folders[0], tmp_path / "other", "--revision", "v1")[0] == 1
