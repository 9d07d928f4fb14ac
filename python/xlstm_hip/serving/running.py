# SPDX-License-Identifier: Apache-2.0
"""One accepted request on its way: what was read and generated, and the text that is certain so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..models.text import TextWriter, TokenLogprob
from ..models.tokenizer import Tokenizer
from .params import Output, Request
from .prefix_cache import HashedTokens, KeptBoundaries, as_array
from .sampler import Choice, Drawn
from .speculation import NgramDraft


class RunningRequest:
    """
    eos         the model's end tokens
    compiled    the request's structure, compiled
    """

    def __init__(
        self,
        request: Request,
        on_output: Callable[[Output], None],
        tokenizer: Tokenizer,
        eos: Collection[int],
        chunk: int,
        arrived: float,
        compiled: Any = None,
    ) -> None:
        self.request, self.on_output, self.arrived, self.compiled = request, on_output, arrived, compiled
        params = request.params
        # The end of a structure is an end, whatever ignore_eos says.
        own_eos = () if params.ignore_eos and params.structure is None else eos
        self._ends = frozenset((*own_eos, *params.stop_token_ids))
        self._writer = TextWriter(tokenizer, params.stop, request.tokens)
        self._chunk = chunk
        self.to_read = HashedTokens(as_array(request.tokens), chunk, request.cache_salt)
        self.read = 0  # of those
        self.generated: list[int] = []
        # How many tokens at their end the state has not read, once it decodes. -1: it has read the one that comes next.
        self.unread = 0
        self.cached = 0
        self.began = False
        self.out_of_memory = 0  # how often it was read again for that
        self.last_token_at: float | None = None
        self.choice: Choice | None = None  # from its admission on
        self.draft: NgramDraft | None = None  # from then on, with speculation
        self.boundaries: KeptBoundaries | None = None
        if request.answered:
            self._go_on_after(request.answered)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def is_read(self) -> bool:
        return self.read == len(self.to_read)

    @property
    def may_add(self) -> int:
        """How many more tokens it may be given."""
        return self.request.params.max_tokens - len(self.generated)

    def text_read(self) -> HashedTokens:
        """What its state has read, once it decodes."""
        tokens = as_array([*self.request.tokens, *self.generated[: len(self.generated) - self.unread]])
        return HashedTokens(tokens, self._chunk, self.request.cache_salt)

    def read_again(self) -> None:
        """Its state is lost: it is to be read with what was generated."""
        self.unread = min(1, len(self.generated))
        self.to_read, self.read = self.text_read(), 0
        if not self.generated:
            self.cached = 0

    def _go_on_after(self, answered: Sequence[int]) -> None:
        for token in answered:
            self._writer.add(token)  # its text was delivered elsewhere
            if token in self._ends or self._writer.stopped_by is not None:
                raise ValueError(f"answered: expected tokens that do not end the answer, as token {token} does")
        self.generated.extend(answered)
        self.read_again()

    def add(self, drawn: Drawn) -> Output:
        """What the next token makes known."""
        token = drawn.token
        self.generated.append(token)
        self.unread += 1
        text, reason = "", None
        if token in self._ends:
            reason = "stop"
        else:
            text = self._writer.add(token)
            structure = None if self.choice is None else self.choice.structure
            if self._writer.stopped_by is not None or (structure is not None and structure.over):
                reason = "stop"
            elif self.may_add == 0:
                reason = "length"
        if reason is not None:
            text += self._writer.end()
        logprobs = None if drawn.logprob is None else [drawn.logprob]
        return self._output([token], text, logprobs, reason, self._writer.stopped_by, None)

    def end(self, reason: str, error: Exception | None = None) -> Output:
        """The last output of a request that something else than its tokens ends."""
        logprobs: list[TokenLogprob] | None = None if self.request.params.logprobs is None else []
        return self._output([], self._writer.end(), logprobs, reason, None, error)

    def _output(
        self,
        tokens: list[int],
        text: str,
        logprobs: list[TokenLogprob] | None,
        reason: str | None,
        stop: str | None,
        error: Exception | None,
    ) -> Output:
        prompt = len(self.request.tokens)
        return Output(self.id, tokens, text, logprobs, reason, stop, error, prompt, self.cached, len(self.generated))
