# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip serve: an HTTP server with OpenAI's API."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._core.extras import EXTRA_OF, optional_module
from ..models.chat_template import load_chat_template
from ..models.config_files import SpecialTokens, read_config
from ..models.hub import checkpoint_folder
from ..models.tokenizer import Tokenizer, load_tokenizer
from ..serving import Engine, EngineConfig, Router
from ..serving.torch_caches import bound_torch_caches
from .common import (
    CHECKPOINT,
    POSITIVE,
    add_command,
    add_model_options,
    at_least,
    default_device_name,
    load,
    refuse_options,
)
from .writing import add_template_option, check_template_option

if TYPE_CHECKING:
    from ..serving import server

EXAMPLES = """examples:
  xlstm-hip serve models/demo
  xlstm-hip serve models/xlstm-7b --host 0.0.0.0 --api-key-file keys.txt --slots 64 --log-format json
  xlstm-hip serve models/xlstm-7b --engines 8
  curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \\
      -d '{"model": "demo", "prompt": "In the beginning", "max_tokens": 50}'

It serves /v1/completions, /v1/chat/completions (for models with a chat template), /v1/models, /tokenize, /detokenize,
/health, /ready, /metrics, /version, and a page to chat at /. SIGTERM or Ctrl-C lets running answers end; a second one
ends the server at once. API keys may also be in the environment variable XLSTM_HIP_API_KEYS, with commas between them.
"""
DEFAULTS = EngineConfig()
MIB = 1 << 20


def add(commands: Any) -> None:
    command = add_command(commands, "serve", run, "Serve a model over HTTP with OpenAI's API.", EXAMPLES)
    command.add_argument("model", help=CHECKPOINT)
    command.add_argument("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0: all (default: 127.0.0.1)")
    command.add_argument(
        "--port", metavar="N", type=at_least(0, 65535), default=8000, help="0: a free one (default: 8000)"
    )
    command.add_argument("--served-model-name", metavar="NAME", help="in requests (default: as the model's folder)")
    add_template_option(command)
    _add_access(command)
    _add_limits(command)
    _add_engine(command)
    log = command.add_argument_group("log", "A line for each request on stderr, without its text.")
    log.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="json: an object a line (default: text)"
    )
    log.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="debug: requests of /health, /ready and /metrics, too (default: info)",
    )
    log.add_argument(
        "--otel", action="store_true", help="a span for each request, by OTLP over HTTP (OTEL_* variables)"
    )
    add_model_options(command)


def _add_access(command: argparse.ArgumentParser) -> None:
    access = command.add_argument_group("access")
    access.add_argument(
        "--api-key-file", metavar="FILE", type=Path, help="a key a line; without keys everybody may ask"
    )
    access.add_argument(
        "--max-requests-per-key",
        metavar="N",
        type=at_least(1),
        help="answered at a time, with keys (default: no limit)",
    )
    access.add_argument(
        "--cache-per-key",
        action="store_const",
        const=True,
        help="with keys: no state of a prompt is shared between them, so that none learns what others ask",
    )
    access.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="a site whose pages may use this server, or *; may be given several times",
    )
    access.add_argument(
        "--ignore-unknown-fields",
        action="store_true",
        help="leave out fields of requests that are unknown here, instead of refusing the request",
    )


def _add_limits(command: argparse.ArgumentParser) -> None:
    limits = command.add_argument_group("limits")
    for name, default, text in (
        ("max-prompt-tokens", 262144, "of a prompt"),
        ("max-new-tokens", 32768, "of an answer, also if a chat names no limit"),
        ("max-choices", 128, "answers of a request: its prompts times n"),
        ("max-body-mb", 16, "of a request, in MiB"),
    ):
        option = limits.add_argument(f"--{name}", metavar="N", type=at_least(1), default=default)
        option.help = f"{text} (default: {default})"
    limits.add_argument("--request-timeout", metavar="S", type=POSITIVE, help="for an answer (default: no limit)")
    limits.add_argument(
        "--stall-timeout",
        metavar="S",
        type=POSITIVE,
        default=60.0,
        help="for a client to read what was sent, before it is cut off (default: 60)",
    )
    limits.add_argument(
        "--drain-timeout", metavar="S", type=POSITIVE, default=30.0, help="for answers after a signal (default: 30)"
    )


