# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip generate: generates text after one prompt, printed as it is sampled, or after each of a file of prompts."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.generation import Logprobs, Stream, logprobs_of, with_bos
from ..models.hub import checkpoint_folder
from ..models.sampling import Sampling
from ..models.text import Text, TextWriter, token_logprobs
from ..models.tokenizer import Tokenizer, load_tokenizer
from ..models.xlstm_large import xLSTMLarge
from .common import (
    CHECKPOINT,
    WrongArguments,
    add_command,
    add_model_options,
    at_least,
    load,
    read_text,
    refuse_options,
)
from .prompt_files import run_prompts
from .writing import (
    add_sampling_options,
    add_state_options,
    add_template_option,
    check_logprobs_option,
    check_state_options,
    check_template_option,
    interruptible,
    json_of,
    json_text,
    load_stream,
    read_last,
    sampling_of,
    write_tokens,
)

EXAMPLES = """examples:
  xlstm-hip generate models/demo --prompt "In the beginning" --temperature 0.7
  xlstm-hip generate models/xlstm-7b --file question.txt --dtype bfloat16 --stop "Question:"
  git log | xlstm-hip generate models/demo --max-tokens 0      # until an end-of-text token or Ctrl-C
  xlstm-hip generate models/demo --file book.txt --max-tokens 1 --save-state book.state    # reads the book once,
  xlstm-hip generate models/demo --load-state book.state --prompt " And"                   # to go on from there
  xlstm-hip generate models/demo --prompts prompts.jsonl --batch 16 --output texts.jsonl --resume

--prompts reads a JSON object a line: {"prompt": "..."}, with an "id" if the line's number, from 1, is not to be it.
Instead of "prompt" all lines may have "messages", which the checkpoint's chat template or --template writes. Other
fields are copied. --output has an object a line in the same order: id, prompt, text, finish_reason ("stop" for an
end token or --stop, "length" for --max-tokens), stop, prompt_tokens, new_tokens and logprobs. A prompt's text depends
on its place in the file and on --seed, not on --batch.
"""


def add(commands: Any) -> None:
    command = add_command(
        commands, "generate", run, "Generate text after a prompt from --prompt, --file, stdin or --prompts.", EXAMPLES
    )
    command.add_argument("model", help=CHECKPOINT)
    source = command.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="the prompt")
    source.add_argument("--file", metavar="FILE", type=Path, help="file with the prompt")
    source.add_argument("--prompts", metavar="FILE", type=Path, help="file with a prompt a line, as JSON; -: stdin")
    add_sampling_options(command, max_tokens=256)
    command.add_argument("--no-bos", action="store_true", help="do not put a BOS token before the prompt")
    command.add_argument("--ignore-end", action="store_true", help="continue after an end-of-text token")
    add_state_options(command)
    command.add_argument("--echo", action="store_true", help="print the prompt first")
    command.add_argument("--stats", action="store_true", help="print prefill and decode times to stderr at the end")
    command.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the text")
    command.add_argument(
        "--logprobs",
        metavar="N",
        type=at_least(0),
        help="with --json or --prompts: log-probability of each token, and of the N most probable ones",
    )
    command.add_argument("--batch", metavar="N", type=at_least(1), help="with --prompts: at a time (default: 8)")
    command.add_argument("--output", metavar="FILE", type=Path, help="with --prompts: a new file (default: stdout)")
    command.add_argument(
        "--resume",
        action="store_true",
        default=None,
        help="with --output: the file may exist; prompts whose id is in it are left out",
    )
    add_template_option(command, "with --prompts that are messages: ")
    add_model_options(command)


def check_options(args: argparse.Namespace) -> None:
    """Raises for options that would have no effect together."""
    if args.prompts is None:
        refuse_options(args, ("batch", "output", "resume", "template"), "--prompts with it")
        if args.logprobs is not None and not args.json:
            raise WrongArguments(f"--logprobs: expected --json or --prompts with it, got {args.logprobs}")
        if args.json and args.echo:
            raise WrongArguments("--echo: expected no --json with it, whose object has the prompt")
        return
    for name in ("echo", "json", "stats", "save_state"):
        if getattr(args, name):
            raise WrongArguments(f"--{name.replace('_', '-')}: expected --prompt, --file or stdin, got --prompts")
    if args.max_tokens == 0:
        raise WrongArguments("--max-tokens: expected at least 1 with --prompts, got 0")
    if args.load_state is not None and args.repetition_penalty != 1:
        actual = f"got {args.repetition_penalty}"
        raise WrongArguments(f"--repetition-penalty: expected 1 with --prompts and --load-state, {actual}")
    if args.resume and args.output is None:
        raise WrongArguments("--resume: expected --output with it, got True")


