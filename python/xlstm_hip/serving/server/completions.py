# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: from prompts to the engine's requests, and from its outputs to OpenAI's objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...models.text import TokenLogprob
from ..params import Output
from .answers import Answer, Choice, in_json
from .errors import wrong
from .openai_types import CompletionBody, SamplingBody
from .served import Served


def prompts_of(served: Served, body: CompletionBody) -> list[list[int]]:
    if body.best_of is not None and body.best_of != body.n:
        raise wrong("best_of", f"expected n = {body.n}, as answers are not ranked, got {body.best_of}")
    if body.echo and body.logprobs is not None:
        raise wrong("echo", "expected no logprobs with it, as those of a prompt are not computed")
    return [served.tokens_of(prompt, body.add_special_tokens) for prompt in body.prompt]


class CompletionAnswer(Answer):
    streamed = whole = "text_completion"

    def __init__(self, answer_id: str, served: Served, body: SamplingBody, prompt_lengths: Sequence[int]) -> None:
        super().__init__(answer_id, served, body, prompt_lengths)
        self._written = [0] * len(self.choices)  # characters of tokens so far, for text_offset

    def _echo(self, number: int) -> str:
        body = self.body
        assert isinstance(body, CompletionBody)
        if not body.echo:
            return ""
        prompt = body.prompt[number // body.n]
        return prompt if isinstance(prompt, str) else self.served.tokenizer.decode(prompt)

    def events(self, choice: int, output: Output) -> list[dict[str, Any]]:
        self.count(choice, output)
        known, text = self.choices[choice], output.text
        if not known.started:
            known.started = True
            text = self._echo(choice) + text
        if not text and not output.logprobs and output.finish_reason is None:
            return []
        return [self.event(self._choice(choice, text, output.logprobs, output.finish_reason, output.stop))]

    def choice(self, number: int, choice: Choice) -> dict[str, Any]:
        assert isinstance(self.body, CompletionBody)
        logprobs = choice.logprobs if self.body.logprobs is not None else None
        text = self._echo(number) + "".join(choice.texts)
        return self._choice(number, text, logprobs, choice.finish_reason, choice.stop)

    def _choice(
        self,
        number: int,
        text: str,
        logprobs: Sequence[TokenLogprob] | None,
        finish_reason: str | None,
        stop: str | None,
    ) -> dict[str, Any]:
        last = {} if finish_reason is None else {"stop_reason": stop}
        fields = {"index": number, "text": text, "logprobs": self._logprobs(number, logprobs)}
        return fields | {"finish_reason": finish_reason} | last

    def _logprobs(self, number: int, tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if tokens is None:
            return None
        offsets = []
        for x in tokens:
            offsets.append(self._written[number])
            self._written[number] += len(x.text)
        return {
            "tokens": [x.text for x in tokens],
            "token_logprobs": [in_json(x.logprob) for x in tokens],
            "top_logprobs": [_top(x) for x in tokens] if any(x.top for x in tokens) else None,
            "text_offset": offsets,
        }


def _top(token: TokenLogprob) -> dict[str, float]:
    """By text, as OpenAI has it: of tokens with one text the most probable. With the token itself."""
    best: dict[str, float] = {}
    for _, text, logprob in token.top:
        best.setdefault(text, in_json(logprob))
    best.setdefault(token.text, in_json(token.logprob))
    return best
