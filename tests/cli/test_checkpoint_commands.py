# SPDX-License-Identifier: Apache-2.0
"""convert and quantize: the files beside the weights, quantised sources, and what the commands say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support.peer_models import scramble
from xlstm_hip import cli
from xlstm_hip.models import load_pretrained, save_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.hub import TOKENIZER_FILES

OTHER_FILES = ("README.md", "train.log", "optimizer.pt")  # of the source alone


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "whole"
    model = xLSTMLarge(xLSTMLargeConfig(64, 2, 1, 256, ffn_proj_factor=1.0))
    scramble(model)
    save_pretrained(model, folder)
    for name in (*TOKENIZER_FILES, *OTHER_FILES):
        (folder / name).write_text(json.dumps({"a file": name}))
    return folder


@pytest.fixture(scope="module")
def quantised(source: Path) -> Path:
    folder = source.with_name("int4")
    assert cli.main(["quantize", str(source), str(folder), "--bits", "4", "--group-size", "32"]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(x) for x in arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", ["convert", "quantize"])
def test_the_files_of_a_tokenizer_go_along(
    command: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("tokenizer.json", "chat_template.jinja", "tokenizer.model", "merges.txt", "generation_config.json")
    assert set(named) <= set(TOKENIZER_FILES)
    assert run(capsys, command, source, tmp_path / "new")[0] == 0
    for name in TOKENIZER_FILES:
        assert (tmp_path / "new" / name).read_bytes() == (source / name).read_bytes()
    assert not any((tmp_path / "new" / name).exists() for name in OTHER_FILES)


def test_a_chat_template_that_transformers_wrote_goes_along(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    hf_tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    hf_tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    load_pretrained(source, progress=False).save_pretrained(tmp_path / "own")
    hf_tokenizer.save_pretrained(tmp_path / "own")
    for command in ("convert", "quantize"):
        assert run(capsys, command, tmp_path / "own", tmp_path / command)[0] == 0
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / command)
        assert again.chat_template == hf_tokenizer.chat_template and again.get_vocab() == hf_tokenizer.get_vocab()


def test_converting_quantised_weights_keeps_them(
    source: Path, quantised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says how many bits they have: the count is that of the weights they stand for."""
    count = sum(x.numel() for x in load_pretrained(source, progress=False).parameters())
    _, out, _ = run(capsys, "convert", source, tmp_path / "whole")
    assert out.startswith(f"{tmp_path / 'whole'}: {count} weights, ")
    code, out, _ = run(capsys, "convert", quantised, tmp_path / "again")
    assert code == 0 and out.startswith(f"{tmp_path / 'again'}: {count} weights of 4 bits, ")
    weights, new = (load_pretrained(x, progress=False).state_dict() for x in (quantised, tmp_path / "again"))
    assert weights.keys() == new.keys() and all(torch.equal(weights[name], new[name]) for name in weights)


def test_quantised_weights_have_no_other_dtype(
    quantised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "convert", quantised, tmp_path / "new", "--dtype", "float32")
    want = "xlstm-hip convert: --dtype: expected none for quantised weights, which stay as they are, got float32\n"
    assert (code, out, err) == (1, "", want) and not (tmp_path / "new").exists()