def read_prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        if any("\ud800" <= letter <= "\udfff" for letter in args.prompt):  # bytes that Python could not read
            raise ValueError("--prompt: expected UTF-8")
        return args.prompt
    return read_text("--file" if args.file is not None else "prompt", args.file)


def run(args: argparse.Namespace) -> int:
    sampling = sampling_of(args)
    check_options(args)
    check_template_option(args)
    check_state_options(args)
    if args.prompts is not None:
        return run_prompts(args, sampling)
    text = read_prompt(args)
    folder = checkpoint_folder("model", args.model, revision=args.revision)
    model = load("model", folder, args)
    tokenizer = load_tokenizer(folder, model.config.vocab_size)
    check_logprobs_option(args, model)
    began = time.perf_counter()
    stream, ids = read_stream(args, sampling, model, tokenizer, text)
    ready = time.perf_counter()
    if args.echo:
        print(text, end="", flush=True)
    with interruptible() as interrupted:
        result = write(args, stream, sampling, tokenizer, ids, interrupted)
    wall = time.perf_counter() - ready
    if args.json:
        print(json_text({"prompt": text} | json_of(result)), flush=True)
    if args.stats:
        decode = f"{len(result.tokens)} tokens in {wall:.2f} s, {len(result.tokens) / wall:.1f} tokens/s"
        print(f"prefill: {len(ids)} tokens in {ready - began:.2f} s; decode: {decode}", file=sys.stderr)
    if interrupted.is_set():
        raise KeyboardInterrupt
    return 0


def read_stream(
    args: argparse.Namespace, sampling: Sampling, model: xLSTMLarge, tokenizer: Tokenizer, text: str
) -> tuple[Stream, list[int]]:
    """A stream that has read the prompt, after --load-state's text if there is one, and the prompt's tokens."""
    ids = tokenizer.encode(text)
    if args.load_state is not None:
        stream, _ = load_stream(args.load_state, model, sampling)
        if not ids and stream.logits is None:
            raise ValueError(f"prompt: expected text, got none, and {args.load_state} has no logits to continue from")
    else:
        (ids,) = with_bos([ids], None if args.no_bos else model.special_tokens.bos)
        if not ids:
            raise ValueError("prompt: expected text, got none, and there is no BOS token to start from")
        stream = Stream(model, remember_tokens=sampling.repetition_penalty != 1 or args.save_state is not None)
    if ids:
        stream.feed(torch.tensor([ids], device=model.embedding.weight.device))
    return stream, ids


def write(
    args: argparse.Namespace,
    stream: Stream,
    sampling: Sampling,
    tokenizer: Tokenizer,
    ids: list[int],
    interrupted: threading.Event,
) -> Text:
    """Prints the text as it comes, but with --json, and saves the state."""
    ends = () if args.ignore_end else stream.model.special_tokens.eos
    writer = TextWriter(tokenizer, args.stop, ids)
    parts: list[str] = []
    scores: list[Logprobs] = []

    def score(token: Tensor) -> None:
        if args.logprobs is not None and stream.logits is not None:
            scores.append(logprobs_of(stream.logits, token, args.logprobs))

    def say(part: str) -> None:
        print(part, end="", flush=True)

    out: Callable[[str], None] = parts.append if args.json else say
    try:
        tokens, reason = write_tokens(
            args.max_tokens, args.seed, stream, sampling, ends, writer, out, interrupted, score
        )
    finally:
        if not args.json:
            print(flush=True)
    if args.save_state is not None:
        read_last(stream, tokens, ends)
        stream.save(args.save_state)
    logprobs = None
    if scores:
        logprobs = token_logprobs(tokenizer, tokens, Logprobs(*map(torch.cat, zip(*scores, strict=True))))
    return Text("".join(parts), tokens, reason, writer.stopped_by, len(ids), logprobs)
