# SPDX-License-Identifier: Apache-2.0
"""Shared by generate and chat: options of sampling, templates and state files, the loop over tokens, Ctrl-C in it."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.chat_template import ChatTemplate, load_chat_template
from ..models.generation import Stream, check_logprobs
from ..models.sampling import Sampling, check_drawn
from ..models.states import load_state
from ..models.text import Text, TextWriter
from ..models.tokenizer import Tokenizer
from ..models.xlstm_large import xLSTMLarge
from .common import NOT_NEGATIVE, POSITIVE, WrongArguments, at_least, number


def add_sampling_options(command: argparse.ArgumentParser, max_tokens: int) -> None:
    command.add_argument(
        "--max-tokens",
        metavar="N",
        type=at_least(0),
        default=max_tokens,
        help=f"tokens to generate; 0: no limit (default: {max_tokens})",
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
        "--min-p",
        metavar="P",
        type=number("a number from 0 to 1", lambda x: 0 <= x <= 1),
        default=0.0,
        help="only tokens with at least P times the probability of the likeliest (default: 0, all)",
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
    command.add_argument(
        "--stop",
        metavar="TEXT",
        type=_stop_string,
        action="append",
        default=[],
        help="end at this text and leave it out; may be given several times",
    )


def _stop_string(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected text, got none")
    return text


def sampling_of(args: argparse.Namespace) -> Sampling:
    try:
        return Sampling(args.temperature, args.top_k, args.top_p, args.repetition_penalty, args.min_p)
    except ValueError as error:  # each is in range, but they exclude each other
        raise WrongArguments(f"--{error}") from None


def add_template_option(command: argparse.ArgumentParser, when: str = "") -> None:
    command.add_argument(
        "--template", metavar="FILE", type=Path, help=f"{when}a chat template in Jinja (default: the checkpoint's)"
    )


def check_template_option(args: argparse.Namespace) -> None:
    if args.template is not None and not args.template.is_file():
        raise FileNotFoundError(f"--template: expected a file, got {str(args.template)!r}")


def chat_template_of(args: argparse.Namespace, folder: Path, model: xLSTMLarge, tokenizer: Tokenizer) -> ChatTemplate:
    try:
        return load_chat_template(folder, tokenizer, model.special_tokens, args.template)
    except ValueError as error:
        raise ValueError(f"{error}; give one with --template FILE, or generate after prompts") from None


def add_state_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--load-state", metavar="FILE", type=Path, help="continue a state that --save-state wrote")
    command.add_argument(
        "--save-state",
        metavar="FILE",
        type=Path,
        help="at the end, write the state after all tokens to this file; its size does not depend on their number",
    )


def check_state_options(args: argparse.Namespace) -> None:
    """Raises for files that cannot be there, before the model is loaded."""
    if args.load_state is not None and not args.load_state.is_file():
        raise FileNotFoundError(f"--load-state: expected a file of a state, got {str(args.load_state)!r}")
    if args.save_state is not None:
        check_writable("--save-state", args.save_state)


def check_writable(name: str, file: Path) -> None:
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"{name}: expected a file in an existing folder, got {str(file)!r}")


def check_logprobs_option(args: argparse.Namespace, model: xLSTMLarge) -> None:
    if args.logprobs is not None:
        try:
            check_logprobs(args.logprobs, model.config.vocab_size)
        except ValueError as error:
            raise ValueError(f"--{error}") from None


def load_stream(file: Path, model: xLSTMLarge, sampling: Sampling) -> tuple[Stream, dict[str, Any]]:
    """The stream of --load-state, and what was noted with it."""
    try:
        saved = load_state(file, model)
    except ValueError as error:
        raise ValueError(f"--load-state: {error}") from None
    if saved.batch_size != 1:
        raise ValueError(f"--load-state: {file}: expected a state of one text, got {saved.batch_size}")
    if sampling.repetition_penalty != 1 and saved.seen is None:
        raise ValueError(f"--repetition-penalty: expected 1, as {file} does not say which tokens were seen")
    return Stream.of_saved(saved, model), saved.notes


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, for a loop to end between two tokens with all that it has; the next one interrupts."""
    heard = threading.Event()

    def hear(*_: Any) -> None:
        if heard.is_set():
            raise KeyboardInterrupt
        heard.set()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # started in the background
        yield heard
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


def write_tokens(
    most: int,
    seed: int,
    stream: Stream,
    sampling: Sampling,
    ends: Sequence[int],
    writer: TextWriter,
    out: Callable[[str], None],
    interrupted: threading.Event,
    each: Callable[[Tensor], None] = lambda token: None,
) -> tuple[list[int], str]:
    """Generates up to `most` tokens, 0 for no limit, and gives their text to `out` as it becomes certain.

    Returns the tokens and why they end: "stop" for an end token or a stop string, "length" or "interrupt". The last
    one has not been read. `each` is called with each token (1).
    """
    tokens: list[int] = []
    reason = "length"
    for token in stream.tokens(most or None, sampling, seed, ends):
        check_drawn(token)
        tokens.append(int(token))
        each(token)
        if tokens[-1] not in ends:
            out(writer.add(tokens[-1]))
        if tokens[-1] in ends or writer.stopped_by is not None:
            reason = "stop"
        elif interrupted.is_set():
            reason = "interrupt"
        if reason != "length":
            break
    out(writer.end())
    return tokens, reason


def read_last(stream: Stream, tokens: Sequence[int], ends: Sequence[int]) -> None:
    """Feeds the last of the generated tokens, but for an end token, so that the state has all of the text."""
    if tokens and tokens[-1] not in ends:
        stream.feed(torch.tensor([tokens[-1:]], device=stream.model.embedding.weight.device))


def json_of(result: Text) -> dict[str, Any]:
    """A result as --json prints it."""
    fields: dict[str, Any] = {
        "text": result.text,
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "prompt_tokens": result.prompt_tokens,
        "new_tokens": len(result.tokens),
    }
    if result.logprobs is not None:
        fields["logprobs"] = [
            {
                **_json_of_token(x.token, x.text, x.logprob),
                "top": [_json_of_token(*alternative) for alternative in x.top],
            }
            for x in result.logprobs
        ]
    return fields


def _json_of_token(token: int, text: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "text": text, "logprob": logprob if math.isfinite(logprob) else None}


def json_text(fields: dict[str, Any]) -> str:
    """One line."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)
