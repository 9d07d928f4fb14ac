# SPDX-License-Identifier: Apache-2.0
"""Attention beside torch's: two tables, speed and memory, causal and not, for lengths from 128 up.

    python benchmarks/attention.py                 on the CPU; results/attention_cpu.json, .md and .png beside this file
    python benchmarks/attention.py --device cuda   on the GPU
    python benchmarks/attention.py --quick         a smoke run at small shapes

Contenders are ours, torch's scaled_dot_product_attention (on a GPU with its FLASH and its cuDNN backend) and standard
attention, which is softmax between two matrix products. They take turns, so ratios are the medians of the rounds' own.
One head of every result is held to float64 first, and its error stands beside the time. Memory is what one forward
and backward adds to its inputs and the gradient of its output, on the CPU in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_report import draw, markdown
from xlstm_hip.attention import flash_attn_func
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.memory import MemoryUnknown, growth_of
from xlstm_hip.bench.result_files import keeps_what_there_is, write
from xlstm_hip.bench.timing import Pace, Progress, interleaved, paired_ratio

FOLDER = Path(__file__).resolve().parent / "results"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OURS, STANDARD, SDPA = "xlstm_hip", "standard attention", "torch SDPA"
WORKS = ("forward", "forward+backward")
ON_A_GPU = ("forward", "backward", "forward+backward")
BACKENDS = {f"{SDPA} FLASH": SDPBackend.FLASH_ATTENTION, f"{SDPA} cuDNN": SDPBackend.CUDNN_ATTENTION}
AIMS = {"forward": {"fp32": 1.0, "bf16": 1.0}, "forward+backward": {"fp32": 1.0, "bf16": 2.0}}  # of SDPA, on the CPU
AIMS_OF_FLASH = {"forward": {"bf16": 1.0}, "backward": {"bf16": 1.0}}  # on a GPU, of FlashAttention-2 in torch
EXACT = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 4e-3}
FULL = Pace(seconds=4, least_rounds=5, most_rounds=21, sample_seconds=0.02)
QUICK = Pace(seconds=0.1, least_rounds=2, most_rounds=3, sample_seconds=0.001)
MEMORY_LENGTHS = (1024, 2048, 4096)


@dataclass(frozen=True)
class Cell:
    work: str  # of ON_A_GPU
    dtype: str
    causal: bool
    batch: int
    heads: int
    length: int
    head_dim: int

    @property
    def title(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.work} {self.dtype} {mask} B{self.batch} H{self.heads} S{self.length} D{self.head_dim}"

    @property
    def flops(self) -> float:
        """Of the products alone: two forward, five backward; half of them behind a causal mask."""
        products = {"forward": 2, "backward": 5}.get(self.work, 7)
        pairs = self.batch * self.heads * self.length**2 * (0.5 if self.causal else 1.0)
        return products * 2 * self.head_dim * pairs


def standard(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """(B, S, H, D) by way of all the weights."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        weights = weights.masked_fill(later, float("-inf"))
    return (weights.softmax(-1) @ v).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, backend: SDPBackend | None = None) -> Tensor:
    chosen: AbstractContextManager[Any] = nullcontext() if backend is None else sdpa_kernel(backend)
    with chosen:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def contenders(device: str) -> dict[str, Callable[..., Tensor]]:
    made: dict[str, Callable[..., Tensor]] = {OURS: lambda q, k, v, causal: flash_attn_func(q, k, v, causal=causal)}
    if device == "cpu":
        made[SDPA] = sdpa
    for name, backend in BACKENDS.items() if device != "cpu" else ():
        made[name] = lambda q, k, v, causal, backend=backend: sdpa(q, k, v, causal, backend)
    return made | {STANDARD: standard}


def inputs_of(cell: Cell, device: str) -> list[Tensor]:
    """q, k, v and the gradient of out."""
    g = torch.Generator().manual_seed(cell.length)
    shape = (cell.batch, cell.length, cell.heads, cell.head_dim)
    made = [torch.randn(shape, generator=g).to(device, DTYPES[cell.dtype]) for _ in range(4)]
    return [x.requires_grad_() for x in made[:3]] + made[3:]


