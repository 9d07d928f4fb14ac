# SPDX-License-Identifier: Apache-2.0
"""The command xlstm-hip, as far as it is before the package is imported: that takes seconds in which Ctrl-C may come,
and fails where a library is missing, which `doctor` is asked about."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # as a shell has it for Ctrl-C


def main() -> int:
    try:
        from xlstm_hip.cli import main as command
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except (ImportError, OSError) as error:
        return _not_there(" ".join(str(error).split()))
    return command()


def _not_there(why: str) -> int:
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