def _add_engine(command: argparse.ArgumentParser) -> None:
    engine = command.add_argument_group("engine", "docs/serving.md says what they weigh against each other.")
    engine.add_argument(
        "--engines",
        metavar="N",
        type=at_least(1),
        default=1,
        help="each with the whole model: more than one are processes, on a GPU of their own each (default: 1)",
    )
    for name, text in (
        ("slots", "requests that are answered at a time; each has a state in memory"),
        ("prefill-chunk", "prompt tokens that are read at a time"),
        ("token-budget", "prompt tokens of a step, beside the rows that generate"),
        ("max-waiting", "requests that wait for a slot; more are refused"),
    ):
        default = getattr(DEFAULTS, name.replace("-", "_"))
        option = engine.add_argument(f"--{name}", metavar="N", type=at_least(1), default=default)
        option.help = f"{text} (default: {default})"
    engine.add_argument(
        "--state-dtype", choices=("float32", "bfloat16"), help="of the states (default: as the model's configuration)"
    )
    engine.add_argument(
        "--kept-dtype",
        choices=("bfloat16", "int8"),
        help="of states that are kept for others to go on from: fewer bytes, rounded once (default: as the states)",
    )
    for name, field, text in (
        ("prefix-cache-mb", "prefix_cache_bytes", "MiB of states of prompts that others may begin with; 0: none"),
        ("swap-mb", "swap_bytes", "MiB of host memory for states of sessions and preempted requests"),
        ("swap-folder-mb", "swap_folder_bytes", "MiB of files in --swap-folder"),
    ):
        default = getattr(DEFAULTS, field) // MIB
        option = engine.add_argument(f"--{name}", metavar="N", type=at_least(0), default=default)
        option.help = f"{text} (default: {default})"
    engine.add_argument(
        "--prefix-cache-device",
        choices=("device", "host"),
        default=DEFAULTS.prefix_cache_device,
        help=f"where those lie (default: {DEFAULTS.prefix_cache_device})",
    )
    engine.add_argument(
        "--no-cache-answers", action="store_true", help="keep states of prompts alone, not those after answers"
    )
    engine.add_argument(
        "--speculation-tokens",
        metavar="N",
        type=at_least(0),
        default=DEFAULTS.speculation_tokens,
        help="tokens that are guessed from what a text repeats, and checked at once; 0: none "
        f"(default: {DEFAULTS.speculation_tokens})",
    )
    engine.add_argument(
        "--speculation-rows",
        metavar="N",
        type=at_least(1),
        default=DEFAULTS.speculation_rows,
        help=f"with up to so many requests that generate (default: {DEFAULTS.speculation_rows})",
    )
    engine.add_argument("--swap-folder", metavar="FOLDER", type=Path, help="for states of sessions beyond --swap-mb")
    engine.add_argument(
        "--fixed-rows", action="store_true", help="answers that do not depend on what runs beside, to the last bit"
    )
    engine.add_argument(
        "--no-lookahead", action="store_true", help="a GPU's step waits until the last one's tokens are handled"
    )
    engine.add_argument(
        "--no-join-chunks", action="store_true", help="a GPU reads prompts in calls apart from the rows that generate"
    )
    engine.add_argument(
        "--no-warm-up", action="store_true", help="do not capture all graphs of a GPU before the first request"
    )
    engine.add_argument("--no-preemption", action="store_true", help="a higher priority takes no slot away")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    if args.swap_folder is not None and not args.swap_folder.is_dir():
        raise ValueError(f"--swap-folder: expected a folder, got {str(args.swap_folder)!r}")
    try:
        return EngineConfig(
            slots=args.slots,
            prefill_chunk=args.prefill_chunk,
            token_budget=args.token_budget,
            max_waiting=args.max_waiting,
            max_prompt_tokens=args.max_prompt_tokens,
            max_new_tokens=args.max_new_tokens,
            preemption=not args.no_preemption,
            fixed_rows=args.fixed_rows,
            lookahead=False if args.no_lookahead else None,
            join_chunks=False if args.no_join_chunks else None,
            warm_up=not args.no_warm_up,
            state_dtype=args.state_dtype,
            kept_dtype=args.kept_dtype,
            prefix_cache_bytes=args.prefix_cache_mb * MIB,
            prefix_cache_device=args.prefix_cache_device,
            cache_answers=not args.no_cache_answers,
            speculation_tokens=args.speculation_tokens,
            speculation_rows=args.speculation_rows,
            swap_bytes=args.swap_mb * MIB,
            swap_folder=args.swap_folder,
            swap_folder_bytes=args.swap_folder_mb * MIB,
        )
    except ValueError as error:
        name, _, rest = str(error).partition(": ")
        raise ValueError(f"--{name.replace('_', '-')}: {rest}") from None


