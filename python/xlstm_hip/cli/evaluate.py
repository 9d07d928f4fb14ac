# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip eval: perplexity of texts under a model, and the variety of their words."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ..models.evaluation import distinct, log_probabilities
from ..models.hub import checkpoint_folder
from ..models.tokenizer import load_tokenizer
from .common import CHECKPOINT, MODEL_OPTIONS, add_command, add_model_options, load, read_text, refuse_options

EXAMPLES = """examples:
  xlstm-hip eval --model models/demo book.txt          # avg_logprob, perplexity, distinct-2, distinct-3
  xlstm-hip eval --lines outputs.txt                   # distinct-2 and distinct-3, one text per line

avg_logprob is the mean natural-log probability of a token given all tokens before it; perplexity is
exp(-avg_logprob). distinct-n is the number of different n-grams of words divided by the number of all n-grams.
"""


def add(commands: Any) -> None:
    command = add_command(commands, "eval", run, "Measure texts: perplexity under a model, variety of words.", EXAMPLES)
    command.add_argument("texts", nargs="*", type=Path, help="files (default: stdin)")
    command.add_argument("--model", metavar="MODEL", help=f"{CHECKPOINT}; without it, only distinct-n is computed")
    command.add_argument("--lines", action="store_true", help="each line is a separate text")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_model_options(command)


def run(args: argparse.Namespace) -> int:
    if args.model is None:
        refuse_options(args, MODEL_OPTIONS, "--model with it")
    texts = [read_text("texts", file) for file in args.texts or [None]]
    if args.lines:
        texts = [line for text in texts for line in text.splitlines()]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError("texts: expected text, got only empty ones")
    results: dict[str, float] = {"texts": len(texts)}
    if args.model is not None:
        folder = checkpoint_folder("--model", args.model, revision=args.revision)
        model = load("--model", folder, args)
        total, count = log_probabilities(model, load_tokenizer(folder, model.config.vocab_size), texts)
        if not count:
            raise ValueError("texts: expected at least two tokens")
        results |= {"tokens": count, "avg_logprob": total / count, "perplexity": math.exp(-total / count)}
    results |= {f"distinct-{n}": distinct(texts, n) for n in (2, 3)}
    if args.json:
        print(json.dumps({name: None if math.isnan(value) else value for name, value in results.items()}))
    else:
        for name, value in results.items():
            print(f"{name:<12} {value if isinstance(value, int) else format(value, '.4f')}")
    return 0
