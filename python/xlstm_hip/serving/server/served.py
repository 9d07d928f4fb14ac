# SPDX-License-Identifier: Apache-2.0
"""The model that a server serves, with its tokenizer, its template and the engine that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...models.chat_template import ChatTemplate, Message
from ...models.generation import with_bos
from ...models.tokenizer import Tokenizer
from ..metrics import Snapshot
from ..params import Output, Request
from .errors import ApiError, shown, wrong


class EngineLike(Protocol):
    """What a server needs of an Engine."""

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def close(self, drain: bool = True, timeout: float | None = None) -> None: ...

    def metrics(self) -> Snapshot | Mapping[str, Snapshot]:
        """By its replicas' names where it is many."""

    @property
    def healthy(self) -> bool: ...


@dataclass(frozen=True)
class Served:
    """
    name         of the model, in requests
    bos          the token before every prompt, None if the model has none
    template     of chats; None: the model has none, and `no_template` says why
    """

    name: str
    engine: EngineLike
    tokenizer: Tokenizer
    vocab_size: int
    bos: int | None = None
    template: ChatTemplate | None = None
    no_template: str = "this model has no chat template"
    created: int = field(default_factory=lambda: int(time.time()))

    def snapshots(self) -> Mapping[str, Snapshot]:
        """What is counted, by replica; "": of an engine that is one."""
        found = self.engine.metrics()
        return {"": found} if isinstance(found, Snapshot) else found

    def check_name(self, name: str) -> None:
        if name != self.name:
            text = f"model: expected {self.name!r}, which this server serves, got {shown(name)}"
            raise ApiError(404, text, param="model", code="model_not_found")

    def tokens_of(self, prompt: str | list[int], special: bool = True) -> list[int]:
        """A text after the model's BOS token, or with special=False as it is; token ids are taken as they are."""
        if isinstance(prompt, str):
            (tokens,) = with_bos([self.tokenizer.encode(prompt)], self.bos if special else None)
            return tokens
        self.check_tokens("prompt", prompt)
        return prompt

    def check_tokens(self, name: str, tokens: Sequence[int]) -> None:
        if tokens and max(tokens) >= self.vocab_size:
            raise wrong(name, f"expected token ids below {self.vocab_size}, got {shown(max(tokens))}")

    def chat_tokens(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The tokens of a conversation as the template writes it, its BOS token too."""
        if self.template is None:
            raise ApiError(
                400, f"messages: {self.no_template}; use /v1/completions, or start the server with --template",
                param="messages", code="no_chat_template",
            )  # fmt: skip
        try:
            return self.tokenizer.encode(self.template.render(messages, add_generation_prompt))
        except ValueError as error:  # the template's own words, such as which roles may follow one another
            text = str(error).removeprefix(f"{self.template.file}: ")
            raise wrong("messages", f"refused by the chat template: {text[:500]}") from None

    def card(self, max_prompt_tokens: int) -> dict[str, Any]:
        """As /v1/models lists it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "xlstm_hip",
            "chat": self.template is not None,
            "max_prompt_tokens": max_prompt_tokens,
        }
