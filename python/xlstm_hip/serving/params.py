# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, and what comes back: the types that an Engine and whoever submits to it share."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple

from .._core.checks import one_of
from ..models.text import TokenLogprob, check_stop_strings

STRUCTURES = ("json_schema", "json_object", "regex", "choice", "grammar")
MOST_STOPS, LONGEST_STOP = 16, 1024  # all are compared after each token, while other requests wait
MOST_PRIORITY = 2**31  # either way


@dataclass(frozen=True)
class Structure:
    """A form that the text must have; the engine takes up to 65536 characters of it.

    kind     "json_schema": value is a schema, as a dict or as JSON text; "json_object": any object, value None;
             "regex": value is a regular expression; "choice": value is a sequence of texts, of which one comes;
             "grammar": value is a grammar in xgrammar's EBNF
    """

    kind: str
    value: Any = None

    def __post_init__(self) -> None:
        one_of("structure.kind", self.kind, STRUCTURES)
        value, kind = self.value, self.kind
        if kind == "json_schema" and not isinstance(value, str | Mapping):
            raise ValueError(f"structure.value: expected a JSON schema as a dict or a string, got {value!r}")
        if kind == "json_object" and value is not None:
            raise ValueError(f"structure.value: expected None with kind 'json_object', got {value!r}")
        if kind in ("regex", "grammar") and (not isinstance(value, str) or not value):
            raise ValueError(f"structure.value: expected a {kind} as a string, got {value!r}")
        if kind == "choice":
            texts = value if isinstance(value, Sequence) and not isinstance(value, str) else None
            if not texts or not all(isinstance(text, str) and text for text in texts):
                raise ValueError(f"structure.value: expected a sequence of texts to choose from, got {value!r}")
            object.__setattr__(self, "value", tuple(texts))


def _number(name: str, value: Any, least: float, most: float, above: bool = False) -> None:
    """Raises unless value is a finite number from least to most; above: greater than least."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and least <= value <= most and not (above and value == least):
        return
    low = "" if least == -math.inf else f" above {least:g}" if above else f" from {least:g}"
    high = (
        (" up" if low and not above else "")
        if most == math.inf
        else f" and up to {most:g}"
        if above
        else f" to {most:g}"
    )
    raise ValueError(f"{name}: expected a finite number{low}{high}, got {value!r}")


def _integer(name: str, value: Any, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        expected = "an integer" if least is None else f"an integer >= {least}"
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
    return int(value)


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stops(value: Any) -> tuple[str, ...]:
    try:
        stops = tuple(check_stop_strings(value))
    except TypeError:
        raise ValueError(f"stop: expected a sequence of strings, got {value!r}") from None
    if len(stops) > MOST_STOPS:
        raise ValueError(f"stop: expected at most {MOST_STOPS} strings, got {len(stops)}")
    longest = max(map(len, stops), default=0)
    if longest > LONGEST_STOP:
        raise ValueError(f"stop: expected at most {LONGEST_STOP} characters in a string, got {longest}")
    return stops


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a request are sampled, and what ends them.

    The defaults of temperature, top_p, top_k and min_p leave out no token. A score is changed in this order: repetition
    penalty (of tokens in the prompt and the answer), presence and frequency penalty (of tokens in the answer),
    logit_bias, structure, temperature, top_k, top_p, min_p (models.Sampling).

    temperature       0: the most probable token, whatever top_k, top_p and min_p are
    seed              the answer follows from it and the prompt, whatever is sampled beside it; None: any
    stop              texts that end the answer, which is cut off before them: up to 16, of up to 1024 characters
    stop_token_ids    tokens that end the answer, beside the model's end tokens
    ignore_eos        whether the model's end tokens do not end the answer
    logprobs          log-probabilities of the tokens under the model itself, and of so many of the most probable ones
                      at each place; None: none
    structure         a form that the text must have; the extra `structured` is needed
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    structure: Structure | None = None

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1)
        _number("temperature", self.temperature, 0, math.inf)
        _number("top_p", self.top_p, 0, 1, above=True)
        _integer("top_k", self.top_k, 0)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, math.inf, above=True)
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), -math.inf, math.inf)
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.seed is not None:
            _integer("seed", self.seed)
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        one_of("ignore_eos", self.ignore_eos, (True, False))
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0)
        if self.structure is not None and not isinstance(self.structure, Structure):
            raise ValueError(f"structure: expected a Structure or None, got {self.structure!r}")


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"logit_bias: expected a mapping of token ids to numbers, got {value!r}")
    for token, bias in value.items():
        if isinstance(token, bool) or not isinstance(token, Integral) or token < 0:
            raise ValueError(f"logit_bias: expected token ids as keys, got {token!r}")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not math.isfinite(bias):
            raise ValueError(f"logit_bias: expected finite numbers, got {bias!r} for token {token}")
    return {int(token): float(bias) for token, bias in value.items()}


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """A sequence of integers from 0 up as a tuple."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{name}: expected a sequence of token ids, got {value!r}")
    for token in value:
        if isinstance(token, bool) or not isinstance(token, Integral) or token < 0:
            raise ValueError(f"{name}: expected token ids, got {token!r}")
    return tuple(int(token) for token in value)


