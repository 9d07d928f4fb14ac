# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip chat: a conversation, in the words of the checkpoint's chat template. Text that the model has read is not
read again."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..models.chat_template import ChatTemplate, Message
from ..models.generation import Stream
from ..models.hub import checkpoint_folder
from ..models.sampling import Sampling
from ..models.text import TextWriter
from ..models.tokenizer import Tokenizer, load_tokenizer
from ..models.xlstm_large import xLSTMLarge
from .common import CHECKPOINT, WrongArguments, add_command, add_model_options, load
from .writing import (
    add_sampling_options,
    add_state_options,
    add_template_option,
    chat_template_of,
    check_state_options,
    check_template_option,
    check_writable,
    interruptible,
    load_stream,
    read_last,
    sampling_of,
    write_tokens,
)

EXAMPLES = """examples:
  xlstm-hip chat models/xlstm-7b-instruct --system "You answer in one sentence."
  xlstm-hip chat models/xlstm-7b-instruct --load-state yesterday.state --save-state today.state
  printf 'Hello\\nAnd why?\\n' | xlstm-hip chat models/xlstm-7b-instruct --temperature 0     # a message a line

A message is a line. Ctrl-C stops an answer, Ctrl-D ends the chat. Commands:
  /reset        forget everything but the system prompt
  /save FILE    write the conversation to a file, for --load-state; its size hardly depends on the length
  /exit         end the chat
  /help         list the commands
"""
COMMANDS = "/reset, /save FILE, /exit, /help; Ctrl-C stops an answer, Ctrl-D ends the chat"
PROMPT = "> "


def add(commands: Any) -> None:
    command = add_command(commands, "chat", run, "Talk with a model that has a chat template.", EXAMPLES)
    command.add_argument("model", help=f"{CHECKPOINT}, with a chat template")
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    add_template_option(command)
    add_sampling_options(command, max_tokens=1024)
    add_state_options(command)
    add_model_options(command)


class Conversation:
    """Messages, and a stream that has read them and written the answers."""

    def __init__(
        self,
        args: argparse.Namespace,
        sampling: Sampling,
        model: xLSTMLarge,
        tokenizer: Tokenizer,
        template: ChatTemplate,
    ) -> None:
        self._args, self._sampling, self._model = args, sampling, model
        self._tokenizer, self._template = tokenizer, template
        self.reset()

    def reset(self) -> None:
        self.messages: list[Message] = []
        if self._args.system is not None:
            self.messages.append({"role": "system", "content": self._args.system})
        self._begin()

    def _begin(self) -> None:
        self.stream = Stream(self._model, remember_tokens=True)
        # The text that the stream has read; and, if it has read nothing more, the same text as templates that trim
        # answers write it.
        self._read = [""]

    def answer(self, message: str) -> None:
        """Prints the answer to a message as it comes."""
        messages = [*self.messages, {"role": "user", "content": message}]
        text = self._template.render(messages)
        known = next((read for read in self._read if text.startswith(read)), None)
        if known is None:
            print("the template writes earlier messages anew: all of them are read again", file=sys.stderr)
            self._begin()
            known = ""
        tokens = self._tokenizer.encode(text[len(known) :])
        if not tokens:
            raise ValueError(f"{self._template.file}: expected a template that writes the messages, got nothing new")
        ends = self._model.special_tokens.eos
        writer, parts = TextWriter(self._tokenizer, self._args.stop), []

        def say(part: str) -> None:
            parts.append(part)
            print(part, end="", flush=True)

        with interruptible() as interrupted:
            self.stream.feed(torch.tensor([tokens], device=self._model.embedding.weight.device))
            seed = self._args.seed + len(messages)
            answer_tokens, _ = write_tokens(
                self._args.max_tokens, seed, self.stream, self._sampling, ends, writer, say, interrupted
            )
            read_last(self.stream, answer_tokens, ends)
        print(flush=True)
        answer = "".join(parts)
        self._read = [text + answer + writer.pending]
        if writer.stopped_by is None:
            self._read.append(text + answer.strip())
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def save(self, file: Path) -> None:
        self.stream.save(file, {"messages": self.messages, "read": self._read})

    def load(self, file: Path) -> None:
        self.stream, notes = load_stream(file, self._model, self._sampling)
        if "messages" not in notes or "read" not in notes:
            raise ValueError(f"--load-state: {file}: expected the state of a chat, got one without messages")
        self.messages, self._read = notes["messages"], notes["read"]


def run(args: argparse.Namespace) -> int:
    sampling = sampling_of(args)
    if args.load_state is not None and args.system is not None:
        raise WrongArguments(f"--system: expected none with --load-state, whose chat has its own, got {args.system!r}")
    check_template_option(args)
    check_state_options(args)
    folder = checkpoint_folder("model", args.model, revision=args.revision)
    model = load("model", folder, args)
    tokenizer = load_tokenizer(folder, model.config.vocab_size)
    template = chat_template_of(args, folder, model, tokenizer)
    chat = Conversation(args, sampling, model, tokenizer, template)
    if args.load_state is not None:
        chat.load(args.load_state)
    for line in lines():
        if line.startswith("/"):
            if not obeyed(chat, line):
                break
        elif line.strip():
            chat.answer(line)
    if args.save_state is not None:
        chat.save(args.save_state)
    return 0


def lines() -> Iterator[str]:
    """The lines of stdin, without their ends; at a terminal after a prompt."""
    if sys.stdin is None:
        raise ValueError("chat: expected messages in stdin, which is closed")
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                actual = f"got byte {error.object[error.start]:#04x}"
                raise ValueError(f"stdin: line {number}: expected UTF-8, {actual}") from None
        return
    with contextlib.suppress(ImportError):  # input() then edits lines
        import readline  # noqa: F401

    print(COMMANDS, file=sys.stderr)
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n/exit or Ctrl-D ends the chat", file=sys.stderr)


def obeyed(chat: Conversation, line: str) -> bool:
    """Obeys a command; whether the chat goes on."""
    command, _, argument = line.partition(" ")
    argument = argument.strip()
    if command == "/save" and argument:
        try:
            check_writable("/save", Path(argument))
            chat.save(Path(argument))
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
    elif argument or command not in ("/reset", "/exit", "/help"):
        print(f"expected one of {COMMANDS}, got {line!r}", file=sys.stderr)
    elif command == "/reset":
        chat.reset()
    elif command == "/help":
        print(COMMANDS, file=sys.stderr)
    return command != "/exit" or bool(argument)