def engine_device(args: argparse.Namespace, number: int) -> str:
    """Of one of several engines."""
    device = args.device or default_device_name()
    if device != "cpu" and device != "cuda":
        raise ValueError(f"--device: expected cpu or cuda with --engines {args.engines}, got {device!r}")
    if device == "cuda" and torch.cuda.device_count() < args.engines:
        raise ValueError(
            f"--engines: expected at most as many as there are GPUs, {torch.cuda.device_count()}, got {args.engines}"
        )
    return device if device == "cpu" else f"cuda:{number}"


def start_engine(args: argparse.Namespace, folder: Path, config: EngineConfig, number: int = 0) -> Engine:
    """The engine of this number, in the process that has it."""
    bound_torch_caches()
    if args.engines > 1:
        from ..serving.server import set_up_log

        set_up_log(args.log_format, args.log_level)
        args = copy.copy(args)
        args.device = engine_device(args, number)
        if args.device == "cpu" and args.threads is None:
            args.threads = max(1, (os.cpu_count() or 1) // args.engines)
        if config.swap_folder is not None:
            own = Path(config.swap_folder) / f"engine-{number}"
            own.mkdir(mode=0o700, exist_ok=True)
            config = dataclasses.replace(config, swap_folder=own)
    model = load("model", folder, args)
    return Engine(model, load_tokenizer(folder, model.config.vocab_size), config).start()


def check_packages(needed_by: str) -> None:
    for package, extra in EXTRA_OF.items():
        if extra == "serve":
            optional_module(package, needed_by)


def limits_of(args: argparse.Namespace) -> server.Limits:
    from ..serving import server

    return server.Limits(
        max_body_bytes=args.max_body_mb * MIB,
        max_prompt_tokens=args.max_prompt_tokens,
        max_new_tokens=args.max_new_tokens,
        max_choices=args.max_choices,
        max_requests_per_key=args.max_requests_per_key,
        cache_per_key=bool(args.cache_per_key),
        request_seconds=args.request_timeout,
        stall_seconds=args.stall_timeout,
    )


def keys_of(args: argparse.Namespace) -> server.Keys:
    from ..serving import server

    keys = server.load_keys(args.api_key_file)
    if not keys:
        refuse_options(args, ("max_requests_per_key", "cache_per_key"), "API keys with it")
    return keys


def folder_of(args: argparse.Namespace) -> Path:
    return checkpoint_folder("model", args.model, revision=args.revision)


def served_of(
    args: argparse.Namespace,
    folder: Path,
    tokenizer: Tokenizer,
    special_tokens: SpecialTokens,
    vocab_size: int,
    engine: server.EngineLike,
) -> server.Served:
    from ..serving import server

    # A folder by its name, without the path; a model of the hub as it is called there.
    name = args.served_model_name or (Path(args.model).resolve().name if Path(args.model).is_dir() else args.model)
    template, no_template = None, ""
    try:
        template = load_chat_template(folder, tokenizer, special_tokens, args.template)
    except ValueError as error:
        if args.template is not None:
            raise
        no_template = "this model has no chat template" if "no chat template" in str(error) else str(error)
    return server.Served(name, engine, tokenizer, vocab_size, special_tokens.bos, template, no_template)


def run(args: argparse.Namespace) -> int:
    check_packages("xlstm-hip serve")
    from ..serving import server

    check_template_option(args)
    config, keys, limits = engine_config(args), keys_of(args), limits_of(args)
    folder = folder_of(args)
    if args.engines > 1:
        engine_device(args, 0)

    def load_served() -> server.Served:
        model_config, special_tokens = read_config(folder, with_gate_of_kernel=False)
        start = functools.partial(start_engine, args, folder, config)
        engine = start() if args.engines == 1 else Router(start, args.engines, config).start()
        tokenizer = load_tokenizer(folder, model_config.vocab_size)
        return served_of(args, folder, tokenizer, special_tokens, model_config.vocab_size, engine)

    options = server.ServerOptions(
        host=args.host,
        port=args.port,
        keys=keys,
        limits=limits,
        lenient=args.ignore_unknown_fields,
        cors_origins=args.cors_origin,
        otel=args.otel,
        drain_seconds=args.drain_timeout,
        log_format=args.log_format,
        log_level=args.log_level,
    )
    server.serve(load_served, options)
    return 0
