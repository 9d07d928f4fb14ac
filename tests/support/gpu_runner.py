# SPDX-License-Identifier: Apache-2.0
"""Runs the GPU's checks and table without pytest: a line per failure, then the worst ratios in a table.

python tests/mlstm/test_gpu.py                        everything, the most at risk first
python tests/mlstm/test_gpu.py --seconds 300          what fits five minutes; the rest is counted as left out
python tests/mlstm/test_gpu.py "8192 tokens" step     checks and rows whose names hold one of these
python tests/mlstm/test_gpu.py --device cpu "1 token" the same on the CPU, to try it out
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from unittest import SkipTest

import torch

from support import gpu_table
from support.gpu_checks import CHECKS, Check
from support.gpu_table import Row
from support.report import SHORT
from support.report import Row as Reported

QUANTITIES = ("h", "c", "n", "m", "dq", "dk", "dv", "di", "df", "dc_initial", "dn_initial", "dm_initial")
SIGN_OF_LIFE = 30  # seconds
Worst = dict[str, tuple[float, str]]  # ratio to the tolerance by quantity, and the case


def _seconds(begun: float) -> str:
    return f"[{time.monotonic() - begun:4.0f} s]"


class Run:
    def __init__(self, device: str, truth_on: str, seconds: float, out: Path | None) -> None:
        self.device = device
        self.truth_on = truth_on
        self.begun = time.monotonic()
        self.seconds = seconds
        self.out = out
        self.last_sign = self.begun
        self.done = self.failed = self.skipped = self.left_out = 0
        self.lost = ""  # why nothing can run any more
        self.worst: dict[tuple[str, str], Worst] = {}

    def may_go_on(self) -> bool:
        if self.lost or time.monotonic() - self.begun > self.seconds:
            self.left_out += 1
            return False
        if time.monotonic() - self.last_sign > SIGN_OF_LIFE:
            self.last_sign = time.monotonic()
            print(f"{_seconds(self.begun)} {self.done} done, {self.failed} failed", flush=True)
        return True

    def fail(self, label: str, why: str) -> None:
        self.failed += 1
        print(f"FAILED {label}: {' | '.join(line.strip() for line in why.strip().splitlines())}", flush=True)

    def error(self, label: str, error: Exception) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self.fail(label, f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error}"[:2000])
        try:
            if torch.device(self.device).type == "cuda":
                torch.cuda.synchronize(self.device)
        except Exception as broken:  # whatever it is, nothing runs on this device any more
            self.lost = str(broken).partition("\n")[0]

    def check(self, function: Check) -> None:
        name = function.__name__.replace("_", " ")
        begun = time.monotonic()
        try:
            function(self.device)
        except SkipTest as reason:
            self.skipped += 1
            print(f"left out: {name}: {reason}", flush=True)
            return
        except AssertionError as error:
            self.fail(name, str(error))
        except Exception as error:  # every check has its say
            self.error(name, error)
        else:
            print(f"passed: {name}, {time.monotonic() - begun:.1f} s", flush=True)
        self.done += 1

    def row(self, row: Row) -> None:
        self.done += 1
        try:
            measured, problems = gpu_table.measure(row, self.device, self.truth_on)
        except Exception as error:  # every row has its say
            self.error(str(row), error)
            return
        if problems:
            self.fail(str(row), "; ".join(p.removeprefix(str(row)) for p in problems))
        worst = self.worst.setdefault((row.kernel, SHORT[row.dtype]), {})
        for name, ratio in measured.ratios.items():
            ratio = math.inf if math.isnan(ratio) else ratio
            quantity = name.partition(" ")[0]
            worst[quantity] = max(worst.get(quantity, (-1.0, "")), (ratio, row.case.name))
        if self.out:
            with self.out.open("a") as file:
                file.write(json.dumps(Reported(row.kernel, row.dtype, row.case.name, measured).as_json()) + "\n")

    def table(self) -> list[str]:
        lines = [("kernel", "dtype", *(q.removesuffix("_initial") for q in QUANTITIES), "worst in")]
        for (kernel, dtype), worst in sorted(self.worst.items()):
            cells = (f"{worst[q][0]:.2f}" if q in worst else "" for q in QUANTITIES)
            lines.append((kernel, dtype, *cells, max(worst.values())[1]))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ["| " + " | ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) + " |" for line in lines]
        return [texts[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *texts[1:]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="*", help="only checks and rows whose name holds one of these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--truth-on", help="the device for truth and plain torch; as a rule the same")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after so many")
    parser.add_argument("--out", type=Path, help="a file of JSON lines, one a row")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    args = parser.parse_args(arguments)
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available() and not args.list:
        print("left out: no GPU that torch can use")
        return 0

    def selected(name: str) -> bool:
        return not args.text or any(text in name for text in args.text)

    checks = [x for x in CHECKS if selected(x.__name__.replace("_", " "))]
    rows = [row for row in gpu_table.rows() if selected(str(row))]
    if args.list:
        print(*(x.__name__.replace("_", " ") for x in checks), *rows, sep="\n")
        return 0
    if not checks and not rows:
        parser.error(f"no check or row has {' or '.join(map(repr, args.text))} in its name")
    gpu_table.full_precision()
    run = Run(args.device, args.truth_on or args.device, args.seconds, args.out)
    name = torch.cuda.get_device_name(args.device) if torch.device(args.device).type == "cuda" else args.device
    print(f"{len(checks)} checks and {len(rows)} rows on {name}, torch {torch.__version__}", flush=True)
    for function in checks:
        if run.may_go_on():
            run.check(function)
    for row in rows:
        if run.may_go_on():
            run.row(row)
    if run.lost:
        print(f"FAILED the device is lost, nothing more could run: {run.lost}")
    if run.worst:
        print("\nerror/tolerance, the worst by quantity; the tolerance is twice plain torch's own error on this device")
        print(*run.table(), sep="\n")
    print(
        f"{_seconds(run.begun)} {run.done} done, {run.failed} failed, {run.skipped} cannot run here, "
        f"{run.left_out} left out{' for time' if run.left_out and not run.lost else ''}"
    )
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
