# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip tune: autotunes launch configurations and writes the best into a table that calls read."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

from .._core.plans import ENVIRONMENT, WEIGHTS, Plan
from ..models.hub import checkpoint_folder
from .common import CHECKPOINT, DTYPES, add_command, add_revision, at_least, default_device_name, refuse_options

EXAMPLES = f"""examples:
  xlstm-hip tune --op mlstm_chunkwise --length 4096 --budget 64 --table plans.json
  xlstm-hip tune --op mlstm_step --device cuda --batch 4 --heads 8 --search random --engine ray
  xlstm-hip tune --op attention_backward --device cuda --dtype bfloat16 --length 2048 --causal
  xlstm-hip tune --op mla_decode --device cuda --batch 16 --length 8192
  xlstm-hip tune --op decode_step --device cuda --dtype int8 --batch 16 --table plans.json
  xlstm-hip tune --resume runs/cpu_20260101-120000_mlstm_chunkwise --budget 128

Calls read the shipped table and the file named by {ENVIRONMENT}, which must exist (--table creates one). Without
--table, results go to that file; if the variable is not set, to <run folder>/table.json.
"""
SETTINGS: dict[str, Any] = {  # the settings of a run, saved in run_meta.json and read from there by --resume
    "op": "mlstm_chunkwise", "device": None, "dtype": "bfloat16", "threads": None,
    "batch": 1, "heads": 8, "length": 2048, "dqk": 256, "dhv": 512, "heads_k": 0, "queries": 0, "causal": False,
    "search": "genetic", "seed": 0, "kernel": None,
}  # fmt: skip
OF_OP: dict[str, dict[str, int]] = {  # defaults that differ for an op
    "mlstm_sequence": {"length": 64},
    "attention_forward": {"dqk": 128, "dhv": 128},
    "attention_backward": {"dqk": 128, "dhv": 128},
    "mla_decode": {"heads": 128, "heads_k": 1, "queries": 1, "dqk": 576, "dhv": 512},
}
BUDGET, FINALISTS, TRIAL_SECONDS = 64, 3, 300.0
DEMO = Path("models/demo")


def add(commands: Any) -> None:
    from ..tune.engines import ENGINES
    from ..tune.problem import OPS
    from ..tune.search import SEARCHES

    text = "Autotune kernel launch configurations. The best go into a table that calls read."
    command = add_command(commands, "tune", run, text, EXAMPLES)
    problem = command.add_argument_group("problem")
    command.set_defaults(**dict.fromkeys(SETTINGS))

    def setting(name: str, text: str, **options: Any) -> None:
        shown = SETTINGS[name]
        op_defaults = "".join(f", {op} {defaults[name]}" for op, defaults in OF_OP.items() if name in defaults)
        if "(default" in text:
            text = text[:-1] + op_defaults + ")"
        elif shown is not None and shown is not False:
            text += f" (default: {shown}{op_defaults})"
        problem.add_argument(f"--{name.replace('_', '-')}", help=text, **options)

    setting("op", "the op to tune", choices=OPS)
    setting("device", "cpu, cuda, cuda:1, ... (default: the GPU if this build has kernels for it, else cpu)")
    setting("dtype", "dtype of q, k and v; for decode_step, of the weights", choices=(*DTYPES, *WEIGHTS))
    for name, unit in (("batch", "sequences"), ("heads", "query heads"), ("length", "tokens; for attention, keys"),
                       ("dqk", "head dim of q and k"), ("dhv", "head dim of v")):  # fmt: skip
        setting(name, unit, metavar="N", type=at_least(1))
    setting("heads_k", "attention: key and value heads (default: --heads)", metavar="N", type=at_least(1))
    setting("queries", "attention: query tokens (default: --length)", metavar="N", type=at_least(1))
    setting("causal", "attention: use a causal mask", action="store_const", const=True)
    setting("threads", "CPU threads of a trial (default: one per core)", metavar="N", type=at_least(1))
    setting(
        "kernel",
        "mlstm_chunkwise: try one kernel in bands alone, chunkwise--queued_compiled_steps or --ray_compiled_steps: its "
        "chunk_size, heads_per_band, workers and streams",
        metavar="NAME",
    )
    setting("search", "how candidates are chosen", choices=SEARCHES)
    setting("seed", "of the search; the same seed gives the same candidates", metavar="N", type=at_least(0))

    command.add_argument(
        "--budget", metavar="N", type=at_least(1), default=BUDGET, help=f"number of trials (default: {BUDGET})"
    )
    command.add_argument(
        "--finalists", metavar="N", type=at_least(1), default=FINALISTS,
        help=f"best trials to measure again and check for quality (default: {FINALISTS})",
    )  # fmt: skip
    command.add_argument(
        "--trial-seconds", metavar="S", type=float, default=TRIAL_SECONDS,
        help=f"time limit of a trial, which fails if it takes longer (default: {TRIAL_SECONDS:g})",
    )  # fmt: skip
    command.add_argument("--engine", choices=ENGINES, default="local", help="where trials run (default: local)")
    command.add_argument(
        "--ray-address", metavar="ADDRESS", help="address of a Ray cluster (default: start one on this machine)"
    )
    command.add_argument(
        "--runs", metavar="DIR", type=Path, default=Path("runs"), help="folder for run folders (default: runs)"
    )
    command.add_argument("--tag", help="last part of the run folder's name (default: the op)")
    command.add_argument("--table", metavar="FILE", type=Path, help="table to write the best plan to")
    command.add_argument(
        "--model", metavar="MODEL",
        help=f"model whose text quality a plan must preserve: {CHECKPOINT} (default: {DEMO} if it exists; else plans "
        "are checked by numerical error alone)",
    )  # fmt: skip
    add_revision(command)
    command.add_argument("--resume", metavar="DIR", type=Path, help="folder of an interrupted run to continue")


