# SPDX-License-Identifier: Apache-2.0
"""Attention beside torch's: two tables, speed and memory, causal and not, for lengths from 128 up.

    python benchmarks/attention.py                 on the CPU; results/attention_cpu.json, .md and .png beside this file
    python benchmarks/attention.py --device cuda   on the GPU
    python benchmarks/attention.py --quick         a smoke run at small shapes

Contenders are ours, torch's scaled_dot_product_attention (on a GPU with its FLASH and its cuDNN backend) and standard
attention, which is softmax between two matrix products. They take turns, so ratios are the medians of the rounds' own;
the calls of a turn come back to back, so what fits L2 is read from there by all of them alike. One head of every result
is held to float64 first, and its error stands beside the time. Memory is what one forward and backward adds to its
inputs and the gradient of its output, on the CPU in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from attention_report import draw, markdown
from xlstm_hip.bench.attention import BESIDE_TORCH, Cell, errors, make_inputs, truth
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.memory import MemoryUnknown, growth_of, told_by
from xlstm_hip.bench.operators import ATTENTION_EXACT as EXACT
from xlstm_hip.bench.registry import OURS, Call, Implementation
from xlstm_hip.bench.result_files import keeps_what_there_is, write
from xlstm_hip.bench.timing import Pace, interleaved, paired_ratio
from xlstm_hip.progress import Tasks

FOLDER = Path(__file__).resolve().parent / "results"
WORKS = ("forward", "forward+backward")
ON_A_GPU = ("forward", "backward", "forward+backward")
AIMS = {"forward": {"fp32": 1.0, "bf16": 1.0}, "forward+backward": {"fp32": 1.0, "bf16": 2.0}}  # of SDPA, on the CPU
AIMS_OF_FLASH = {"forward": {"bf16": 1.0}, "backward": {"bf16": 1.0}}  # on a GPU, of FlashAttention-2 in torch
FULL = Pace(seconds=4, least_rounds=5, most_rounds=21, sample_seconds=0.02)
QUICK = Pace(seconds=0.1, least_rounds=2, most_rounds=3, sample_seconds=0.001)
MEMORY_LENGTHS = (1024, 2048, 4096)


def contenders(device: torch.device) -> list[Implementation]:
    return [x for x in BESIDE_TORCH if device.type in x.devices]


def measure(cell: Cell, machine: Machine, pace: Pace, advance: Callable[[float], None]) -> dict[str, Any]:
    inputs = make_inputs(cell, machine.device)
    true = truth(cell, inputs)
    entries: list[dict[str, Any]] = []
    calls: dict[str, Call] = {}
    for contender in contenders(machine.device):
        entry: dict[str, Any] = {"name": contender.name}
        needs = contender.needs(cell)
        try:
            if needs > machine.free_bytes():
                raise LookupError(f"its weights would take {needs / 1e9:.0f} GB")
            call = contender.prepare(cell, inputs)
            error = max(errors(cell, call(), true).values())
        except (LookupError, RuntimeError) as reason:
            entry["missing"] = str(reason).strip().splitlines()[0]
        else:
            entry["error"] = error
            if contender.provider == OURS and not error <= EXACT[cell.dtype]:
                raise SystemExit(f"{cell.title}: error {error:.3g}, expected at most {EXACT[cell.dtype]}")
            calls[contender.name] = call
        entries.append(entry)
    del true
    samples = interleaved(calls, pace, advance, machine.seconds)
    for entry in entries:
        if entry["name"] in samples:
            entry["ms"] = samples[entry["name"]].as_json()
            entry["tflops"] = cell.flops / entry["ms"]["median"] / 1e9
            entry["times_ours"] = paired_ratio(samples[entry["name"]].ms, samples["ours"].ms)
    return asdict(cell) | {"contenders": entries}


# ---- memory


def memory_call(cell: Cell, name: str, device: torch.device) -> Call:
    (contender,) = (x for x in contenders(device) if x.name == name)
    return contender.prepare(cell, make_inputs(cell, device))


def memory_of(cell: Cell, name: str, machine: Machine, threads: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name}
    try:
        if machine.gpu:
            return entry | {"bytes": machine.peak_bytes(memory_call(cell, name, machine.device))}
        command = [sys.executable, __file__, "--threads", str(threads), "--memory-of", json.dumps([name, asdict(cell)])]
        return entry | {"bytes": int(told_by(command))}
    except (MemoryUnknown, RuntimeError) as reason:
        return entry | {"missing": str(reason).strip().splitlines()[0]}


def measure_memory(
    cells: list[Cell], names: list[str], machine: Machine, threads: int, progress: Tasks
) -> Iterator[dict[str, Any]]:
    for cell in cells:
        progress.begin(f"memory, {cell.title}")
        yield asdict(cell) | {"contenders": [memory_of(cell, name, machine, threads) for name in names]}
        progress.advance(1)


# ---- the run


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    facts = environment(arguments.device)
    machine = Machine(arguments.device)
    quick, shape = arguments.quick, (arguments.batch, arguments.heads, arguments.heads)
    pace = QUICK if quick else replace(FULL, seconds=arguments.seconds)
    lengths = [2**n for n in range(7, 15) if 2**n <= arguments.longest]
    dtypes = arguments.dtype
    cells = [
        Cell(work, dtype, *shape, length, head_dim, causal)
        for work in (ON_A_GPU if machine.gpu else WORKS)
        for dtype in dtypes
        for head_dim in arguments.head_dim
        for causal in (False, True)
        for length in lengths
    ]
    of_memory = [
        Cell("forward+backward", dtypes[0], *shape, length, arguments.head_dim[0])
        for length in ((128,) if quick else MEMORY_LENGTHS)
    ]
    speed: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    with keeps_what_there_is(), Tasks(len(cells) + len(of_memory)) as progress:
        for cell in cells:
            progress.begin(cell.title)
            speed.append(measure(cell, machine, pace, progress.advance))
            gc.collect()
        names = [x.name for x in contenders(machine.device)]
        names = names[:1] if quick else names  # each takes a process of its own, which is slow to start
        for row in measure_memory(of_memory, names, machine, arguments.threads, progress):
            memory.append(row)
    return {
        "benchmark": "attention",
        "environment": facts,
        "settings": {"quick": quick, "device": arguments.device, "exact": dict(EXACT)},
        "aims": AIMS_OF_FLASH if machine.gpu else AIMS,
        "speed": speed,
        "memory": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--head-dim", type=int, nargs="+", help="64; on a GPU 64 and 128")
    parser.add_argument("--dtype", choices=EXACT, nargs="+", help="fp32 and bf16; on a GPU bf16 and fp16")
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="for each row (default: %(default)s)")
    parser.add_argument("--longest", type=int, help="the longest sequence of the table of speed")
    parser.add_argument("--out", type=Path, help="JSON; the tables and the plot go beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: no figures, a smoke run")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        torch.set_num_threads(arguments.threads)
        name, cell = json.loads(arguments.memory_of)
        cpu = torch.device("cpu")
        memory_call(Cell(**cell | {"tokens": 64}), name, cpu)()  # loads what is loaded once
        print(growth_of(memory_call(Cell(**cell), name, cpu)))
        return
    on_cpu = arguments.device == "cpu"
    arguments.heads = arguments.heads or (2 if on_cpu else 16)
    arguments.head_dim = arguments.head_dim or ([64] if on_cpu else [64, 128])
    arguments.dtype = arguments.dtype or (["fp32", "bf16"] if on_cpu else ["bf16", "fp16"])
    arguments.longest = arguments.longest or (128 if arguments.quick else 2048 if on_cpu else 16384)
    if arguments.quick:
        arguments.batch = min(arguments.batch, 2)
    out: Path = arguments.out or FOLDER / f"attention_{arguments.device}.json"

    results = run(arguments)
    write(results, out, markdown, draw)


if __name__ == "__main__":
    main()
