# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip bench: checks and times operators of this package and of other implementations; times one model."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .._core.progress import Tasks
from ..mlstm.describe import DTYPE_NAMES
from ..models.hub import called, checkpoint_folder
from .common import (
    CHECKPOINT,
    DTYPES,
    MODEL_OPTIONS,
    WrongArguments,
    add_command,
    add_revision,
    at_least,
    check_out,
    default_device_name,
    device_name,
    json_file,
    load,
    number,
    refuse_options,
)

EXAMPLES = """examples:
  xlstm-hip bench --list                                  # operators, providers and metrics; what is missing and why
  xlstm-hip bench mlstm step --seconds 120 --out b.json   # writes b.json, b.md and plots
  xlstm-hip bench --quick                                 # smoke test: everything at tiny shapes, times mean nothing
  xlstm-hip bench selection --device cuda --seconds 600   # get_optimal_kernel_config compared with the fastest kernels
  xlstm-hip bench --redraw b.json                         # regenerates the tables and plots
  xlstm-hip bench --model NX-AI/xLSTM-7b -p 512,2048 -n 128 -b 1,8   # tokens/s of a model, as llama-bench has them

Each result of an operator is first checked against a reference, except FLA's, which computes another function.
exit code: 0; 1 if an implementation of xlstm_hip was wrong or failed, or nothing was measured
"""


def _one_of(kind: str) -> Callable[[str], str]:
    """A parser of names. It imports the benchmark only when a name is given."""

    def parse(text: str) -> str:
        from ..bench.metrics import METRICS
        from ..bench.operators import GROUPS, OPERATORS
        from ..bench.registry import PROVIDERS, named

        known: dict[str, Mapping[str, Any]] = {
            "operator": {**OPERATORS, **GROUPS},
            "provider": PROVIDERS,
            "metric": METRICS,
        }
        try:
            return named(kind, known[kind], text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None

    return parse


def _numbers(least: int) -> Callable[[str], list[int]]:
    """Whole numbers with commas between them."""
    one = at_least(least)
    return lambda text: [one(part) for part in text.split(",")]


# The options of a benchmark of operators and of a model; of neither is one allowed with the other. None: not given.
OPERATOR_OPTIONS = ("operators", "providers", "metrics", "seconds", "out", "peers", "quick", "list", "redraw")
MODEL_DEFAULTS: dict[str, Any] = {
    "prompt": [512], "generate": [128], "batch": [1], "repetitions": 5, "json": False, "revision": None,
}  # fmt: skip
_SECONDS = number("a number > 0", lambda x: 0 < x < math.inf)


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "bench",
        run,
        "Benchmark operators against other implementations, or a model. Operators are checked before they are timed.",
        EXAMPLES,
    )
    command.add_argument(
        "operators",
        nargs="*",
        type=_one_of("operator"),
        help="names from --list (default: all except selection and shapes)",
    )
    command.add_argument("--providers", nargs="+", type=_one_of("provider"), help="(default: all)")
    command.add_argument("--metrics", nargs="+", type=_one_of("metric"), help="columns of the tables (default: all)")
    command.add_argument(
        "--device", type=device_name, help="(default: the GPU if this build has kernels for it, else cpu)"
    )
    command.add_argument(
        "--dtype",
        nargs="+",
        choices=DTYPES,
        help="(default: bfloat16, on the CPU also float32; with --model as in generate)",
    )
    command.add_argument(
        "--seconds", type=_SECONDS, help="approximate total time, shared by all points (default: no limit)"
    )
    command.add_argument(
        "--out",
        type=json_file,
        help="JSON file; tables and plots go to the same folder (default: named by device and time)",
    )
    command.add_argument("--threads", metavar="N", type=at_least(1), help="CPU threads (default: one per core)")
    command.add_argument("--peers", type=Path, help="folder with more packages to import, unpacked")
    command.add_argument("--quick", action="store_true", help="smoke test: tiny shapes, few rounds")
    command.add_argument("--list", action="store_true", help="list operators, providers and metrics; measure nothing")
    command.add_argument(
        "--redraw", type=Path, metavar="FILE.json", help="regenerate tables and plots of a result file; measure nothing"
    )
    model = command.add_argument_group("a model, instead of operators")
    model.add_argument("--model", metavar="MODEL", help=CHECKPOINT)
    model.set_defaults(**dict.fromkeys(MODEL_DEFAULTS))
    for short, name, least, text in (
        ("-p", "prompt", 0, "pp: tokens of a prompt, 0: none"),
        ("-n", "generate", 0, "tg: tokens to generate, 0: none"),
        ("-b", "batch", 1, "sequences at once"),
    ):
        default = MODEL_DEFAULTS[name][0]
        model.add_argument(
            short, f"--{name}", metavar="N[,N]", type=_numbers(least), help=f"{text} (default: {default})"
        )
    repetitions = MODEL_DEFAULTS["repetitions"]
    model.add_argument(
        "-r", "--repetitions", metavar="N", type=at_least(1), help=f"of each test (default: {repetitions})"
    )
    model.add_argument("--json", action="store_const", const=True, help="print JSON")
    add_revision(model)


