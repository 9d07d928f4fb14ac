# SPDX-License-Identifier: Apache-2.0
"""The command xlstm-hip. Each subcommand is a module with `add(subparsers)` and `run(arguments) -> exit code`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from .._version import __version__
from . import bench, chat, convert, doctor, evaluate, generate, plan, quantize, serve, tune
from .common import Parser, WrongArguments

COMMANDS = (generate, chat, serve, convert, quantize, evaluate, doctor, plan, bench, tune)


def parser() -> argparse.ArgumentParser:
    root = Parser(
        prog="xlstm-hip",
        description="Run, serve, convert, quantise, measure and tune xLSTM models with the kernels of xlstm_hip.",
    )
    root.add_argument("--version", action="version", version=f"xlstm-hip {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 success; 1 failure, or doctor found a problem; 2 wrong arguments; 130 Ctrl-C."""
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 128 + signal.SIGINT  # as a shell reports Ctrl-C
    except BrokenPipeError:  # the reader of the output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        print(f"xlstm-hip {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, WrongArguments) else 1
