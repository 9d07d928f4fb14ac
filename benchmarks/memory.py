# SPDX-License-Identifier: Apache-2.0
"""The memory that one forward and backward of a kernel adds to its inputs, in a process of its own.

    python benchmarks/memory.py THREADS KERNEL CELLS.json     prints a JSON list: bytes per cell

Before the run the allocator returns what it holds to the system (malloc_trim) and Linux forgets the process's peak
(5 into /proc/self/clear_refs). Peak minus resident memory before is then what the run added: outputs, gradients, and
everything between. A small run first has loaded what is loaded once.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from mlstm_contenders import by_name, results_of
from mlstm_problem import Cell, make_inputs

METHOD = (
    "peak resident memory (VmHWM, reset through /proc/self/clear_refs) minus resident memory before one forward and "
    "backward, in a fresh process per kernel; the inputs and dh are not counted"
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


def growth_of(call: Callable[[], Any]) -> int:
    """Bytes that a call adds at its worst moment."""
    gc.collect()
    _forget_peak()
    before = _status_bytes("VmRSS")
    call()
    return _status_bytes("VmHWM") - before


def growth(name: str, cell: Cell) -> int:
    """Bytes added by one forward and backward."""
    function = by_name(name).make()
    small = replace(cell, tokens=2 * cell.chunk_size)
    results_of(small, function, make_inputs(small))
    inputs = make_inputs(cell)
    return growth_of(lambda: results_of(cell, function, inputs))


def growth_in_own_process(name: str, cells: list[Cell], threads: int) -> list[int]:
    """The bytes per cell; MemoryUnknown says why they could not be had."""
    command = [sys.executable, __file__, str(threads), name, json.dumps([asdict(cell) for cell in cells])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise MemoryUnknown((done.stderr.strip().splitlines() or ["the process was ended"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    threads, name, cells = sys.argv[1:]
    torch.set_num_threads(int(threads))
    print(json.dumps([growth(name, Cell(**facts)) for facts in json.loads(cells)]))


if __name__ == "__main__":
    main()
