# SPDX-License-Identifier: Apache-2.0
"""The memory that a call adds to a process at its worst moment.

Before the call the allocator returns what it holds to the system (malloc_trim) and Linux forgets the process's peak
(5 into /proc/self/clear_refs). Peak minus resident memory before is then what the call added: results and everything
between. A small call first has loaded what is loaded once.

    python -m xlstm_hip.bench.memory THREADS OPERATOR IMPLEMENTATION CELLS     prints the bytes of the second cell
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

METHOD = (
    "peak resident memory (VmHWM, reset through /proc/self/clear_refs) minus resident memory before one forward and "
    "backward, in a fresh process per kernel and shape; the inputs and dh are not counted"
)


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


def resident_bytes() -> int:
    return _status_bytes("VmRSS")


def growth_of(call: Callable[[], Any]) -> int:
    """Bytes that a call adds at its worst moment."""
    gc.collect()
    _forget_peak()
    before = resident_bytes()
    call()
    return _status_bytes("VmHWM") - before


def growth_in_new_process(operator: str, implementation: str, small: Any, cell: Any, threads: int) -> int:
    """Bytes that a call adds on the CPU; MemoryUnknown says why they could not be had, in the process's last words."""
    cells = json.dumps([asdict(small), asdict(cell)])
    command = [sys.executable, "-m", "xlstm_hip.bench.memory", str(threads), operator, implementation, cells]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise MemoryUnknown((done.stderr.strip().splitlines() or ["the process was ended"])[-1])
    return int(done.stdout.splitlines()[-1])


def main() -> None:
    import torch

    from .operators import OPERATORS
    from .registry import Scale, named

    threads, name, implementation, cells = sys.argv[1:]
    torch.set_num_threads(int(threads))
    operator, cpu = OPERATORS[name], torch.device("cpu")
    known = {x.name: x for x in operator.implementations}
    prepare = known[named("kernel", known, implementation)].prepare
    kind = type(operator.points(Scale(False, True, ("fp32",)))[0].cell)
    small, cell = (kind(**facts) for facts in json.loads(cells))
    prepare(small, operator.inputs(small, cpu))()
    print(growth_of(prepare(cell, operator.inputs(cell, cpu))))


if __name__ == "__main__":
    main()
