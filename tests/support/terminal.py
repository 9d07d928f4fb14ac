# SPDX-License-Identifier: Apache-2.0
"""The command xlstm-hip as a process of its own, as at a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any


def command(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Started with what this process imports from, one thread, and pipes."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", "xlstm_hip", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what it puts in the background (a CI's pytest, say) with Ctrl-C ignored, and children
        # inherit that: here it does what it does at a terminal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )
