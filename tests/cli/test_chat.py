# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip chat: the checkpoint's template and end tokens, nothing read twice, commands, Ctrl-C, files of chats."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from xlstm_hip import cli
from xlstm_hip.cli import writing
from xlstm_hip.models import SpecialTokens, Stream, generate_text, load_pretrained, load_state, xLSTMLarge
from xlstm_hip.models.chat_template import load_chat_template
from xlstm_hip.models.tokenizer import BYTES

pytest.importorskip("transformers")

DEMO = Path(__file__).parents[2] / "models" / "demo"
TEMPLATE = """{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}
{% elif m.role == 'user' %}Moses said, "{{ m.content }}"
{% else %}The LORD said{{ m.content CONTENT}}
{% endif %}{% endfor %}{% if add_generation_prompt %}The LORD said{% endif %}"""
GREEDY = ("--temperature", 0, "--dtype", "float32", "--max-tokens", 25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, with a template."""
    model_folder = tmp_path_factory.mktemp("talker") / "model"
    shutil.copytree(DEMO, model_folder)
    (model_folder / "chat_template.jinja").write_text(TEMPLATE.replace("CONTENT", ""))
    return model_folder


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return load_pretrained(DEMO, torch.float32, weight_mode="fused", progress=False)


Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Runs the command with lines in stdin."""

    def run(folder: Path, lines: list[str] | bytes, *options: object) -> tuple[int, str, str]:
        stdin = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = cli.main(["chat", str(folder), *map(str, options)])
        except SystemExit as stopped:  # argparse
            code = int(stopped.code or 0)
        return code, *capsys.readouterr()

    return run


def answers(model: xLSTMLarge, questions: list[str], system: str | None = None, **options: Any) -> tuple[list, str]:
    """The model's answers if the whole conversation is read again each time, and the text that is read last."""
    text, texts = "\0" + (f"{system}\n" if system else ""), []
    for question in questions:
        text += f'Moses said, "{question}"\nThe LORD said'
        (answer,) = generate_text(model, BYTES, [text], 25, **options)
        texts.append(answer.text)
        text += f"{answer.text}\n"
    return texts, text[:-1]


def test_a_conversation_is_read_once(folder: Path, model: xLSTMLarge, tmp_path: Path, chat: Chat) -> None:
    questions = ["Who are you?", "Where do you go?", "And why?"]
    want, text = answers(model, questions, "In the wilderness")
    file = tmp_path / "chat.state"
    options = ("--system", "In the wilderness", "--save-state", file, *GREEDY)
    code, out, err = chat(folder, [questions[0], "", *questions[1:]], *options)
    assert (code, err) == (0, "") and out == "".join(f"{answer}\n" for answer in want)
    assert Stream.load(file, model).tokens_read == len(text)
    assert [m["content"] for m in load_state(file, model).notes["messages"][2::2]] == want


def test_a_chat_goes_on_from_a_file(folder: Path, model: xLSTMLarge, tmp_path: Path, chat: Chat) -> None:
    questions, file = ["Who are you?", "Where do you go?"], tmp_path / "chat.state"
    full = chat(folder, questions, *GREEDY)[1]
    first = chat(folder, [questions[0], f"/save {file}", "/exit", "not heard"], *GREEDY)[1]
    code, continued, err = chat(folder, questions[1:], "--load-state", file, "--save-state", file, *GREEDY)
    assert (code, err) == (0, "") and first + continued == full
    assert len(load_state(file, model).notes["messages"]) == 4
    code, out, err = chat(folder, [f"/save {tmp_path / 'no' / 'x'}", "/save", "/rest", "/help", "/exit x"], *GREEDY)
    assert (code, out) == (0, "") and "/save: expected a file in an existing folder, got " in err
    assert [line.split(", got ")[1] for line in err.splitlines() if line.startswith("expected one of")] == [
        "'/save'", "'/rest'", "'/exit x'",
    ]  # fmt: skip


def test_reset(folder: Path, model: xLSTMLarge, chat: Chat) -> None:
    (want,), _ = answers(model, ["Where?"], "In the wilderness")
    code, out, _ = chat(folder, ["Who are you?", "/reset", "Where?"], "--system", "In the wilderness", *GREEDY)
    assert code == 0 and out.splitlines()[-1] == want.splitlines()[-1] and out.endswith(f"\n{want}\n")


@pytest.mark.parametrize("content", ["", "| trim ", "| upper "], ids=["", "trims", "rewrites"])
def test_templates_that_change_answers(
    content: str, model: xLSTMLarge, tmp_path: Path, folder: Path, chat: Chat
) -> None:
    """What the model has read is its own answer, if a template only trims it; what it rewrites is read anew."""
    template, file = tmp_path / "other.jinja", tmp_path / "chat.state"
    template.write_text(TEMPLATE.replace("CONTENT", content))
    options = ("--template", template, "--save-state", file, *GREEDY)
    code, out, err = chat(folder, ["Who are you?", "Where do you go?"], *options)
    want, text = answers(model, ["Who are you?", "Where do you go?"])
    assert code == 0 and Stream.load(file, model).tokens_read == len(text)
    if content == "| upper ":
        assert err.startswith("the template writes earlier messages anew: all of them are read again\n")
        assert f"The LORD said{want[0].upper()}\n" in load_state(file, model).notes["read"][0]
    else:
        assert err == "" and out == "".join(f"{answer}\n" for answer in want)


def test_stop_strings_and_end_tokens(folder: Path, model: xLSTMLarge, tmp_path: Path, chat: Chat) -> None:
    """A stop string is left out of the answer, but the model has read it: it is not read again."""
    questions, file = ["Who are you?", "Where do you go?"], tmp_path / "chat.state"
    want, text = answers(model, questions)
    stop = want[0][5:8]
    short = [answer.split(stop)[0] for answer in want[:1]]
    code, out, err = chat(folder, questions[:1], "--stop", stop, "--save-state", file, *GREEDY)
    assert (code, out, err) == (0, short[0] + "\n", "")
    assert load_state(file, model).notes["read"] == [f'\0Moses said, "{questions[0]}"\nThe LORD said{short[0]}{stop}']
    ending = tmp_path / "ending"
    shutil.copytree(folder, ending)
    end = ord(stop[0])
    (ending / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, end]}))
    short, text = answers(model, questions, eos=(2, end))
    code, out, _ = chat(ending, questions, "--save-state", file, *GREEDY)
    assert code == 0 and out == "".join(f"{answer}\n" for answer in short) and len(short[0]) < len(want[0])
    assert Stream.load(file, model).tokens_read == len(text)


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, typed: list[str | type[BaseException]]) -> list[str]:
    """input() gives these, one after the other; returns what it was asked with."""
    prompts, left = [], iter(typed)

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        one = next(left)
        if isinstance(one, str):
            return one
        raise one

    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr("builtins.input", answer)
    return prompts


