# SPDX-License-Identifier: Apache-2.0
"""The next tokens of requests that ask for unlike things, in few calls.

A token follows from the request's own logits, its seed and how many tokens it has had (models/sampling.py), never from
who else is in the batch. Rows with the same numbers of sampling are drawn in one call. What fails for one row concerns
its request alone.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.generation import Logprobs, logprobs_of
from ..models.sampling import Drawing, Sampling, check_drawn
from ..models.text import TokenLogprob, token_logprobs
from ..models.tokenizer import Tokenizer
from ..models.transfers import ToHost, to_device
from ..reference.sampling import penalised
from .params import SamplingParams
from .structure import StructuredText, unpacked

NO_PAD = 0  # no row of a drawing has ended


class Drawn(NamedTuple):
    token: int
    logprob: TokenLogprob | None  # if asked for


class Draw(NamedTuple):
    """A drawing that the device may still be at.

    tokens     (R) on the device; below 0 where there was none to draw
    results    waits for it: the next token of each request, or why there is none. To be called once
    """

    tokens: Tensor
    results: Callable[[], list[Drawn | Exception]]


class Choice:
    """What one request's next token depends on, beside its logits."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        vocab_size: int,
        device: torch.device,
        structure: StructuredText | None = None,
    ) -> None:
        self.params, self.structure = params, structure
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.count = 0  # of tokens drawn
        greedy = params.temperature == 0
        self.sampling = (
            Sampling() if greedy else Sampling(params.temperature, params.top_k, params.top_p, min_p=params.min_p)
        )
        self.seen = self.counts = self.bias = None
        if params.repetition_penalty != 1:
            self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self.seen[torch.tensor(prompt, device=device)] = True
        if params.presence_penalty or params.frequency_penalty:
            self.counts = torch.zeros(vocab_size, device=device)
        if params.logit_bias:
            self.bias = torch.zeros(vocab_size, device=device)
            tokens = torch.tensor(list(params.logit_bias), device=device)
            self.bias[tokens] = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)

    def add(self, token: int) -> None:
        """The token was drawn, and the next one may depend on it."""
        self.count += 1
        if self.seen is not None:
            self.seen[token] = True
        if self.counts is not None:
            self.counts[token] += 1
        if self.structure is not None:
            self.structure.add(token)


class Sampler:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def draw(self, choices: Sequence[Choice], logits: Tensor) -> list[Drawn | Exception]:
        """The next token of each request after its row of logits (R, V), or why there is none."""
        return self.start(choices, logits).results()

    def start(self, choices: Sequence[Choice], logits: Tensor) -> Draw:
        """The same without waiting for a GPU."""
        try:
            return self._start(choices, logits)
        except Exception as error:
            if len(choices) == 1:
                failed: list[Drawn | Exception] = [error]
                return Draw(torch.full((1,), -1, device=logits.device), lambda: failed)
        # One of them made it fail, or memory lacks for all at once: halves, down to the one that fails alone.
        half = len(choices) // 2
        first, second = self.start(choices[:half], logits[:half]), self.start(choices[half:], logits[half:])
        return Draw(torch.cat((first.tokens, second.tokens)), lambda: first.results() + second.results())

    def _start(self, choices: Sequence[Choice], logits: Tensor) -> Draw:
        scores = self._scores(choices, logits)
        groups: dict[Sampling, list[int]] = {}
        for row, choice in enumerate(choices):
            groups.setdefault(choice.sampling, []).append(row)
        drawn = torch.empty(len(choices), dtype=torch.int64, device=logits.device)
        for sampling, rows in groups.items():
            one = [choices[row] for row in rows]
            drawing = Drawing(sampling, (), NO_PAD, len(rows), None, logits.device)
            drawing.begin([choice.seed for choice in one], [choice.count for choice in one])
            if len(groups) == 1:
                drawing(scores)
                drawn = drawing.tokens
            else:
                index = to_device(torch.tensor(rows), logits.device)
                drawing(scores[index])
                drawn[index] = drawing.tokens
        asked = [row for row, choice in enumerate(choices) if choice.params.logprobs is not None]
        logprobs = self._logprobs(choices, asked, logits, drawn) if asked else ()
        copies = ToHost((drawn, *logprobs))
        return Draw(drawn, lambda: self._results(choices, asked, *copies.wait()))

    def _results(
        self, choices: Sequence[Choice], asked: list[int], drawn: Tensor, *logprobs: Tensor
    ) -> list[Drawn | Exception]:
        place = {row: n for n, row in enumerate(asked)}
        results: list[Drawn | Exception] = []
        for row, (token, choice) in enumerate(zip(drawn.tolist(), choices, strict=True)):
            try:
                if token < 0:
                    check_drawn(drawn[row : row + 1])
                logprob = None
                if row in place:
                    own = Logprobs(*(x[place[row] : place[row] + 1] for x in logprobs))
                    (logprob,) = token_logprobs(self._tokenizer, [token], own)
                    logprob = logprob._replace(top=logprob.top[: choice.params.logprobs])
                choice.add(token)
                results.append(Drawn(token, logprob))
            except Exception as error:
                results.append(error)
        return results

    def _scores(self, choices: Sequence[Choice], logits: Tensor) -> Tensor:
        """The logits after penalties, bias and structures; the given ones do not change."""
        penalised_rows = [row for row, choice in enumerate(choices) if choice.seen is not None]
        counted = [row for row, choice in enumerate(choices) if choice.counts is not None]
        biased = [row for row, choice in enumerate(choices) if choice.bias is not None]
        structured = [row for row, choice in enumerate(choices) if choice.structure is not None]
        if not (penalised_rows or counted or biased or structured):
            return logits
        scores = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=scores.dtype, device=scores.device).unsqueeze(1)

        if penalised_rows:
            penalty = column([choices[row].params.repetition_penalty for row in penalised_rows])
            seen = torch.stack([seen for row in penalised_rows if (seen := choices[row].seen) is not None])
            scores[penalised_rows] = penalised(scores[penalised_rows], seen, penalty)
        if counted:
            counts = torch.stack([counts for row in counted if (counts := choices[row].counts) is not None])
            presence = column([choices[row].params.presence_penalty for row in counted])
            frequency = column([choices[row].params.frequency_penalty for row in counted])
            scores[counted] -= (counts > 0) * presence + counts * frequency
        if biased:
            scores[biased] += torch.stack([bias for row in biased if (bias := choices[row].bias) is not None])
        if structured:
            words = torch.stack([one.allowed() for row in structured if (one := choices[row].structure) is not None])
            allowed = unpacked(words.to(scores.device), scores.shape[1])
            scores[structured] = scores[structured].masked_fill(~allowed, -math.inf)
        return scores

    def _logprobs(self, choices: Sequence[Choice], rows: list[int], logits: Tensor, drawn: Tensor) -> Logprobs:
        """Of the rows that asked, as many as the one that asked for most."""
        most = max(choices[row].params.logprobs or 0 for row in rows)
        index = to_device(torch.tensor(rows), logits.device)
        return logprobs_of(logits[index], drawn[index].clamp(min=0), most)
