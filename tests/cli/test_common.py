# SPDX-License-Identifier: Apache-2.0
"""Common behaviour of all commands: options in full alone, a line where a terminal is waited for, the dtype that was
taken."""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from xlstm_hip import cli
from xlstm_hip.cli.common import read_text
from xlstm_hip.models import checkpoint

DEMO = Path(__file__).parents[2] / "models" / "demo"


def commands() -> dict[str, argparse.ArgumentParser]:
    (subparsers,) = (x for x in cli.parser()._actions if isinstance(x, argparse._SubParsersAction))
    return dict(subparsers.choices)


def abbreviations() -> Iterator[tuple[str, str]]:
    for name, command in commands().items():
        options = {option for action in command._actions for option in action.option_strings if option[:2] == "--"}
        for option in options:
            if option[:-1] not in options and len(option) > 4:
                yield name, option[:-1]


def test_no_option_is_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    """A new option would change what an abbreviation means."""
    short = list(abbreviations())
    assert ("generate", "--max-token") in short and len(short) > 60
    for name, option in short:
        command = commands()[name]
        required = ["x" for action in command._actions if not action.option_strings and action.nargs is None]
        with pytest.raises(SystemExit):
            command.parse_args([*required, f"{option}=1"])
        want = f"xlstm-hip {name}: unrecognized arguments: {option}=1 (see xlstm-hip {name} --help)\n"
        assert capsys.readouterr().err == want
    with pytest.raises(SystemExit):
        cli.main(["--vers"])
    assert "xlstm-hip: " in capsys.readouterr().err


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_text_from_a_terminal_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "reading the text from the terminal; Ctrl-D ends it\n"
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"a text of words")))
    assert read_text("texts", None) == "a text of words" and capsys.readouterr() == ("", line)
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"a text of words")))
    assert cli.main(["eval"]) == 0 and capsys.readouterr().err == line
    for source in ("piped", "file"):
        (tmp_path / "text").write_text("a text of words")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text of words")))
        assert cli.main(["eval", *([str(tmp_path / "text")] if source == "file" else [])]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [("generate",), ("eval", "--model"), ("bench", "-p", "4", "-n", "0", "--model")])
def test_the_dtype_that_is_taken_on_a_gpu_is_said(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Planted: the device's default for a checkpoint of float32, here on the CPU. Without the handlers of pytest, as in
    a command, warnings go to stderr.
    """
    source = tmp_path / "model"
    assert cli.main(["convert", str(DEMO), str(source), "--dtype", "float32"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(checkpoint, "default_dtype", lambda stored, device: torch.bfloat16)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text of words")))
    more = ("--max-tokens", "2") if command[0] == "generate" else ()
    message = 'model is in float32 and is loaded in bfloat16; dtype="auto" (--dtype auto) keeps float32\n'
    for options, warned in (((), True), (("--dtype", "float32"), False)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text of words")))
        assert cli.main([*command, str(source), *more, *options]) == 0
        assert (message in capsys.readouterr().err) == warned
