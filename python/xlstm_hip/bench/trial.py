# SPDX-License-Identifier: Apache-2.0
"""Trial runs that tell which peers a process survives.

    python -m xlstm_hip.bench.trial --device cuda --dtypes bf16 --operators mlstm --try NAME

One implementation at small shapes. A peer's compiler may end the process where a kernel does not suit it, and a wild
access of its kernel takes the GPU from it. So every Triton peer is tried in a process of its own first, at a small
shape for each that would be compiled anew; what that process did not live through is not run, and reported with its
last words.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .contest import words_of
from .machine import lost
from .registry import Operator, Scale, work_of
from .triton_compiler import before_triton, compiling

TRIAL_SECONDS = 240


def not_survived(
    command: Sequence[str], environment: Mapping[str, str], tries: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], str]:
    """tries: by name the works that `command --try name` tries, which says "done WORK" after each.

    (name, work) of those that end their process, with its last words. All are tried at once.
    """
    running = {
        name: subprocess.Popen(
            [*command, "--try", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment)
        )
        for name in tries
    }
    lost = {}
    for name, process in running.items():
        try:
            out, err = process.communicate(timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nno end in {TRIAL_SECONDS} s"
        words = [line for line in err.splitlines() if line.strip()] or ["no words"]
        why = next((line for line in words if "Assert" in line or "assert" in line), words[-1])
        for work in tries[name]:
            if f"done {work}\n" not in out:
                lost[name, work] = f"its trial ended with {process.returncode}: {why.strip()[:300]}"
    return lost


def trials_of(operator: Operator, scale: Scale) -> dict[str, Any]:
    """The small cells that stand for all of an operator's points, by what their trials are called."""
    if operator.trial is None:
        return {}
    return {work_of(operator, point.cell): operator.trial(point.cell) for point in operator.points(scale)}


def lost_in_trials(
    operators: Sequence[str],
    device: str,
    scale: Scale,
    providers: Sequence[str],
    peers: Path | None,
    works: Sequence[str] = (),  # what alone is tried, as work_of calls it; none: all
) -> dict[tuple[str, str], str]:
    """(implementation, work_of a cell) of the Triton peers of these operators that did not survive their trials, with
    their last words."""
    from .operators import OPERATORS

    tries: dict[str, tuple[str, ...]] = {}
    for operator in (OPERATORS[name] for name in operators):
        for x in operator.implementations:
            if x.triton and x.provider in providers and x.missing(torch.device(device)) is None:
                selected = (work for work in trials_of(operator, scale) if not works or work in works)
                tries[x.name] = (*tries.get(x.name, ()), *selected)
    if not any(tries.values()):
        return {}
    print(f"trying {', '.join(tries)}, each in a process of its own", file=sys.stderr)
    command = [sys.executable, "-m", "xlstm_hip.bench.trial", "--device", device]
    command += ["--dtypes", *scale.dtypes, "--operators", *operators]
    command += ["--quick"] if scale.quick else []
    command += ["--peers", str(peers)] if peers else []
    command += ["--works", *works] if works else []
    return not_survived(command, os.environ, tries)


def add_peers(folder: Path | None) -> None:
    if folder is not None:
        sys.path.append(str(folder.resolve()))


def main() -> None:
    from .operators import OPERATORS

    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtypes", nargs="+", required=True)
    parser.add_argument("--operators", nargs="+", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--works", nargs="+")
    parser.add_argument("--try", dest="name", required=True)
    args = parser.parse_args()
    add_peers(args.peers)
    before_triton()
    device = torch.device(args.device)
    scale = Scale(device.type == "cuda", args.quick, tuple(args.dtypes))
    for operator in (OPERATORS[name] for name in args.operators):
        for implementation in (x for x in operator.implementations if x.name == args.name):
            for work, cell in trials_of(operator, scale).items():
                if args.works and work not in args.works:
                    continue
                with compiling(implementation):
                    try:
                        implementation.prepare(cell, operator.inputs(cell, device))()
                        if device.type == "cuda":
                            torch.cuda.synchronize(device)
                    except Exception as error:  # it lives: the benchmark itself meets and reports this
                        print(f"{work}: {words_of(error)}", file=sys.stderr, flush=True)
                        if lost(device):
                            os._exit(1)  # those are the last words: an orderly end would meet the GPU, and add some
                print(f"done {work}", flush=True)


if __name__ == "__main__":
    main()