@dataclass(frozen=True)
class Request:
    """A prompt to be answered.

    id          unique among the requests that are not finished
    tokens      the whole prompt, a BOS token included where the model wants one
    priority    greater ones come first; a waiting request gains priority with time (EngineConfig.ageing_seconds)
    deadline    seconds from its submission, after which it ends with the finish reason "deadline"; None: never
    session     a name under which the state at the answer's end is kept for the next request of that name, whose tokens
                begin with this one's prompt and answer: only what follows is read. The tokens are always the whole text
    cache_salt  a request goes on from kept states of prompts of the same salt alone: without it, how quickly an answer
                comes says whether somebody else has sent its beginning
    answered    tokens of the answer that are known already, from an engine that ended: the answer goes on after them as
                it would have there, given the same seed. max_tokens counts them, and outputs have what comes after
    """

    id: str
    tokens: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    deadline: float | None = None
    session: str | None = None
    cache_salt: str = ""
    answered: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id: expected a string of at least one character, got {self.id!r}")
        object.__setattr__(self, "tokens", token_ids("tokens", self.tokens))
        if not self.tokens:
            raise ValueError("tokens: expected at least one token, got none")
        if not isinstance(self.params, SamplingParams):
            raise ValueError(f"params: expected SamplingParams, got {self.params!r}")
        priority = _integer("priority", self.priority)
        if abs(priority) > MOST_PRIORITY:
            raise ValueError(f"priority: expected from {-MOST_PRIORITY} to {MOST_PRIORITY}, got {priority}")
        if self.deadline is not None:
            _number("deadline", self.deadline, 0, math.inf)
        if self.session is not None and (not isinstance(self.session, str) or not self.session):
            raise ValueError(f"session: expected None or a string of at least one character, got {self.session!r}")
        if self.session is not None and not _can_be_written(self.session):  # its file's name is a hash of its bytes
            raise ValueError(f"session: expected text that UTF-8 can write, got {self.session!r}")
        if not isinstance(self.cache_salt, str) or not _can_be_written(self.cache_salt):
            raise ValueError(f"cache_salt: expected text that UTF-8 can write, got {self.cache_salt!r}")
        object.__setattr__(self, "answered", token_ids("answered", self.answered))
        if len(self.answered) >= self.params.max_tokens:
            raise ValueError(
                f"answered: expected fewer tokens than max_tokens = {self.params.max_tokens}, got {len(self.answered)}"
            )


def seeded(request: Request) -> Request:
    """The request with a seed, its own or any: its answer can go on elsewhere."""
    if request.params.seed is not None:
        return request
    return replace(request, params=replace(request.params, seed=secrets.randbits(63)))


class Output(NamedTuple):
    """What is new of a request; the last one has a finish_reason.

    tokens           new ones, end tokens and those of a stop string among them
    text             new text that is certain: no part of a character, nothing that may become a stop string
    logprobs         of `tokens`, if asked for
    finish_reason    "stop": an end token, a stop token or a stop string, or the structure is complete; "length":
                     max_tokens; "cancelled"; "deadline"; "error"
    stop             the stop string that ended it
    error            with the finish reason "error"
    prompt_tokens    of the prompt
    cached_tokens    of the prompt, those that were not read because their state was kept
    new_tokens       generated so far
    """

    id: str
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None
    stop: str | None
    error: Exception | None
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
