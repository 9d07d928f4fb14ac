# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip generate: stop strings, JSON, log-probabilities, state files, and files of prompts that can be resumed."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from xlstm_hip import cli
from xlstm_hip.cli import common, prompt_files, writing
from xlstm_hip.models import Stream, generate_text, load_pretrained, load_tokenizer, xLSTMLarge

DEMO = Path(__file__).parents[2] / "models" / "demo"
SAMPLED = ("--temperature", 0.7, "--min-p", 0.02, "--dtype", "float32")
PROMPTS = ["And it came to pass", "The LORD", "In the", "caf\u00e9", "And he said"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = cli.main(["generate", str(DEMO), *map(str, arguments)])
    except SystemExit as stopped:  # argparse
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return load_pretrained(DEMO, torch.float32, weight_mode="fused", progress=False)


def texts(model: xLSTMLarge, prompts: list[str], count: int, seed: int = 0, **options: Any) -> list:
    tokenizer = load_tokenizer(DEMO, 256)
    return generate_text(model, tokenizer, prompts, count, temperature=0.7, min_p=0.02, seed=seed, **options)


def test_stop_and_json(model: xLSTMLarge, capsys: pytest.CaptureFixture[str]) -> None:
    (free,) = texts(model, PROMPTS[:1], 60)
    stop = free.text[20:23]
    (want,) = texts(model, PROMPTS[:1], 60, stop=[stop], logprobs=2)
    options = ("--prompt", PROMPTS[0], "--max-tokens", 60, "--stop", "\x01", "--stop", stop, *SAMPLED)
    assert run(capsys, *options) == (0, want.text + "\n", "")
    assert len(want.text) <= 20
    code, out, err = run(capsys, *options, "--json", "--logprobs", 2, "--stats")
    actual = json.loads(out)
    scores = actual.pop("logprobs")
    assert code == 0 and out.count("\n") == 1 and "decode: " in err
    assert actual == {
        "prompt": PROMPTS[0], "text": want.text, "finish_reason": "stop", "stop": stop,
        "prompt_tokens": 20, "new_tokens": len(want.tokens),
    }  # fmt: skip
    assert [x["token"] for x in scores] == want.tokens
    for x, expected in zip(scores, want.logprobs, strict=True):
        assert x["logprob"] == pytest.approx(expected.logprob, abs=1e-5) and x["text"] == expected.text
        assert [(t["token"], t["text"]) for t in x["top"]] == [t[:2] for t in expected.top]
    actual = json.loads(run(capsys, "--prompt", "x", "--max-tokens", 2, "--json")[1])
    assert actual["finish_reason"] == "length" and actual["stop"] is None and "logprobs" not in actual


def test_state_files(model: xLSTMLarge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text in two calls: what was read once is not read again, and goes on with the same bits."""
    file = tmp_path / "book.state"
    greedy = ("--temperature", 0, "--dtype", "float32")
    full = run(capsys, "--prompt", PROMPTS[0], "--max-tokens", 40, *greedy)[1]
    first = run(capsys, "--prompt", PROMPTS[0], "--max-tokens", 15, "--save-state", file, *greedy)[1]
    assert Stream.load(file, model).tokens_read == 20 + 15
    code, continued, err = run(
        capsys, "--load-state", file, "--prompt", "", "--max-tokens", 25, "--save-state", file, "--stats", *greedy
    )
    assert code == 0 and first[:-1] + continued == full and "prefill: 0 tokens" in err
    assert Stream.load(file, model).tokens_read == 20 + 40
    penalty = ("--repetition-penalty", 1.3, *greedy)
    again = run(capsys, "--load-state", file, "--prompt", " And", "--max-tokens", 20, *penalty)[1]
    stream = Stream.load(file, model)
    assert stream.seen[0].sum() > 10 and again != run(capsys, "--prompt", " And", "--max-tokens", 20, *penalty)[1]
    (generated,) = texts(model, [" And"], 20, state=stream.state)
    batch = tmp_path / "prompts.jsonl"
    batch.write_text('{"prompt": " And"}\n{"prompt": " But"}\n')
    code, out, _ = run(capsys, "--prompts", batch, "--load-state", file, "--max-tokens", 20, *SAMPLED)
    assert json.loads(out.splitlines()[0])["text"] == generated.text and len(out.splitlines()) == 2


def test_an_end_token_is_not_part_of_a_state(
    model: xLSTMLarge, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (free,) = texts(model, PROMPTS[:1], 9)
    original = load_pretrained

    def with_end(*arguments: Any, **options: Any) -> xLSTMLarge:
        loaded = original(*arguments, **options)
        loaded.special_tokens = dataclasses.replace(loaded.special_tokens, eos=(free.tokens[8],))
        return loaded

    monkeypatch.setattr("xlstm_hip.cli.common.load_pretrained", with_end)
    options = ("--prompt", PROMPTS[0], "--max-tokens", 60, "--save-state", tmp_path / "state", *SAMPLED)
    actual = json.loads(run(capsys, *options, "--json")[1])
    first = free.tokens.index(free.tokens[8])
    assert (actual["finish_reason"], actual["stop"], actual["new_tokens"]) == ("stop", None, first + 1)
    assert Stream.load(tmp_path / "state", model).tokens_read == 20 + first


def test_ctrl_c_saves_the_state(
    model: xLSTMLarge, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the text between two tokens; what was printed is what the state has read."""
    results = []

    def check(token: torch.Tensor) -> None:
        results.append(int(token))
        if len(results) == 30:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(writing, "check_drawn", check)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        options = ("--prompt", "In", "--max-tokens", 0, "--ignore-end", "--save-state", tmp_path / "state", *SAMPLED)
        code, out, err = run(capsys, *options, "--stats")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130 and bytes(results).decode() + "\n" == out and "decode: 30 tokens" in err
    assert Stream.load(tmp_path / "state", model).tokens_read == 3 + 30


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_a_file_of_prompts(
    model: xLSTMLarge, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, with each prompt's own seed, whatever the batch; resumed after any end, a killed process's too."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    ids = ["a", 2, "c", 7, "e"]
    lines = [{"id": i, "prompt": p, "more": [i]} for i, p in zip(ids, PROMPTS, strict=True)]
    lines[1].pop("id")  # the line's number is its id
    prompts.write_text(
        "\n".join(json.dumps(line) for line in lines[:3]) + "\n\n" + "\n".join(map(json.dumps, lines[3:]))
    )
    want = texts(model, PROMPTS, 30, seed=9, stop=["th"])
    options = ("--prompts", prompts, "--max-tokens", 30, "--seed", 9, "--stop", "th", *SAMPLED)
    code, printed, err = run(capsys, *options)
    assert code == 0 and err == ""
    actual = [json.loads(line) for line in printed.splitlines()]
    assert [x["id"] for x in actual] == ids
    for line, x, text in zip(lines, actual, want, strict=True):
        assert (x["prompt"], x["more"]) == (line["prompt"], line["more"])
        assert (x["text"], x["finish_reason"], x["stop"]) == (text.text, text.finish_reason, text.stop)
        assert (x["prompt_tokens"], x["new_tokens"]) == (text.prompt_tokens, len(text.tokens))
    assert run(capsys, *options, "--output", out, "--batch", 2)[0] == 0
    assert lines_of(out) == actual
    contents = out.read_bytes()
    second = contents.index(b"\n", contents.index(b"\n") + 1) + 1
    for size in (second, second + 10, second - 1, 0, len(contents)):
        out.write_bytes(contents[:size])
        code, _, err = run(capsys, *options, "--output", out, "--resume", "--batch", 3)
        done = contents[:size].count(b"\n")
        assert code == 0 and lines_of(out) == actual
        assert err == (f"{out}: {done} of 5 prompts are done\n" if done else "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompts.read_bytes())))
    assert run(capsys, "--prompts", "-", *options[2:])[1] == printed


def test_an_interrupted_run_keeps_whole_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS))
    options = ("--prompts", prompts, "--max-tokens", 5, "--output", out, "--batch", 2)
    calls, original, fsync = [], generate_text, os.fsync

    def interrupted(*arguments: Any, **call_arguments: Any) -> list:
        calls.append(len(arguments[2]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **call_arguments)

    monkeypatch.setattr(prompt_files, "generate_text", interrupted)
    code, _, err = run(capsys, *options)
    assert code == 130 and "the same call with --resume continues" in err and len(lines_of(out)) == 2
    contents = out.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run(capsys, *options, "--resume")
    assert code == 1 and "No space left" in err and out.read_bytes() == contents
    monkeypatch.setattr(os, "fsync", fsync)
    assert run(capsys, *options, "--resume")[0] == 0 and [x["id"] for x in lines_of(out)] == [1, 2, 3, 4, 5]
    assert calls == [2, 2, 2, 2, 1]


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', "line 2: expected a JSON object: "),
        (b'{"prompt": "a"}\n\n[1]\n', "line 3: expected a JSON object, got list"),
        (b'{"prompt": "a"}\n{"id": 3}', "line 2: prompt: expected a string, got None"),
        (b'{"prompt": 5}', "line 1: prompt: expected a string, got 5"),
        (b'{"prompt": "a", "id": true}', "line 1: id: expected a string or an integer, got True"),
        (b'{"prompt": "a"}\n{"prompt": "b", "id": 1}', "line 2: id: expected another than that of line 1, got 1"),
        (b'{"prompt": "a", "text": "b"}', "line 1: text: expected no such field, which results have"),
        (b'{"prompt": "a"}\n{"prompt": "caf\xe9"}', "line 2: expected UTF-8, got byte 0xe9"),
        (b'{"prompt": "\\ud800"}', "line 1: expected text that UTF-8 can hold and finite numbers: "),
        (b'{"prompt": "a", "x": Infinity}', "line 1: expected text that UTF-8 can hold and finite numbers: "),
        (b"\n", "--prompts: expected a JSON object a line, got none in "),
        (b'{"prompt": ""}', "line 1: prompt: expected text, got none, and there is no BOS token before it"),
    ],
)
def test_lines_that_are_wrong(contents: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(contents)
    code, out, err = run(capsys, "--prompts", file, "--no-bos")
    assert code == 1 and out == "" and words in err and str(file) in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ('{"id": 5, "prompt": "a"}\n', "line 1: expected a result of a prompt of --prompts, got id 5"),
        ('{"id": 1, "prompt": "b"}\n', "line 1: expected a result of a prompt of --prompts, got id 1"),
        ('{"id": 1, "prompt": "a"}\n' * 2, "line 2: expected each id once, got 1 again"),
        ("hello\n", "line 1: expected a JSON object: "),
    ],
)
def test_results_of_something_else(
    results: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are refused, and left as they are."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    out.write_text(results + "{")
    code, _, err = run(capsys, "--prompts", prompts, "--output", out, "--resume")
    assert code == 1 and f"{out}: {words}" in err and err.count("\n") == 1
    assert out.read_text() == results + "{"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--prompt", "x", "--min-p", "1.5"), 2, "--min-p: expected a number from 0 to 1, got '1.5'"),
        (("--prompt", "x", "--temperature", "0", "--min-p", "0.1"), 2, "--temperature: expected above 0 with top_k, "),
        (("--prompt", "x", "--stop", ""), 2, "--stop: expected text, got none"),
        (("--prompt", "x", "--logprobs", "2"), 2, "--logprobs: expected --json or --prompts with it, got 2"),
        (("--prompt", "x", "--json", "--logprobs", "257"), 1, "--logprobs: expected None or an integer from 0 to 256"),
        (("--prompt", "x", "--json", "--echo"), 2, "--echo: expected no --json with it, whose object has the prompt"),
        (("--prompt", "x", "--batch", "2"), 2, "--batch: expected --prompts with it, got 2"),
        (("--prompt", "x", "--output", "y"), 2, "--output: expected --prompts with it, got PosixPath('y')"),
        (("--prompt", "x", "--resume"), 2, "--resume: expected --prompts with it, got True"),
        (("--prompt", "x", "--template", "y"), 2, "--template: expected --prompts with it, got PosixPath('y')"),
        (("--prompts", "x", "--prompt", "y"), 2, "--prompt: not allowed with argument --prompts"),
        (("--prompts", "x", "--resume"), 2, "--resume: expected --output with it"),
        (("--prompts", "x", "--echo"), 2, "--echo: expected --prompt, --file or stdin, got --prompts"),
        (("--prompts", "x", "--json"), 2, "--json: expected --prompt, --file or stdin, got --prompts"),
        (("--prompts", "x", "--save-state", "y"), 2, "--save-state: expected --prompt, --file or stdin"),
        (("--prompts", "x", "--max-tokens", "0"), 2, "--max-tokens: expected at least 1 with --prompts, got 0"),
        (("--prompts", "x", "--batch", "0"), 2, "--batch: expected a whole number >= 1, got '0'"),
        (("--prompts", "nowhere"), 1, "--prompts: No such file or directory: 'nowhere'"),
        (("--prompts", DEMO / "config.json", "--output", DEMO), 1, "config.json: line 1: expected a JSON object"),
        (("--prompt", "x", "--load-state", "nowhere"), 1, "--load-state: expected a file of a state, got 'nowhere'"),
        (("--prompt", "x", "--load-state", DEMO / "config.json"), 1, "--load-state: "),
        (("--prompt", "x", "--load-state", DEMO / "model.safetensors"), 1, "expected a state that this version saved"),
        (("--prompt", "x", "--save-state", "nowhere/y"), 1, "--save-state: expected a file in an existing folder, got"),
    ],
)
def test_errors(arguments: tuple, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    actual, out, err = run(capsys, *arguments)
    assert actual == code and out == "" and words in err and err.count("\n") == 1


def test_outputs_and_states_that_do_not_fit(
    model: xLSTMLarge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    out.write_text("")
    code, _, err = run(capsys, "--prompts", prompts, "--output", out)
    assert code == 1 and "--output: expected a new file, or --resume with it, got" in err
    code, _, err = run(capsys, "--prompts", prompts, "--output", tmp_path / "no" / "x")
    assert code == 1 and "--output: expected a file in an existing folder, got" in err
    state = tmp_path / "state"
    stream = Stream(model, 2)
    stream.feed(torch.ones(2, 3).long())
    stream.save(state)
    code, _, err = run(capsys, "--load-state", state, "--prompt", "x", "--dtype", "float32")
    assert code == 1 and f"--load-state: {state}: expected a state of one text, got 2" in err
    stream = Stream(model)
    stream.feed(torch.ones(1, 3).long())
    stream.logits = None
    stream.save(state)
    code, _, err = run(capsys, "--load-state", state, "--prompt", "", "--dtype", "float32")
    assert code == 1 and f"got none, and {state} has no logits to continue from" in err
    code, _, err = run(
        capsys, "--load-state", state, "--prompt", "x", "--dtype", "float32", "--repetition-penalty", 1.1
    )
    assert code == 1 and f"--repetition-penalty: expected 1, as {state} does not say which tokens were seen" in err
    code, _, err = run(capsys, "--load-state", state, "--prompt", "x", "--dtype", "bfloat16")
    assert code == 1 and f"--load-state: {state}: expected a state of a model with dtype bfloat16, got float32" in err


def test_kernels_and_their_options_reach_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[xLSTMLarge] = []
    original = common.load_pretrained
    monkeypatch.setattr(
        common, "load_pretrained", lambda *arguments, **more: loaded.append(original(*arguments, **more)) or loaded[-1]
    )
    requested = {
        "chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native",
        "step_kernel": "native", "chunk_size": 32,
    }  # fmt: skip
    options = [x for name, value in requested.items() for x in (f"--{name.replace('_', '-')}", value)]
    code, _, message = run(capsys, "--prompt", "", "--max-tokens", 2, "--device", "cpu", *options)
    assert code == 0, message
    assert {name: getattr(loaded[0].config, name) for name in requested} == requested
    for option in ("heads-per-band", "workers", "streams"):
        code, _, message = run(capsys, "--prompt", "", "--max-tokens", 2, f"--{option}", 2)
        assert code == 1 and f"{option.replace('-', '_')}: kernel 'chunkwise--fused' has no such option" in message
    code, _, message = run(capsys, "--prompt", "", "--max-tokens", 2, "--step-kernel", "foo")
    assert code == 1 and "Unknown mLSTM step kernel 'foo'" in message
