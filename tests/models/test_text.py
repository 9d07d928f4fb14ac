# SPDX-License-Identifier: Apache-2.0
"""generate_text and TextWriter: stop strings across tokens, characters of several tokens, log-probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xlstm_hip.models import generate, generate_text, load_pretrained, load_tokenizer, xLSTMLarge
from xlstm_hip.models.text import TextWriter
from xlstm_hip.models.tokenizer import BYTES, Tokenizer

DEMO = Path(__file__).parents[2] / "models" / "demo"
PROMPTS = ["And it came to pass", "The LORD", "In"]
OPTIONS = {"temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return load_pretrained(DEMO, torch.float64, weight_mode="fused", progress=False)


def tokenizer_of(words: list[str]) -> Tokenizer:
    """Token n is words[n]."""
    return Tokenizer(
        encode=lambda text: [words.index(text)],
        decode=lambda tokens: "".join(words[t] for t in tokens),
        streamer=lambda before: lambda token: words[token],
    )


def written(words: list[str], stop: list[str]) -> tuple[list[str], str | None, str]:
    writer, parts = TextWriter(tokenizer_of(words), stop), []
    for token in range(len(words)):
        parts.append(writer.add(token))
        if writer.stopped_by is not None:
            return parts, writer.stopped_by, writer.pending
    return [*parts, writer.end()], None, writer.pending


@pytest.mark.parametrize(
    ("words", "stop", "parts", "met", "pending"),
    [
        (["ab", "cd"], [], ["ab", "cd", ""], None, ""),
        (["ab", "cd"], ["bc"], ["a", ""], "bc", "bcd"),  # across tokens, and what follows it in one
        (["ab", "ax", "y"], ["abc"], ["", "abax", "y", ""], None, ""),  # held back, and let go
        (["ab", "ab"], ["abc"], ["", "ab", "ab"], None, ""),  # let go at the end
        (["aab"], ["ab"], ["a"], "ab", "ab"),
        (["a", "a", "b"], ["ab"], ["", "a", ""], "ab", "ab"),  # a false beginning in front of the true one
        (["xyz"], ["yz", "xyz", "z"], [""], "xyz", "xyz"),  # the first in the text
        (["", "\n", "", "\n", "z"], ["\n\n"], ["", "", "", ""], "\n\n", "\n\n"),
    ],
)
def test_stop_strings(words: list[str], stop: list[str], parts: list[str], met: str | None, pending: str) -> None:
    assert written(words, stop) == (parts, met, pending)


@pytest.mark.parametrize("stop", [[], ["e"], ["the", " a"], ["ness and", "\n"], ["\u00e9"]], ids=str)
def test_pieces_are_the_text_up_to_the_first_stop_string(stop: list[str]) -> None:
    text = "the darkness and the caf\u00e9 \u20ac\n a"
    writer, parts = TextWriter(BYTES, stop), ""
    for token in text.encode():
        parts += writer.add(token)
        if writer.stopped_by is not None:
            break
    cut = min((text.index(s) for s in stop), default=len(text))
    assert parts + writer.end() == text[:cut]
    assert stop == [] or text[cut:].startswith(str(writer.stopped_by))


def test_generate_text(model: xLSTMLarge) -> None:
    """The tokens of generate, as text; each row up to its own stop string, whatever the others do."""
    tokenizer = load_tokenizer(DEMO, 256)
    free = generate(model, [list(p.encode()) for p in PROMPTS], 60, eos=(), **OPTIONS)
    texts = [bytes(row).decode() for row in free.tokens.tolist()]
    actual = generate_text(model, tokenizer, PROMPTS, 60, eos=(), **OPTIONS)
    assert [(x.text, x.tokens, x.finish_reason, x.stop) for x in actual] == [
        (text, row, "length", None) for text, row in zip(texts, free.tokens.tolist(), strict=True)
    ]
    assert [x.prompt_tokens for x in actual] == [19, 8, 2] and actual[0].logprobs is None
    stop = [texts[0][20:26], texts[1][40:46], "\x02\x02"]
    actual = generate_text(model, tokenizer, PROMPTS, 60, eos=(), stop=stop, logprobs=2, **OPTIONS)
    for text, x, row in zip(texts, actual, free.tokens.tolist(), strict=True):
        cut, met = min(((text.index(s), s) for s in stop if s in text), default=(60, None))
        assert x.text == text[:cut] and x.stop == met and x.finish_reason == ("length" if met is None else "stop")
        assert x.tokens == row[: cut + len(met or "")]
        assert [score.token for score in x.logprobs] == x.tokens
        assert all(len(score.top) == 2 and score.text == chr(score.token) for score in x.logprobs)
        assert all(top == (top[0], chr(top[0]), top[2]) for score in x.logprobs for top in score.top)
    assert actual[0].finish_reason == actual[1].finish_reason == "stop" and actual[0].stop != actual[1].stop
    alone = generate_text(model, tokenizer, PROMPTS[1:2], 60, eos=(), stop=stop, **OPTIONS | {"seed": 6})
    assert alone[0].text == actual[1].text
    end = (free.tokens[2, 9].item(),)
    ended = generate_text(model, tokenizer, PROMPTS, 60, eos=end, **OPTIONS)[2]
    first = free.tokens[2].tolist().index(end[0])
    assert (ended.text, ended.tokens) == (texts[2][:first], free.tokens[2, : first + 1].tolist())
    assert (ended.finish_reason, ended.stop) == ("stop", None)


def test_the_space_between_a_prompt_and_its_text(model: xLSTMLarge, tmp_path: Path) -> None:
    """Tokenizers that leave out the space of a text's first word do so of a prompt, not of what follows it."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"\u2581{chr(97 + n // 16)}{chr(97 + n % 16)}": n for n in range(255)} | {"[UNK]": 255}
    word_tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    word_tokenizer.pre_tokenizer, word_tokenizer.decoder = (
        tokenizers.pre_tokenizers.Metaspace(),
        tokenizers.decoders.Metaspace(),
    )
    word_tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, 256)
    prompt = " ".join(["ab", "bc"] * 20)
    (actual,) = generate_text(model, tokenizer, [prompt], 5, eos=())
    ids = tokenizer.encode(prompt)
    assert prompt + actual.text == tokenizer.decode([*ids, *actual.tokens]) and actual.text.startswith(" ")
    assert tokenizer.decode(actual.tokens) == actual.text[1:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": "ab"}, "prompts: expected a sequence of strings, got 'ab'"),
        ({"prompts": [[1]]}, "prompts: expected a sequence of strings, got"),
        ({"stop": "ab"}, "stop: expected a sequence of strings, got 'ab'"),
        ({"stop": ["a", ""]}, "stop: expected strings of at least one character, got ''"),
        ({"eos": 5}, "eos: expected 'model' or a sequence of token ids, got 5"),
        ({"eos": "foo"}, "eos: expected 'model' or a sequence of token ids, got 'foo'"),
        ({"logprobs": -1}, "logprobs: expected None or an integer from 0 to 256, got -1"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected an integer >= 1, got 0"),
        ({"prompts": [""], "bos": None}, "prompts: expected at least one, of at least one token each"),
    ],
)
def test_wrong_calls(model: xLSTMLarge, changes: dict, words: str) -> None:
    arguments = {"prompts": ["x"], "max_new_tokens": 1} | changes
    with pytest.raises((ValueError, TypeError), match=words):
        generate_text(model, BYTES, **arguments)
