# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip eval: how likely a model finds texts, and how varied texts are."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .._core.progress import Progress
from ..models import xLSTMLarge
from ..models.generation import Stream, with_bos
from ..models.tokenizer import Tokenizer, load_tokenizer
from .common import MODEL_OPTIONS, add_command, add_model_options, load, read_text, refuse_given

EXAMPLES = """examples:
  xlstm-hip eval --model models/demo book.txt          # avg_logprob, perplexity, distinct-2, distinct-3
  xlstm-hip eval --lines outputs.txt                   # distinct-2 and -3 of outputs, one a line

avg_logprob is the mean natural log-probability of a token after all before it, perplexity exp(-avg_logprob).
distinct-n is the share of different ones among all sequences of n words, over all texts.
"""


def add(commands: Any) -> None:
    command = add_command(commands, "eval", run, "Measure texts: likelihood under a model, variety of words.", EXAMPLES)
    command.add_argument("texts", nargs="*", type=Path, help="files (default: stdin)")
    command.add_argument("--model", type=Path, help="folder of a checkpoint; without one only distinct-n")
    command.add_argument("--lines", action="store_true", help="each line is a text of its own")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_model_options(command)


def distinct(texts: Iterable[str], n: int) -> float:
    """NaN where no text has n words."""
    grams = [tuple(words[k : k + n]) for words in map(str.split, texts) for k in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan


def log_probabilities(model: xLSTMLarge, tokenizer: Tokenizer, texts: list[str]) -> tuple[float, int]:
    """Their sum, and over how many tokens. Without a BOS token a text's first token has none."""
    total, count = 0.0, 0
    with Progress("scoring", len(texts), "texts") as bar:
        for text in texts:
            tokens = with_bos([tokenizer.encode(text)], model.special_tokens.bos)
            scores = Stream(model).score(torch.tensor(tokens, device=model.embedding.weight.device))[0, 1:]
            total += float(scores.double().sum())
            count += len(scores)
            bar.advance()
    return total, count


def run(given: argparse.Namespace) -> int:
    if given.model is None:
        refuse_given(given, MODEL_OPTIONS, "--model beside it")
    texts = [read_text("texts", file) for file in given.texts or [None]]
    if given.lines:
        texts = [line for text in texts for line in text.splitlines()]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError("expected a text, got none that is not empty")
    results: dict[str, float] = {"texts": len(texts)}
    if given.model is not None:
        model = load("--model", given.model, given)
        total, count = log_probabilities(model, load_tokenizer(given.model, model.config.vocab_size), texts)
        if not count:
            raise ValueError("expected a text of at least two tokens")
        results |= {"tokens": count, "avg_logprob": total / count, "perplexity": math.exp(-total / count)}
    results |= {f"distinct-{n}": distinct(texts, n) for n in (2, 3)}
    if given.json:
        print(json.dumps({name: None if math.isnan(value) else value for name, value in results.items()}))
    else:
        for name, value in results.items():
            print(f"{name:<12} {value if isinstance(value, int) else format(value, '.4f')}")
    return 0
