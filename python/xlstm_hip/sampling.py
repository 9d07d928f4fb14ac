# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: greedy, or drawn, with every row's own random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256  # random numbers drawn at a time: a generator's numbers depend on how many are asked for at once


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the likeliest token. top_k 0 and top_p 1 leave none out, repetition_penalty 1 changes none.

    They work in the order of transformers' processors: the penalty on what was seen (positive logits divided by it,
    others multiplied), temperature, top_k, then the fewest tokens whose probabilities reach top_p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("temperature", 0.0, math.inf),
            ("top_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, math.inf),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise ValueError(f"{name}: expected a number from {least} to {most}, got {value!r}")
            if value == math.inf or value == 0 and name != "temperature":
                raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k: expected an integer >= 0, got {self.top_k!r}")
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise ValueError("temperature: expected above 0 with top_k or top_p, which greedy decoding has no use for")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        """logits (B, V), seen (B, V) bool -> (B, V) float64, what a token is drawn from; not greedy."""
        scores = self._penalised(logits, seen).double() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[..., -1:]
            scores = scores.masked_fill(scores < least, -math.inf)
        if self.top_p < 1:
            ranked, order = scores.sort(descending=True, stable=True)
            before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
            dropped = torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, before >= self.top_p)
            scores = scores.masked_fill(dropped, -math.inf)
        return scores.softmax(-1)

    def pick(self, logits: Tensor, seen: Tensor | None, uniform: Tensor | None) -> Tensor:
        """logits (B, V), uniform (B) in [0, 1), needed where not greedy -> tokens (B)."""
        if self.greedy:
            return self._penalised(logits, seen).argmax(-1)
        assert uniform is not None
        sums = self.probabilities(logits, seen).cumsum(-1)
        # The first token whose running sum is above the number: never one of probability 0.
        return torch.searchsorted(sums, uniform.unsqueeze(-1) * sums[..., -1:], right=True).squeeze(-1)

    def _penalised(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        if self.repetition_penalty == 1:
            return logits
        assert seen is not None
        logits = logits.float() if logits.dtype != torch.float64 else logits
        penalty = self.repetition_penalty
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


class RandomRows:
    """Numbers for a batch, each row from a generator of its own: a row draws the same alone as in company."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._device = device
        self._block = torch.empty(0)
        self._next = BLOCK

    def draw(self) -> Tensor:  # (B) float64
        if self._next == BLOCK:
            rows = [torch.rand(BLOCK, generator=g, dtype=torch.float64) for g in self._generators]
            self._block, self._next = torch.stack(rows, dim=1).to(self._device), 0
        self._next += 1
        return self._block[self._next - 1]


def row_seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    """One seed for each row: seed, seed + 1, ... of an int."""
    if isinstance(seed, int) and not isinstance(seed, bool):
        return [seed + row for row in range(rows)]
    if not isinstance(seed, Sequence) or isinstance(seed, str) or len(seed) != rows:
        raise ValueError(f"seed: expected an integer, or one for each of {rows} rows, got {seed!r}")
    return list(seed)
