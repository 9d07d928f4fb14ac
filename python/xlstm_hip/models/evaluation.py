# SPDX-License-Identifier: Apache-2.0
"""Measures of text: log-probability under a model, and variety of words."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from .._core.progress import Progress
from .generation import Stream, with_bos
from .tokenizer import Tokenizer
from .xlstm_large import xLSTMLarge


def distinct(texts: Iterable[str], n: int) -> float:
    """The number of different n-grams of words divided by the number of all; NaN if no text has n words."""
    grams = [tuple(words[k : k + n]) for words in map(str.split, texts) for k in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan


def log_probabilities(model: xLSTMLarge, tokenizer: Tokenizer, texts: list[str]) -> tuple[float, int]:
    """The sum of the tokens' log-probabilities, and the number of tokens. Without a BOS token, a text's first token is
    not counted.
    """
    total, count = 0.0, 0
    with Progress("scoring", len(texts), "texts") as bar:
        for text in texts:
            tokens = with_bos([tokenizer.encode(text)], model.special_tokens.bos)
            scores = Stream(model).score(torch.tensor(tokens, device=model.embedding.weight.device))[0, 1:]
            total += float(scores.double().sum())
            count += len(scores)
            bar.advance()
    return total, count