def test_ctrl_c_stops_an_answer_and_not_the_chat(
    folder: Path, model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, drawn = writing.check_drawn, []

    def check(token: torch.Tensor) -> None:
        original(token)
        drawn.append(int(token))
        if len(drawn) == 7:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(writing, "check_drawn", check)
    prompts = at_a_terminal(monkeypatch, ["Who are you?", KeyboardInterrupt, "Where do you go?", EOFError])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli.main(["chat", str(folder), *map(str, GREEDY)]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    (want, _), _ = answers(model, ["Who are you?", ""])
    assert out.startswith(want[:7] + "\n") and len(drawn) == 7 + 25 and prompts == ["> "] * 4
    text = f'\0Moses said, "Who are you?"\nThe LORD said{want[:7]}\nMoses said, "Where do you go?"\nThe LORD said'
    (second,) = generate_text(model, BYTES, [text], 25)
    assert out == f"{want[:7]}\n{second.text}\n\n"
    assert "/help" in err and "/exit or Ctrl-D ends the chat" in err


def test_the_second_ctrl_c_ends_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(token: torch.Tensor) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(writing, "check_drawn", check)
    at_a_terminal(monkeypatch, ["Who are you?"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli.main(["chat", str(folder), *map(str, GREEDY)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("form", ["file", "config", "list"])
def test_templates_are_those_of_transformers(form: str, tmp_path: Path) -> None:
    """From each file that has one, with the special tokens of the tokenizer's files; kept by convert."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "hello": 3, "[UNK]": 4}
    word_tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    hf_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    hf_tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}\n    {%- if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
        "{% endif %}<|{{ m.role }}|>{{ m.content | tojson }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}"
        "{% generation %}<|assistant|>{% endgeneration %}{% endif %}"
    )
    hf_tokenizer.save_pretrained(tmp_path)
    template = tmp_path / "chat_template.jinja"
    assert template.is_file()
    if form != "file":
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        source = template.read_text()
        several = [{"name": "other", "template": "x"}, {"name": "default", "template": source}]
        config["chat_template"] = source if form == "config" else several
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        template.unlink()
    loaded = load_chat_template(tmp_path, BYTES, SpecialTokens())
    messages = [{"role": "system", "content": "<b> \u00e9"}, {"role": "user", "content": "hello\n"}]
    peer = AutoTokenizer.from_pretrained(tmp_path)
    for prompt in (True, False):
        want = peer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert loaded.render(messages, prompt) == want and want.startswith("<s><|system|>")
    with pytest.raises(ValueError, match=r"no tools here"):
        loaded.render([{"role": "tool", "content": "x"}])


def test_convert_and_quantize_keep_what_a_chat_needs(
    folder: Path, tmp_path: Path, chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    want = chat(source, ["Who are you?"], *GREEDY)[1]
    for command in ("convert", "quantize"):
        assert cli.main([command, str(source), str(tmp_path / command)]) == 0
        for name in ("chat_template.jinja", "generation_config.json"):
            assert (tmp_path / command / name).read_text() == (source / name).read_text()
        assert load_pretrained(tmp_path / command, progress=False).special_tokens.eos == (2, 7)
    capsys.readouterr()
    assert chat(tmp_path / "convert", ["Who are you?"], *GREEDY)[:2] == (0, want)


def test_a_file_of_messages(
    folder: Path, model: xLSTMLarge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as the first turn of a chat, in batches; errors name the line."""
    prompts, out, template = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "other.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}{{ raise_exception('no') if messages[1] }}")

    def run(lines: list, *options: object, at: Path = folder) -> tuple[int, str, str]:
        prompts.write_text("\n".join(map(json.dumps, lines)))
        code = cli.main(["generate", str(at), "--prompts", str(prompts), *map(str, (*GREEDY, *options))])
        return code, *capsys.readouterr()

    def user(text: str) -> dict:
        return {"role": "user", "content": text}

    questions = ["Who are you?", "Where do you go?", "And why?"]
    want = [answers(model, [question])[0][0] for question in questions]
    lines = [{"messages": [user(question)]} for question in questions]
    assert run(lines[:2], "--output", out)[0] == 0
    code, _, err = run(lines, "--output", out, "--resume")
    assert (code, err) == (0, f"{out}: 2 of 3 prompts are done\n")
    actual = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(x["text"], x["messages"]) for x in actual] == [
        (w, x["messages"]) for w, x in zip(want, lines, strict=True)
    ]
    (text,) = generate_text(model, BYTES, ["Who are you?"], 25)
    assert json.loads(run(lines[:1], "--template", template)[1])["text"] == text.text
    state = tmp_path / "state"
    state.touch()
    for changed, options, words in (
        ([*lines, {"prompt": "x"}], (), f"{prompts}: line 4: expected prompts in every line or messages in every line"),
        ([{"messages": []}], (), f"{prompts}: line 1: messages: expected objects with role and content, got []"),
        ([{"messages": [{"role": "user"}]}], (), "line 1: messages: expected objects with role and content, got [{"),
        ([lines[0] | {"prompt": "x"}], (), "line 1: expected a prompt or messages, got both"),
        ([lines[0] | {"id": 2}], ("--output", out, "--resume"), f"{out}: line 1: expected a result of a prompt of"),
        ([{"messages": [user("a"), user("b")]}], ("--template", template), f"{prompts}: line 1: {template}: no\n"),
        ([{"prompt": "x"}], ("--template", template), f"--template: expected lines with messages in {prompts}"),
        (lines, ("--no-bos",), f"--no-bos: expected prompts in {prompts}, got messages"),
        (lines, ("--load-state", state), f"--load-state: expected prompts in {prompts}, got messages"),
        (lines, ("--template", "nowhere"), "--template: expected a file, got 'nowhere'"),
    ):
        code, _, err = run(changed, *options)
        assert code == 1 and words in err and err.count("\n") == 1, err
    code, _, err = run(lines, at=DEMO)
    assert code == 1 and "no chat template: " in err


def test_errors(folder: Path, tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, state = tmp_path / "broken.jinja", tmp_path / "state"
    broken.write_text("{% for %}")
    empty, latin = tmp_path / "empty.jinja", tmp_path / "latin.jinja"
    empty.write_text("")
    latin.write_bytes(b"caf\xe9")
    model_folder = tmp_path / "model"
    shutil.copytree(DEMO, model_folder)
    (model_folder / "tokenizer_config.json").write_text('{"chat_template": 5}')
    assert cli.main(["generate", str(DEMO), "--prompt", "x", "--max-tokens", "1", "--save-state", str(state)]) == 0
    for at, lines, options, code, words in (
        (DEMO, ["x"], (), 1, "no chat template: expected chat_template.jinja, or chat_template in tokenizer_config.js"),
        (DEMO, ["x"], (), 1, "; give one with --template FILE, or generate after prompts"),
        (model_folder, ["x"], (), 1, "tokenizer_config.json: chat_template: expected a string, got 5"),
        (DEMO, ["x"], ("--template", "nowhere"), 1, "--template: expected a file, got 'nowhere'"),
        (DEMO, ["x"], ("--template", broken), 1, f"{broken}: "),
        (DEMO, ["x"], ("--template", empty), 1, f"{empty}: expected a template that writes the messages, got nothing"),
        (DEMO, ["x"], ("--template", latin), 1, f"{latin}: expected UTF-8"),
        (folder, b"caf\xe9\n", (), 1, "stdin: line 1: expected UTF-8, got byte 0xe9"),
        (folder, ["x"], ("--load-state", state, "--system", "y"), 2, "--system: expected none with --load-state"),
        (folder, ["x"], ("--load-state", state), 1, f"{state}: expected the state of a chat, got one without messages"),
        (folder, ["x"], ("--load-state", "nowhere"), 1, "--load-state: expected a file of a state, got 'nowhere'"),
        (folder, ["x"], ("--save-state", "no/x"), 1, "--save-state: expected a file in an existing folder, got 'no/x'"),
        (folder, [], ("--save-state", tmp_path / "y"), 1, "save: expected feed() before it; nothing has been read yet"),
        (folder, ["x"], ("--temperature", 0, "--top-k", 3), 2, "--temperature: expected above 0 with top_k"),
        ("nowhere", ["x"], (), 1, "model: expected the folder of a checkpoint, or a model of the Hugging Face"),
    ):  # fmt: skip
        actual, _, err = chat(at, lines, "--max-tokens", 5, *options)
        assert (actual, err.count("\n")) == (code, 1) and words in err, err
    monkeypatch.setitem(sys.modules, "transformers", None)
    actual, _, err = chat(folder, ["x"], *GREEDY)
    assert actual == 1 and 'a chat template needs transformers: pip install "xlstm_hip[hf]"' in err
