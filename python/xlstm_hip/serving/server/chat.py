# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: from messages to the engine's requests, and from its outputs to OpenAI's objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...models.text import TokenLogprob
from ..params import Output
from .answers import Answer, Choice, in_json
from .openai_types import ChatBody
from .served import Served


def prompts_of(served: Served, body: ChatBody) -> list[list[int]]:
    return [served.chat_tokens(body.messages, body.add_generation_prompt)]


class ChatAnswer(Answer):
    streamed, whole = "chat.completion.chunk", "chat.completion"

    def events(self, choice: int, output: Output) -> list[dict[str, Any]]:
        self.count(choice, output)
        known, events = self.choices[choice], []
        if not known.started:
            known.started = True
            delta: dict[str, Any] = {"role": "assistant", "content": ""}
            events.append(self.event({"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}))
        if output.text or output.logprobs or output.finish_reason is not None:
            last = {} if output.finish_reason is None else {"stop_reason": output.stop}
            events.append(
                self.event(
                    {
                        "index": choice,
                        "delta": {"content": output.text} if output.text or output.logprobs else {},
                        "logprobs": self._logprobs(output.logprobs),
                        "finish_reason": output.finish_reason,
                    }
                    | last
                )
            )
        return events

    def choice(self, number: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": number,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": self._logprobs(choice.logprobs if self._with_logprobs else None),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop,
        }

    @property
    def _with_logprobs(self) -> bool:
        assert isinstance(self.body, ChatBody)
        return self.body.logprobs

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if tokens is None:
            return None
        content = [
            self._token(x.token, x.text, x.logprob) | {"top_logprobs": [self._token(*top) for top in x.top]}
            for x in tokens
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": in_json(logprob), "bytes": self.token_bytes(token, text)}
