# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip bench: operators, ours and others', checked, then timed."""

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
  xlstm-hip bench --list                                  # operators, providers, metrics; what is missing here, and why
  xlstm-hip bench mlstm step --seconds 120 --out b.json   # b.json, b.md and pictures beside them
  xlstm-hip bench --quick                                 # everything at tiny shapes: no figures, a smoke run
  xlstm-hip bench selection --device cuda --seconds 600   # get_optimal_kernel_config beside the fastest kernels
  xlstm-hip bench --redraw b.json                         # the tables and pictures once more

Every result is held to a truth first, but FLA's, which is another function's.
exit code: 0, or 1 where one of ours was wrong or did not run, or nothing was measured.
"""


def _one_of(kind: str) -> Callable[[str], str]:
    """A parser of names that imports what knows them only when one is given."""

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
    command = add_command(commands, "bench", run, "Time operators, ours and others', results checked first.", EXAMPLES)
    command.add_argument(
        "operators", nargs="*", type=_one_of("operator"), help="names of --list (default: all but selection)"
    )
    command.add_argument("--providers", nargs="+", type=_one_of("provider"), help="(default: all)")
    command.add_argument("--metrics", nargs="+", type=_one_of("metric"), help="columns of the tables (default: all)")
    command.add_argument("--device", type=device_name, help="(default: the GPU if the package has kernels for it)")
    command.add_argument("--dtype", nargs="+", choices=DTYPES, help="(default: bfloat16; on the CPU float32 too)")
    command.add_argument(
        "--seconds", type=_SECONDS, help="measure for about so long; points share it (default: no limit)"
    )
    command.add_argument(
        "--out", type=json_file, help="JSON; tables and pictures go beside it (default: by device and time)"
    )
    command.add_argument("--threads", metavar="N", type=at_least(1), help="on the CPU (default: one per core)")
    command.add_argument("--peers", type=Path, help="a folder with further packages, unpacked")
    command.add_argument("--quick", action="store_true", help="tiny shapes and few rounds: no figures, a smoke run")
    command.add_argument("--list", action="store_true", help="measure nothing: say what there is")
    command.add_argument("--redraw", type=Path, metavar="FILE.json", help="measure nothing: tables and pictures of it")


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
        raise RuntimeError(f"{len(failed)} of ours failed: {'; '.join(failed)}")
    nothing = runner.why_nothing_was_measured(results)
    if nothing is not None:
        raise RuntimeError(f"nothing was measured: {nothing}")
    return 0


def _nothing_else(given: argparse.Namespace) -> None:
    """What measures nothing takes no arguments of a measurement."""
    allowed = {"list": {"device", "peers"}, "redraw": {"metrics"}}
    options = ("operators", "providers", "metrics", "device", "dtype", "seconds", "out", "threads", "peers", "quick")
    for mode, own in allowed.items():
        extra = [name for name in (*options, *(x for x in allowed if x != mode)) if getattr(given, name)]
        if getattr(given, mode) and not set(extra) <= own:
            names = ", ".join(name if name == "operators" else f"--{name}" for name in extra if name not in own)
            raise ValueError(f"--{mode}: measures nothing, so it does not go with {names}")


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