def run(args: argparse.Namespace) -> int:
    from ..tune.engines import make_engine
    from ..tune.problem import Problem
    from ..tune.runs import Run, backend_name, ensure_table, plan_text
    from ..tune.search import make_search
    from ..tune.space import space_of
    from ..tune.tuner import Tuner

    if args.model is None:
        refuse_options(args, ("revision",), "--model with it")
    if not args.trial_seconds > 0:
        raise ValueError(f"--trial-seconds: expected above 0, got {args.trial_seconds}")
    old, settings = _settings(args)
    threads = settings["threads"]
    torch.set_num_threads(threads)
    problem = Problem(**{name: settings[name] for name in Problem.__dataclass_fields__})
    if settings["arch"] != problem.arch:
        raise ValueError(f"--resume: expected a machine of kind {settings['arch']}, as in the run, got {problem.arch}")
    try:
        space = space_of(problem, threads, settings["kernel"])
    except ValueError as error:
        raise ValueError(f"--{error}") from error
    if not space.values:
        raise ValueError(f"--op: expected an op with something to tune on {problem.on.type}, got {problem.op}")
    folder = _model_folder(args, problem)
    judge = _judge(folder, problem)
    search = make_search(settings["search"], space, settings["seed"])
    named = os.environ.get(ENVIRONMENT)
    table = args.table or (Path(named) if named else None)
    if table is not None:
        try:
            ensure_table(table)
        except ValueError as error:
            raise ValueError(f"{'--table' if args.table else ENVIRONMENT}: {error}") from error
    engine = make_engine(args.engine, threads, args.trial_seconds, args.ray_address)
    try:
        model = args.model or folder and str(folder)
        begun_with = {"budget": args.budget, "engine": args.engine, "model": model}
        found = old or Run.create(args.runs, backend_name(problem.on), args.tag or problem.op, settings, begun_with)
        if table is None:
            table = found.folder / "table.json"
            ensure_table(table)
        print(f"{found.folder}: {problem.op} on {problem.arch}", flush=True)
        try:
            tuner = Tuner(problem, found, engine, search, judge, _print_trial)
            tuner.explore(args.budget)
            outcome = tuner.finish(args.finalists, table)
        except KeyboardInterrupt:
            print(f"\ncontinue with: xlstm-hip tune --resume {found.folder}", file=sys.stderr)
            raise
    finally:
        engine.close()
    if outcome.entry is None:
        print(f"the shipped plan is kept: {outcome.why_not}")
    else:
        print(f"{plan_text(outcome.entry['plan'])}: {outcome.entry['speedup']:.3f} times as fast, written to {table}")
        if not named or Path(named) != table:
            print(f"to use it: export {ENVIRONMENT}={table}")
    return 0


