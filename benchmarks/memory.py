# SPDX-License-Identifier: Apache-2.0
"""The memory that one forward and backward of a kernel adds to its inputs, in a process of its own.

python benchmarks/memory.py THREADS KERNEL CELLS.json     prints a JSON list: bytes per cell
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace

import torch

from xlstm_hip.bench.memory import growth_of, told_by
from xlstm_hip.bench.mlstm import Cell, make_inputs
from xlstm_hip.bench.mlstm_contenders import CPU_SEQUENCES
from xlstm_hip.bench.registry import named

METHOD = (
    "peak resident memory (VmHWM, reset through /proc/self/clear_refs) minus resident memory before one forward and "
    "backward, in a fresh process per kernel; the inputs and dh are not counted"
)


def growth(name: str, cell: Cell) -> int:
    """Bytes added by one forward and backward."""
    contenders = {x.name: x for x in CPU_SEQUENCES}
    prepare = contenders[named("kernel", contenders, name)].prepare
    small = replace(cell, tokens=2 * cell.chunk_size)
    prepare(small, make_inputs(small))()
    return growth_of(prepare(cell, make_inputs(cell)))


def growth_in_own_process(name: str, cells: list[Cell], threads: int) -> list[int]:
    """The bytes per cell; MemoryUnknown says why they could not be had."""
    command = [sys.executable, __file__, str(threads), name, json.dumps([asdict(cell) for cell in cells])]
    return json.loads(told_by(command))


def main() -> None:
    threads, name, cells = sys.argv[1:]
    torch.set_num_threads(int(threads))
    print(json.dumps([growth(name, Cell(**facts)) for facts in json.loads(cells)]))


if __name__ == "__main__":
    main()