def results_of(cell: Cell, function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    *tensors, dout = inputs
    if cell.work == "forward":
        with torch.no_grad():
            return [function(*tensors, cell.causal)]
    out = function(*tensors, cell.causal)
    return [out, *torch.autograd.grad(out, tensors, dout)]


def call_of(cell: Cell, function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Any]:
    """What is timed: of a backward pass, that alone."""
    if cell.work != "backward":
        return lambda: results_of(cell, function, inputs)
    *tensors, dout = inputs
    out = function(*tensors, cell.causal)
    return lambda: torch.autograd.grad(out, tensors, dout, retain_graph=True)


def error_of(cell: Cell, results: list[Tensor], inputs: list[Tensor]) -> float:
    """The largest relative error, by norm, of the first head's results."""
    first = [x.detach()[:1, :, :1].double() for x in inputs]
    truth = results_of(cell, standard, [x.requires_grad_() for x in first[:3]] + first[3:])
    pairs = [(x[:1, :, :1].double(), y) for x, y in zip(results, truth, strict=True)]
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def measure(cell: Cell, machine: Machine, pace: Pace, advance: Callable[[float], None]) -> dict[str, Any]:
    inputs = inputs_of(cell, machine.device.type)
    entries: list[dict[str, Any]] = []
    calls = {}
    for name, function in contenders(machine.device.type).items():
        entry: dict[str, Any] = {"name": name}
        weights = 6 * inputs[0].element_size() * cell.batch * cell.heads * cell.length**2
        try:
            if name == STANDARD and weights > machine.free_bytes():
                raise LookupError(f"its weights would take {weights >> 30} GB")
            error = error_of(cell, results_of(cell, function, inputs), inputs)
        except (LookupError, RuntimeError) as reason:
            entry["missing"] = str(reason).strip().splitlines()[0]
        else:
            entry["error"] = error
            if name == OURS and not error <= EXACT[cell.dtype]:
                raise SystemExit(f"{cell.title}: error {error:.3g}, expected at most {EXACT[cell.dtype]}")
            calls[name] = call_of(cell, function, inputs)
        entries.append(entry)
    samples = interleaved(calls, pace, advance, machine.seconds)
    for entry in entries:
        if entry["name"] in samples:
            entry["ms"] = samples[entry["name"]].as_json()
            entry["tflops"] = cell.flops / entry["ms"]["median"] / 1e9
        if entry["name"] in samples and OURS in samples:
            entry["times_ours"] = paired_ratio(samples[entry["name"]].ms, samples[OURS].ms)
    return asdict(cell) | {"contenders": entries}


# ---- memory


def memory_call(cell: Cell, name: str, device: str) -> Callable[[], Any]:
    function, inputs = contenders(device)[name], inputs_of(cell, device)
    return lambda: results_of(cell, function, inputs)


def memory_of(cell: Cell, name: str, machine: Machine, threads: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name}
    try:
        if machine.gpu:
            return entry | {"bytes": machine.peak_bytes(memory_call(cell, name, machine.device.type))}
        command = [sys.executable, __file__, "--threads", str(threads), "--memory-of", json.dumps([name, asdict(cell)])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise MemoryUnknown((done.stderr.strip().splitlines() or ["the process was ended"])[-1])
        return entry | {"bytes": int(done.stdout.split()[-1])}
    except (MemoryUnknown, RuntimeError) as reason:
        return entry | {"missing": str(reason).strip().splitlines()[0]}


def measure_memory(
    cells: list[Cell], names: list[str], machine: Machine, threads: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    for cell in cells:
        progress.begin(f"memory, {cell.title}")
        yield asdict(cell) | {"contenders": [memory_of(cell, name, machine, threads) for name in names]}
        progress.advance(1)


# ---- the run


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    facts = environment()
    machine = Machine(arguments.device)
    quick, shape = arguments.quick, (arguments.batch, arguments.heads)
    pace = QUICK if quick else replace(FULL, seconds=arguments.seconds)
    lengths = [2**n for n in range(7, 15) if 2**n <= arguments.longest]
    dtypes = arguments.dtype
    cells = [
        Cell(work, dtype, causal, *shape, length, head_dim)
        for work in (ON_A_GPU if machine.gpu else WORKS)
        for dtype in dtypes
        for head_dim in arguments.head_dim
        for causal in (False, True)
        for length in lengths
    ]
    of_memory = [
        Cell("forward+backward", dtypes[0], True, *shape, length, arguments.head_dim[0])
        for length in ((128,) if quick else MEMORY_LENGTHS)
    ]
    speed: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    with keeps_what_there_is(), Progress(len(cells) + len(of_memory)) as progress:
        for cell in cells:
            progress.begin(cell.title)
            speed.append(measure(cell, machine, pace, progress.advance))
            gc.collect()
        names = list(contenders(machine.device.type))
        names = names[:1] if quick else names  # each takes a process of its own, which is slow to start
        for row in measure_memory(of_memory, names, machine, arguments.threads, progress):
            memory.append(row)
    return {
        "benchmark": "attention",
        "environment": facts,
        "settings": {"quick": quick, "device": arguments.device, "exact": EXACT},
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
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", help="fp32 and bf16; on a GPU bf16 and fp16")
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="for each row (default: %(default)s)")
    parser.add_argument("--longest", type=int, help="the longest sequence of the table of speed")
    parser.add_argument("--out", type=Path, help="JSON; the tables and the plot go beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: no figures, a smoke run")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        torch.set_num_threads(arguments.threads)
        name, cell = json.loads(arguments.memory_of)
        memory_call(Cell(**cell | {"length": 64}), name, "cpu")()  # loads what is loaded once
        print(growth_of(memory_call(Cell(**cell), name, "cpu")))
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