def _print_trial(number: int, plan: Plan, result: Any) -> None:
    from ..tune.runs import plan_text

    outcome = result.error or f"{min(result.ms):.4g} ms, {result.speedup:.3f} times as fast as the shipped plan"
    print(f"trial {number}: {plan_text(plan)}: {result.status}, {outcome}", flush=True)


def _settings(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The run to continue, or None for a new one; and its settings."""
    from ..tune.problem import Problem
    from ..tune.runs import Run

    overrides = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    if args.resume is not None:
        found = Run.open(args.resume)
        settings = found.meta.get("settings")
        if isinstance(settings, dict):
            settings.setdefault("kernel", None)  # of runs before it could be asked for
        if not isinstance(settings, dict) or not {*SETTINGS, "arch"} <= set(settings):
            raise ValueError(f"--resume: expected the settings of a run in {args.resume}/run_meta.json")
        for name, value in overrides.items():
            if settings[name] != value:
                raise ValueError(
                    f"--{name.replace('_', '-')}: expected {settings[name]!r} as in the run, got {value!r}"
                )
        if args.tag is not None:
            raise ValueError("--tag: expected none with --resume")
        return found, settings
    settings = SETTINGS | OF_OP.get(overrides.get("op", SETTINGS["op"]), {}) | overrides
    settings["device"] = settings["device"] or default_device_name()
    settings["threads"] = settings["threads"] or torch.get_num_threads()
    if settings["op"] in ("mlstm_step", "decode_step"):
        if "length" in overrides:
            raise ValueError(f"--length: expected none for {settings['op']}, which takes one token")
        settings["length"] = 1
    torch.set_num_threads(settings["threads"])
    problem = Problem(**{name: settings[name] for name in Problem.__dataclass_fields__})
    settings["arch"] = problem.arch
    return None, settings


def _model_folder(args: argparse.Namespace, problem: Any) -> Path | None:
    """The folder of the model whose text judges plans. None for ops that no model uses, and if there is no model."""
    from ..tune.judge import JUDGED_OPS

    if problem.op not in JUDGED_OPS:
        if args.model is not None:
            raise ValueError(f"--model: expected none for {problem.op}, which is checked by numerical error")
        return None
    if args.model is not None:
        return checkpoint_folder("--model", args.model, revision=args.revision)
    if DEMO.is_dir():
        return DEMO
    checked = "plans are checked by numerical error alone, not by a model's text"
    print(f"no --model, and no {DEMO} here: {checked}", flush=True)
    return None


def _judge(folder: Path | None, problem: Any) -> Any:
    """The quality check of plans: by a model's text if there is one, else by numerical error."""
    from ..models import load_pretrained
    from ..models.config_files import read_config
    from ..models.shards import find_tensors
    from ..models.tokenizer import load_tokenizer
    from ..tune.errors import judge_errors, save_errors_for_trials
    from ..tune.judge import judge_outputs, save_outputs_for_trials

    def by_number(trials: dict[int, Plan], verdicts: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        return {number: verdicts[name] for number, name in zip(trials, named(trials), strict=True)}

    def named(trials: dict[int, Plan]) -> dict[str, Plan]:
        return {f"trial-{number}": plan for number, plan in trials.items()}

    def judge_results(trials: dict[int, Plan], outputs: Path) -> dict[int, dict[str, Any]]:
        save_errors_for_trials(problem, named(trials), outputs)
        return by_number(trials, judge_errors(outputs))

    if folder is None:
        return judge_results
    try:  # checks that need no weights, before the budget is spent
        config, _ = read_config(folder)
        find_tensors(folder)
        load_tokenizer(folder, config.vocab_size)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"--model: {error}") from error

    def judge_texts(trials: dict[int, Plan], outputs: Path) -> dict[int, dict[str, Any]]:
        model = load_pretrained(folder, DTYPES[problem.dtype], problem.device)
        tokenizer = load_tokenizer(folder, model.config.vocab_size)
        save_outputs_for_trials(model, tokenizer, problem.op, named(trials), outputs)
        return by_number(trials, judge_outputs(model, outputs))

    return judge_texts