def run(args: argparse.Namespace) -> int:
    if args.model is not None:
        return run_model(args)
    refuse_options(args, MODEL_DEFAULTS, "--model with it")
    from ..bench import pictures, result_files, runner
    from ..bench.metrics import METRICS
    from ..bench.operators import DEFAULT, GROUPS
    from ..bench.registry import PROVIDERS
    from ..bench.report import markdown
    from ..bench.trial import add_peers

    if args.peers is not None and not args.peers.is_dir():
        raise ValueError(f"--peers: expected a folder, got {str(args.peers)!r}")
    add_peers(args.peers)
    device = args.device or default_device_name()
    _nothing_else(args)
    if args.list:
        print(listing(torch.device(device)))
        return 0
    write_report = partial(markdown, columns=tuple(args.metrics or METRICS))
    if args.redraw is not None:
        result_files.redraw(args.redraw, runner.BENCHMARK, write_report, pictures.draw)
        return 0
    gpu = torch.device(device).type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise ValueError(f"--device: torch sees no GPU, got {device!r}")
    if gpu and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device: expected one of torch's {torch.cuda.device_count()} GPUs, got {device!r}")
    if args.threads:
        torch.set_num_threads(args.threads)
    operators = [operator for name in args.operators or DEFAULT for operator in GROUPS.get(name, (name,))]
    settings = runner.Settings(
        operators=tuple(dict.fromkeys(operators)),
        providers=tuple(dict.fromkeys(args.providers or PROVIDERS)),
        device=device,
        dtypes=tuple(DTYPE_NAMES[DTYPES[x]] for x in args.dtype or (["bfloat16"] if gpu else ["float32", "bfloat16"])),
        seconds=args.seconds or math.inf,
        quick=args.quick,
        peers=args.peers,
    )
    out = args.out or Path(f"bench_{torch.device(device).type}_{time.strftime('%Y%m%d_%H%M%S')}.json")
    check_out(out)
    results = runner.run(settings, out)
    result_files.report(results, out, write_report, pictures.draw)
    if results["ended_early"]:
        raise KeyboardInterrupt
    failed = runner.failures(results)
    if failed:
        raise RuntimeError(f"{len(failed)} of xlstm_hip's failed: {'; '.join(failed)}")
    nothing = runner.why_nothing_was_measured(results)
    if nothing is not None:
        raise RuntimeError(f"nothing was measured: {nothing}")
    return 0


def run_model(args: argparse.Namespace) -> int:
    """Tokens per second of a model, as a table on stdout."""
    for name in OPERATOR_OPTIONS:
        if getattr(args, name):
            option = name if name == "operators" else f"--{name}"
            raise WrongArguments(f"{option}: expected none with --model, which measures a model and no operators")
    if len(args.dtype or ()) > 1:
        raise WrongArguments(f"--dtype: expected one with --model, got {' '.join(args.dtype)}")
    settings = {name: default if getattr(args, name) is None else getattr(args, name)
             for name, default in MODEL_DEFAULTS.items()}  # fmt: skip
    from ..bench.environment import environment, summary
    from ..bench.machine import Machine
    from ..bench.throughput import facts_of, measure, table, works_of

    tests = works_of(settings["prompt"], settings["generate"], settings["batch"])
    if not tests:
        raise WrongArguments("-p, -n: expected at least one above 0, got none")
    folder = checkpoint_folder("--model", args.model, revision=settings["revision"])
    options = {"device": args.device, "dtype": (args.dtype or [None])[0], "threads": args.threads}
    model = load("--model", folder, argparse.Namespace(**dict.fromkeys(MODEL_OPTIONS) | options))
    facts = facts_of(model, called(folder)) | {"environment": environment(model.device)}
    machine, rows = Machine(str(model.device)), []
    with Tasks(len(tests)) as progress:
        for test in tests:
            progress.begin(f"{test.name}, batch {test.batch}")
            rows.append(measure(model, test, settings["repetitions"], machine, progress.advance))
    if settings["json"]:
        print(json.dumps(facts | {"repetitions": settings["repetitions"], "tests": rows}, indent=2))
    else:
        print("\n".join([*table(facts, rows), "", summary(facts["environment"])]))
    return 0


def _nothing_else(args: argparse.Namespace) -> None:
    """--list and --redraw measure nothing, so options of a measurement are refused with them."""
    allowed = {"list": {"device", "peers"}, "redraw": {"metrics"}}
    options = ("operators", "providers", "metrics", "device", "dtype", "seconds", "out", "threads", "peers", "quick")
    for mode, compatible in allowed.items():
        extra = [name for name in (*options, *(x for x in allowed if x != mode)) if getattr(args, name)]
        if getattr(args, mode) and not set(extra) <= compatible:
            names = ", ".join(name if name == "operators" else f"--{name}" for name in extra if name not in compatible)
            raise ValueError(f"--{mode}: measures nothing and cannot be combined with {names}")


def listing(device: torch.device) -> str:
    from ..bench.metrics import METRICS
    from ..bench.operators import GROUPS, OPERATORS
    from ..bench.registry import PROVIDERS

    lines = ["operators"]
    for operator in OPERATORS.values():
        lines.append(f"  {operator.name:<18} {operator.text}")
        for x in operator.implementations:
            missing = x.missing(device)
            lines.append(f"    {x.provider:<16} {x.name}{f'  -- missing: {missing}' if missing else ''}")
    lines += ["", "groups", *(f"  {name:<18} {', '.join(members)}" for name, members in GROUPS.items())]
    lines += ["", "providers"]
    for provider in PROVIDERS.values():
        missing = provider.missing()
        lines.append(f"  {provider.name:<18} {provider.text}{f'  -- missing: {missing}' if missing else ''}")
    lines += ["", "metrics", *(f"  {metric.name:<18} {metric.text}" for metric in METRICS.values())]
    return "\n".join(lines)
