# SPDX-License-Identifier: Apache-2.0
"""What both kinds of completions count and write: choices, usage, a token's log-probabilities."""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._version import __version__
from ...models.text import TokenLogprob
from ...models.tokenizer import BYTES
from ..params import Output
from .openai_types import SamplingBody
from .served import Served

IMPOSSIBLE = -9999.0  # what OpenAI writes for a log-probability of minus infinity, which JSON cannot say


@dataclass
class Choice:
    """What is known of one answer."""

    texts: list[str] = field(default_factory=list)  # of answers that are written at once, at the end
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop: str | None = None
    new_tokens: int = 0
    cached_tokens: int = 0
    started: bool = False  # whether its first event was written


class Answer(abc.ABC):
    """An answer's choices, as they come."""

    streamed: str  # the events' kind of object
    whole: str

    def __init__(self, answer_id: str, served: Served, body: SamplingBody, prompt_lengths: Sequence[int]) -> None:
        self.id, self.served, self.body = answer_id, served, body
        self._created, self._prompt_lengths = int(time.time()), prompt_lengths
        self.choices = [Choice() for _ in range(len(prompt_lengths) * body.n)]
        options = body.stream_options
        self._usage_at_end = options is not None and (options.include_usage or options.continuous_usage_stats)
        self._usage_always = options is not None and options.continuous_usage_stats

    def count(self, choice: int, output: Output) -> None:
        known = self.choices[choice]
        known.new_tokens = output.new_tokens
        known.cached_tokens = output.cached_tokens
        if output.finish_reason is not None:
            known.finish_reason, known.stop = output.finish_reason, output.stop

    def take(self, choice: int, output: Output) -> None:
        """Of an answer that is written at the end."""
        self.count(choice, output)
        self.choices[choice].texts.append(output.text)
        self.choices[choice].logprobs += output.logprobs or ()

    def begin_again(self, choice: int) -> None:
        """What was taken of it is void."""
        self.choices[choice] = Choice()

    @property
    def prompt_tokens(self) -> int:
        """A prompt with n answers counts once, as it is read once."""
        return sum(self._prompt_lengths)

    @property
    def new_tokens(self) -> int:
        return sum(choice.new_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        firsts = self.choices[:: self.body.n]
        return sum(choice.cached_tokens for choice in firsts)

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.new_tokens,
            "total_tokens": self.prompt_tokens + self.new_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self.served.name,
            "system_fingerprint": f"xlstm_hip-{__version__}",
            "choices": choices,
        }

    def event(self, choice: dict[str, Any]) -> dict[str, Any]:
        event = self._envelope(self.streamed, [choice])
        if self._usage_always:
            event["usage"] = self.usage()
        elif self._usage_at_end:
            event["usage"] = None
        return event

    def last_events(self) -> list[dict[str, Any]]:
        if not self._usage_at_end:
            return []
        return [self._envelope(self.streamed, []) | {"usage": self.usage()}]

    def result(self) -> dict[str, Any]:
        choices = [self.choice(number, choice) for number, choice in enumerate(self.choices)]
        return self._envelope(self.whole, choices) | {"usage": self.usage()}

    @abc.abstractmethod
    def events(self, choice: int, output: Output) -> list[dict[str, Any]]:
        """Of an output of an answer that is streamed."""

    @abc.abstractmethod
    def choice(self, number: int, choice: Choice) -> dict[str, Any]:
        """A choice of an answer that comes whole."""

    def token_bytes(self, token: int, text: str) -> list[int] | None:
        """The bytes of a token's text, None where they are only part of a character and so not known from it."""
        if self.served.tokenizer is BYTES:
            return [token]
        return None if "\ufffd" in text else list(text.encode())


def in_json(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
