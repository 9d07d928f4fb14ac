# SPDX-License-Identifier: Apache-2.0
"""The memory that a call adds to a process at its worst moment.

Before the call the allocator returns what it holds to the system (malloc_trim) and Linux forgets the process's peak
(5 into /proc/self/clear_refs). Peak minus resident memory before is then what the call added: results and everything
between. A small call first has loaded what is loaded once.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any


class MemoryUnknown(RuntimeError):
    pass


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise MemoryUnknown(f"/proc/self/status has no {field}")


def _forget_peak() -> None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (AttributeError, OSError) as error:
        raise MemoryUnknown(f"peak memory cannot be measured here: {error}") from error


def growth_of(call: Callable[[], Any]) -> int:
    """Bytes that a call adds at its worst moment."""
    gc.collect()
    _forget_peak()
    before = _status_bytes("VmRSS")
    call()
    return _status_bytes("VmHWM") - before


def told_by(command: list[str]) -> str:
    """The last line that a process of its own prints; MemoryUnknown has its last words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise MemoryUnknown((done.stderr.strip().splitlines() or ["the process was ended"])[-1])
    return done.stdout.splitlines()[-1]
