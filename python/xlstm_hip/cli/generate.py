# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip generate: generates text and prints each token as it is sampled."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ..models.generation import Stream, with_bos
from ..models.hub import checkpoint_folder
from ..models.sampling import Sampling, check_drawn
from ..models.tokenizer import load_tokenizer
from .common import (
    CHECKPOINT,
    NOT_NEGATIVE,
    POSITIVE,
    WrongArguments,
    add_command,
    add_model_options,
    at_least,
    load,
    number,
    read_text,
)

EXAMPLES = """examples:
  xlstm-hip generate models/demo --prompt "In the beginning" --temperature 0.7
  xlstm-hip generate models/xlstm-7b --file question.txt --dtype bfloat16
  git log | xlstm-hip generate models/demo --max-tokens 0      # until an end-of-text token or Ctrl-C
"""


def add(commands: Any) -> None:
    command = add_command(
        commands, "generate", run, "Generate text after a prompt from --prompt, --file or stdin.", EXAMPLES
    )
    command.add_argument("model", help=CHECKPOINT)
    source = command.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="the prompt")
    source.add_argument("--file", metavar="FILE", type=Path, help="file with the prompt")
    command.add_argument(
        "--max-tokens",
        metavar="N",
        type=at_least(0),
        default=256,
        help="tokens to generate; 0: no limit (default: 256)",
    )
    command.add_argument(
        "--temperature",
        metavar="T",
        type=NOT_NEGATIVE,
        default=0.8,
        help="0: greedy decoding (default: 0.8)",
    )
    command.add_argument(
        "--top-k",
        metavar="K",
        type=at_least(0),
        default=0,
        help="sample from the K most probable tokens (default: 0, all)",
    )
    command.add_argument(
        "--top-p",
        metavar="P",
        type=number("a number above 0, up to 1", lambda x: 0 < x <= 1),
        default=1.0,
        help="nucleus sampling: the smallest set with cumulative probability P (default: 1)",
    )
    command.add_argument(
        "--repetition-penalty",
        metavar="R",
        type=POSITIVE,
        default=1.0,
        help="above 1: less repetition (default: 1)",
    )
    command.add_argument(
        "--seed",
        metavar="N",
        type=at_least(0),
        default=0,
        help="for sampling; the same seed gives the same text (default: 0)",
    )
    command.add_argument("--no-bos", action="store_true", help="do not put a BOS token before the prompt")
    command.add_argument("--ignore-end", action="store_true", help="continue after an end-of-text token")
    command.add_argument("--echo", action="store_true", help="print the prompt first")
    command.add_argument("--stats", action="store_true", help="print prefill and decode times to stderr at the end")
    add_model_options(command)


def read_prompt(given: argparse.Namespace) -> str:
    if given.prompt is not None:
        if any("\ud800" <= letter <= "\udfff" for letter in given.prompt):  # bytes that Python could not read
            raise ValueError("--prompt: expected UTF-8")
        return given.prompt
    return read_text("--file" if given.file is not None else "prompt", given.file)


def run(given: argparse.Namespace) -> int:
    try:
        sampling = Sampling(given.temperature, given.top_k, given.top_p, given.repetition_penalty)
    except ValueError as error:  # each is in range, but they exclude each other
        raise WrongArguments(f"--{error}") from None
    text = read_prompt(given)
    folder = checkpoint_folder("model", given.model, revision=given.revision)
    model = load("model", folder, given)
    tokenizer = load_tokenizer(folder, model.config.vocab_size)
    tokens = with_bos([tokenizer.encode(text)], None if given.no_bos else model.special_tokens.bos)
    if not tokens[0]:
        raise ValueError("prompt: expected text, got none, and there is no BOS token to start from")
    began = time.perf_counter()
    stream = Stream(model, remember_tokens=sampling.repetition_penalty != 1)
    stream.feed(torch.tensor(tokens, device=model.embedding.weight.device))
    ready = time.perf_counter()
    if given.echo:
        print(text, end="", flush=True)
    ends = () if given.ignore_end else model.special_tokens.eos
    complete, made = tokenizer.streamer(), 0
    try:
        for token in stream.tokens(given.max_tokens or None, sampling, given.seed, ends):
            made += 1
            check_drawn(token)
            if int(token) in ends:
                break
            print(complete(int(token)), end="", flush=True)
    finally:
        print(flush=True)
        if given.stats:
            wall = time.perf_counter() - ready
            prompt = f"prefill: {len(tokens[0])} tokens in {ready - began:.2f} s"
            print(f"{prompt}; decode: {made} tokens in {wall:.2f} s, {made / wall:.1f} tokens/s", file=sys.stderr)
    return 0
