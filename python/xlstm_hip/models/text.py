# SPDX-License-Identifier: Apache-2.0
"""Text from text: the strings of generated tokens, up to a stop string that may span tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from .generation import Logprobs, generate
from .language_model import LanguageModel
from .tokenizer import Tokenizer


class TokenLogprob(NamedTuple):
    """A token, and the most probable ones at its place."""

    token: int
    text: str
    logprob: float
    top: list[tuple[int, str, float]]  # token, text, logprob; falling


@dataclass(frozen=True)
class Text:
    """A generated text."""

    text: str  # without the end token, or the stop string and what came with it in the same token
    tokens: list[int]  # all that were generated
    finish_reason: str  # "stop": an end token or a stop string; "length": max_new_tokens
    stop: str | None  # the stop string that ended it
    prompt_tokens: int  # without a BOS token that was put before them
    logprobs: list[TokenLogprob] | None  # of `tokens`, if asked for


class TextWriter:
    """Text of tokens as they come, up to the first of some stop strings.

    Text that may be the beginning of a stop string is held back until it is known. A character of several tokens comes
    with the last of them.

    before        the tokens that the text follows: some tokenizers leave out the space at the beginning of a text
    stopped_by    the stop string that was met; nothing may be added then
    held          text that was held back; with stopped_by, the stop string and what came behind it
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        self._complete, self._stop = tokenizer.streamer(before), check_stop_strings(stop)
        self.pending = ""
        self.stopped_by: str | None = None

    def add(self, token: int) -> str:
        """The text that this token makes certain."""
        return self._certain(self._complete(token))

    def end(self) -> str:
        """Returns the text that was held back: no stop string can follow any more."""
        if self.stopped_by is not None:
            return ""
        text, self.pending = self.pending, ""
        return text

    def _certain(self, new: str) -> str:
        if not self._stop:
            return new
        text = self.pending + new
        met = [(text.find(stop), stop) for stop in self._stop if stop in text]
        if met:
            cut, self.stopped_by = min(met)
        else:
            cut = next(n for n in range(len(text) + 1) if self._may_begin_a_stop(text[n:]))
        self.pending = text[cut:]
        return text[:cut]

    def _may_begin_a_stop(self, text: str) -> bool:
        return not text or any(stop.startswith(text) for stop in self._stop)


def check_stop_strings(stop: Any) -> list[str]:
    if isinstance(stop, str) or not isinstance(stop, Iterable):
        raise TypeError(f"stop: expected a sequence of strings, got {stop!r}")
    strings = list(stop)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"stop: expected strings of at least one character, got {string!r}")
    return strings


def token_logprobs(tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Logprobs) -> list[TokenLogprob]:
    """A row's log-probabilities (N, ...) by token."""
    rows = zip(tokens, logprobs.tokens.tolist(), logprobs.top_tokens.tolist(), logprobs.top.tolist(), strict=True)
    decode = tokenizer.decode
    return [
        TokenLogprob(token, decode([token]), logprob, [(t, decode([t]), x) for t, x in zip(top, scores, strict=True)])
        for token, logprob, top, scores in rows
    ]


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_new_tokens: int,
    *,
    stop: Sequence[str] = (),
    logprobs: int | None = None,
    eos: Sequence[int] | str = "model",
    **options: Any,
) -> list[Text]:
    """Generates a text after each prompt.

    tokenizer    of load_tokenizer
    stop         strings that end a text; each is cut off, with what follows it. It may lie across tokens
    options      generate's others: of sampling, seed, bos, state and callback
    """
    if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
        raise TypeError(f"prompts: expected a sequence of strings, got {prompts!r}")
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    if isinstance(eos, Tensor):
        eos = eos.tolist()
    ends_are_passed = isinstance(eos, Iterable) and not isinstance(eos, str)  # generate refuses what is neither
    ends = set(eos if ends_are_passed else model.special_tokens.eos)
    writers = [TextWriter(tokenizer, stop, before) for before in ids]
    parts: list[list[str]] = [[] for _ in prompts]
    over: set[int] = set()

    def write(step: Tensor) -> list[int]:
        stopped = []
        for row, token in enumerate(step.tolist()):
            if row in over:
                continue
            if token in ends or token < 0:
                over.add(row)
                continue
            parts[row].append(writers[row].add(token))
            if writers[row].stopped_by is not None:
                stopped.append(row)
        over.update(stopped)
        return stopped

    generated = generate(model, ids, max_new_tokens, stop=write, logprobs=logprobs, eos=eos, **options)
    texts = []
    for row, (writer, length) in enumerate(zip(writers, generated.lengths.tolist(), strict=True)):
        tokens = generated.tokens[row, :length].tolist()
        scores = None
        if generated.logprobs is not None:
            row_logprobs = Logprobs(*(part[row, :length] for part in generated.logprobs))
            scores = token_logprobs(tokenizer, tokens, row_logprobs)
        reason = "stop" if row in over else "length"
        text = "".join(parts[row]) + writer.end()
        texts.append(Text(text, tokens, reason, writer.stopped_by, len(ids[row]), scores))
    return texts
