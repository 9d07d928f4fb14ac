# SPDX-License-Identifier: Apache-2.0
"""generate --prompts: a file of prompts, in batches, into a file of texts that an interrupted run can go on with."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .._core.atomic_files import append_atomically
from .._core.progress import Progress
from ..models.hub import checkpoint_folder
from ..models.language_model import State
from ..models.sampling import Sampling
from ..models.text import generate_text
from ..models.tokenizer import Tokenizer, load_tokenizer
from ..models.xlstm_large import xLSTMLarge
from .common import load, read_text
from .writing import chat_template_of, check_logprobs_option, check_writable, json_of, json_text, load_stream

BATCH = 8
RESULT_FIELDS = ("text", "finish_reason", "stop", "prompt_tokens", "new_tokens", "logprobs")
Id = str | int


class Prompt(NamedTuple):
    number: int  # among the prompts of the file, from 0
    where: str  # for an error
    fields: dict[str, Any]  # id and prompt, and what else there is

    @property
    def id(self) -> Id:
        return self.fields["id"]

    @property
    def content(self) -> Any:
        """The input of the model: a text, or messages."""
        return self.fields["messages" if "messages" in self.fields else "prompt"]


def run_prompts(args: argparse.Namespace, sampling: Sampling) -> int:
    prompts = read_prompts(args.prompts)
    left = prompts
    if args.output is not None:
        check_writable("--output", args.output)
        if args.output.exists() and not args.resume:
            raise FileExistsError(f"--output: expected a new file, or --resume with it, got {str(args.output)!r}")
        done = read_done(args.output, prompts) if args.output.exists() else set()
        left = [prompt for prompt in prompts if prompt.id not in done]
        if done:
            print(f"{args.output}: {len(done)} of {len(prompts)} prompts are done", file=sys.stderr)
    if not left:
        return 0
    folder = checkpoint_folder("model", args.model, revision=args.revision)
    model = load("model", folder, args)
    tokenizer = load_tokenizer(folder, model.config.vocab_size)
    check_logprobs_option(args, model)
    texts = written(args, folder, model, tokenizer, left)
    beginning = None if args.load_state is None else load_stream(args.load_state, model, sampling)[0].state
    bos = None if args.no_bos or has_messages(left) else model.special_tokens.bos
    for prompt, text in zip(left, texts, strict=True):
        if not tokenizer.encode(text) and (bos is None or beginning is not None):
            raise ValueError(f"{prompt.where}: prompt: expected text, got none, and there is no BOS token before it")
    batch = args.batch or BATCH
    try:
        with Progress("generating", len(left), "prompts") as bar:
            for begin in range(0, len(left), batch):
                part = left[begin : begin + batch]
                generated = generate_text(
                    model, tokenizer, texts[begin : begin + batch], args.max_tokens,
                    stop=args.stop, logprobs=args.logprobs, bos=bos, eos=() if args.ignore_end else "model",
                    seed=[args.seed + prompt.number for prompt in part], state=repeated(beginning, len(part)),
                    **vars(sampling),
                )  # fmt: skip
                lines = [json_text(p.fields | json_of(text)) + "\n" for p, text in zip(part, generated, strict=True)]
                if args.output is None:
                    print("".join(lines), end="", flush=True)
                else:
                    append_atomically(args.output, "".join(lines))
                bar.advance(len(part))
    except KeyboardInterrupt:
        if args.output is not None:
            print(f"\nthe same call with --resume continues {args.output}", file=sys.stderr)
        raise
    return 0


def has_messages(prompts: list[Prompt]) -> bool:
    return "messages" in prompts[0].fields


def written(
    args: argparse.Namespace, folder: Path, model: xLSTMLarge, tokenizer: Tokenizer, prompts: list[Prompt]
) -> list[str]:
    """The text that the model reads for each prompt: the prompt's text, or its messages as the chat template writes
    them."""
    if not has_messages(prompts):
        if args.template is not None:
            raise ValueError(f"--template: expected lines with messages in {args.prompts}, got prompts")
        return [prompt.content for prompt in prompts]
    for name in ("no_bos", "load_state"):
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option}: expected prompts in {args.prompts}, got messages, whose template begins a text"
            )
    template = chat_template_of(args, folder, model, tokenizer)
    texts = []
    for prompt in prompts:
        try:
            texts.append(template.render(prompt.content))
        except ValueError as error:
            raise ValueError(f"{prompt.where}: {error}") from None
    return texts


def are_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(x, dict) and isinstance(x.get("role"), str) and "content" in x for x in value)
    )


def read_prompts(file: Path) -> list[Prompt]:
    if str(file) == "-":
        name, contents = "stdin", read_text("--prompts", None).encode()
    else:
        name = str(file)
        try:
            contents = file.read_bytes()
        except OSError as error:
            raise OSError(f"--prompts: {error.strerror}: {name!r}") from None
    prompts: list[Prompt] = []
    lines: dict[Id, int] = {}  # where each id was
    for number, fields in objects(name, contents):
        where = f"{name}: line {number}"
        fields = {"id": fields.get("id", number)} | fields
        identity = fields["id"]
        if isinstance(identity, bool) or not isinstance(identity, str | int):
            raise ValueError(f"{where}: id: expected a string or an integer, got {identity!r}")
        if identity in lines:
            raise ValueError(f"{where}: id: expected another than that of line {lines[identity]}, got {identity!r}")
        if "messages" in fields:
            if not are_messages(fields["messages"]):
                raise ValueError(
                    f"{where}: messages: expected objects with role and content, got {fields['messages']!r}"
                )
            if "prompt" in fields:
                raise ValueError(f"{where}: expected a prompt or messages, got both")
        elif not isinstance(fields.get("prompt"), str):
            raise ValueError(f"{where}: prompt: expected a string, got {fields.get('prompt')!r}")
        taken = [reserved for reserved in RESULT_FIELDS if reserved in fields]
        if taken:
            raise ValueError(f"{where}: {taken[0]}: expected no such field, which results have")
        try:
            json_text(fields).encode()
        except ValueError as error:  # half a surrogate pair, or Infinity
            raise ValueError(f"{where}: expected text that UTF-8 can hold and finite numbers: {error}") from None
        if prompts and ("messages" in fields) != has_messages(prompts):
            raise ValueError(f"{where}: expected prompts in every line or messages in every line")
        lines[identity] = number
        prompts.append(Prompt(len(prompts), where, fields))
    if not prompts:
        raise ValueError(f"--prompts: expected a JSON object a line, got none in {name}")
    return prompts


def read_done(file: Path, prompts: list[Prompt]) -> set[Id]:
    """The ids of the results in a file. A last line without its end, of a process that was killed, is cut off."""
    contents = file.read_bytes()
    complete = contents.rfind(b"\n") + 1
    of_id = {prompt.id: prompt for prompt in prompts}
    done: set[Id] = set()
    for number, fields in objects(str(file), contents[:complete]):
        where, identity = f"{file}: line {number}", fields.get("id")
        prompt = of_id.get(identity) if isinstance(identity, str | int) else None
        if prompt is None or (fields.get("prompt"), fields.get("messages")) != (
            prompt.fields.get("prompt"),
            prompt.fields.get("messages"),
        ):
            raise ValueError(f"{where}: expected a result of a prompt of --prompts, got id {identity!r}")
        if identity in done:
            raise ValueError(f"{where}: expected each id once, got {identity!r} again")
        done.add(prompt.id)
    if complete < len(contents):
        os.truncate(file, complete)
    return done


def objects(name: str, contents: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file of lines, and the number of each line; empty lines are left out."""
    for number, line in enumerate(contents.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{name}: line {number}"
        try:
            fields = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: expected UTF-8, got byte {error.object[error.start]:#04x}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: expected a JSON object: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(fields).__name__}")
        yield number, fields


def repeated(state: State | None, rows: int) -> State | None:
    """A state of one row for so many: a copy, which generate overwrites."""
    if state is None:
        return None
    return {n: tuple(x.repeat(rows, *[1] * (x.dim() - 1)) for x in layer) for n, layer in state.items()}  # type: ignore[misc]
