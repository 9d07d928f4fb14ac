# SPDX-License-Identifier: Apache-2.0
"""The start of the command xlstm-hip, before the package is imported. The import takes seconds, in which Ctrl-C may
come, and fails if a library is missing, which `doctor` reports."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> int:
    try:
        with _ctrl_c_ends_it():
            from xlstm_hip.cli import main as command
    except (ImportError, OSError, ValueError) as error:  # ValueError: of an environment variable
        return _import_failed(" ".join(str(error).split()))
    return command()


@contextmanager
def _ctrl_c_ends_it() -> Iterator[None]:
    """At once, where nothing has been begun. A KeyboardInterrupt would be lost in a callback of the garbage collector,
    of which imports have thousands, or caught by a module that tries another."""

    def end(*_: object) -> None:
        os.write(sys.stderr.fileno(), b"\n")
        os._exit(128 + signal.SIGINT)  # as a shell reports Ctrl-C

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else Ctrl-C is ignored, or somebody else's
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _import_failed(why: str) -> int:
    if sys.argv[1:2] != ["doctor"]:
        print(f"xlstm-hip: {why}", file=sys.stderr)
        return 1
    print(f"PROBLEM  {why}")
    try:
        import torch

        build = f"torch {torch.__version__}"
    except (ImportError, OSError) as error:
        build = f"a torch that can be imported, which is not here: {' '.join(str(error).split())}"
    print(f"         -> install the package with pip, for {build}\n\n1 problem found.")
    return 1
