# SPDX-License-Identifier: Apache-2.0
"""The next token in plain torch: what logits say after a penalty, a temperature, top_k, top_p and min_p, in float64."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

NOTHING_DRAWN = -1


class Numbers(Protocol):
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def min_p(self) -> float: ...


def penalised(logits: Tensor, seen: Tensor | None, penalty: float | Tensor) -> Tensor:
    """The penalty may be a tensor (B, 1), with one for each row."""
    if seen is None or (not isinstance(penalty, Tensor) and penalty == 1):
        return logits
    logits = logits.float() if logits.dtype != torch.float64 else logits
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def below_min_p(scores: Tensor, min_p: float) -> Tensor:
    """The mask of tokens that are less likely than min_p, above 0, times the likeliest; scores (B, V) in float64."""
    return scores < scores.amax(-1, keepdim=True) + math.log(min_p)


def probabilities(numbers: Numbers, logits: Tensor, seen: Tensor | None) -> Tensor:
    """logits (B, V), seen (B, V) bool -> (B, V) float64, what a token is drawn from; not greedy."""
    scores = penalised(logits, seen, numbers.repetition_penalty).double() / numbers.temperature
    if 0 < numbers.top_k < scores.shape[-1]:
        least = scores.topk(numbers.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if numbers.top_p < 1:
        ranked, order = scores.sort(descending=True, stable=True)
        before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
        dropped = torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, before >= numbers.top_p)
        scores = scores.masked_fill(dropped, -math.inf)
    if numbers.min_p:
        scores = scores.masked_fill(below_min_p(scores, numbers.min_p), -math.inf)
    return scores.softmax(-1)


def pick(numbers: Numbers, logits: Tensor, seen: Tensor | None, uniform: Tensor | None) -> Tensor:
    """logits (B, V), uniform (B) in [0, 1), without it greedy -> tokens (B), -1 where NaN leaves nothing to pick."""
    if uniform is None:
        scores = penalised(logits, seen, numbers.repetition_penalty)
        nothing, picked = scores.isnan().any(-1), scores.argmax(-1)
    else:
        sums = probabilities(numbers, logits, seen).cumsum(-1)
        nothing = sums[..., -1].isnan()
        # The first token whose running sum is above the number: never one of probability 0.
        picked = torch.searchsorted(sums, uniform.unsqueeze(-1) * sums[..., -1:], right=True).squeeze(-1)
    return picked.masked_fill(nothing, NOTHING_DRAWN)
