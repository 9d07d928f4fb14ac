# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip bench: checks and times operators of this package and of other implementations."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..mlstm.describe import DTYPE_NAMES
from .common import (
    DTYPES,
    add_command,
    at_least,
    check_out,
    default_device_name,
    device_name,
    json_file,
    number,
)

EXAMPLES = """examples:
  xlstm-hip bench --list                                  # operators, providers and metrics; what is missing and why
  xlstm-hip bench mlstm step --seconds 120 --out b.json   # writes b.json, b.md and plots
  xlstm-hip bench --quick                                 # smoke test: everything at tiny shapes, times mean nothing
  xlstm-hip bench selection --device cuda --seconds 600   # get_optimal_kernel_config compared with the fastest kernels
  xlstm-hip bench --redraw b.json                         # regenerates the tables and plots

Each result is first checked against a reference, except FLA's, which computes another function.
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


_SECONDS = number("a number > 0", lambda x: 0 < x < math.inf)


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "bench",
        run,
        "Benchmark operators against other implementations. Results are checked before they are timed.",
        EXAMPLES,
    )
    command.add_argument(
        "operators", nargs="*", type=_one_of("operator"), help="names from --list (default: all except selection)"
    )
    command.add_argument("--providers", nargs="+", type=_one_of("provider"), help="(default: all)")
    command.add_argument("--metrics", nargs="+", type=_one_of("metric"), help="columns of the tables (default: all)")
    command.add_argument(
        "--device", type=device_name, help="(default: the GPU if this build has kernels for it, else cpu)"
    )
    command.add_argument("--dtype", nargs="+", choices=DTYPES, help="(default: bfloat16; on the CPU also float32)")
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


def run(given: argparse.Namespace) -> int:
    from ..bench import pictures, result_files, runner
    from ..bench.metrics import METRICS
    from ..bench.operators import DEFAULT, GROUPS
    from ..bench.registry import PROVIDERS
    from ..bench.report import markdown
    from ..bench.trial import add_peers

    if given.peers is not None and not given.peers.is_dir():
        raise ValueError(f"--peers: expected a folder, got {str(given.peers)!r}")
    add_peers(given.peers)
    device = given.device or default_device_name()
    _nothing_else(given)
    if given.list:
        print(listing(torch.device(device)))
        return 0
    as_asked = partial(markdown, wanted=tuple(given.metrics or METRICS))
    if given.redraw is not None:
        result_files.redraw(given.redraw, runner.BENCHMARK, as_asked, pictures.draw)
        return 0
    gpu = torch.device(device).type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise ValueError(f"--device: torch sees no GPU, got {device!r}")
    if gpu and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device: expected one of torch's {torch.cuda.device_count()} GPUs, got {device!r}")
    if given.threads:
        torch.set_num_threads(given.threads)
    asked = [own for name in given.operators or DEFAULT for own in GROUPS.get(name, (name,))]
    settings = runner.Settings(
        operators=tuple(dict.fromkeys(asked)),
        providers=tuple(dict.fromkeys(given.providers or PROVIDERS)),
        device=device,
        dtypes=tuple(DTYPE_NAMES[DTYPES[x]] for x in given.dtype or (["bfloat16"] if gpu else ["float32", "bfloat16"])),
        seconds=given.seconds or math.inf,
        quick=given.quick,
        peers=given.peers,
    )
    out = given.out or Path(f"bench_{torch.device(device).type}_{time.strftime('%Y%m%d_%H%M%S')}.json")
    check_out(out)
    results = runner.run(settings, out)
    result_files.report(results, out, as_asked, pictures.draw)
    if results["ended_early"]:
        raise KeyboardInterrupt
    failed = runner.failures(results)
    if failed:
        raise RuntimeError(f"{len(failed)} of xlstm_hip's failed: {'; '.join(failed)}")
    nothing = runner.why_nothing_was_measured(results)
    if nothing is not None:
        raise RuntimeError(f"nothing was measured: {nothing}")
    return 0


def _nothing_else(given: argparse.Namespace) -> None:
    """--list and --redraw measure nothing, so options of a measurement are refused with them."""
    allowed = {"list": {"device", "peers"}, "redraw": {"metrics"}}
    options = ("operators", "providers", "metrics", "device", "dtype", "seconds", "out", "threads", "peers", "quick")
    for mode, own in allowed.items():
        extra = [name for name in (*options, *(x for x in allowed if x != mode)) if getattr(given, name)]
        if getattr(given, mode) and not set(extra) <= own:
            names = ", ".join(name if name == "operators" else f"--{name}" for name in extra if name not in own)
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
    lines += ["", "groups", *(f"  {name:<18} {', '.join(own)}" for name, own in GROUPS.items())]
    lines += ["", "providers"]
    for provider in PROVIDERS.values():
        missing = provider.missing()
        lines.append(f"  {provider.name:<18} {provider.text}{f'  -- missing: {missing}' if missing else ''}")
    lines += ["", "metrics", *(f"  {metric.name:<18} {metric.text}" for metric in METRICS.values())]
    return "\n".join(lines)
