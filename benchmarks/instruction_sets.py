# SPDX-License-Identifier: Apache-2.0
"""int8 and int4 decoding and attention on a CPU, by the library's instruction sets and by torch.

    taskset -c 0,1 python benchmarks/instruction_sets.py          amx beside avx512bf16, two threads on two cores
    python benchmarks/instruction_sets.py --isas avx512bf16 portable --threads 8

Linear layers of xLSTM-7B, a step of two of its blocks in int8, and attention of 8 sequences with two heads; bfloat16,
median ms. The library chooses its instruction set once in a process, so each has processes of its own. An instruction
set that this machine or this build does not have is left out, with the reason. Takes about a minute and a half.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

TORCH = "torch"
ROWS = (1, 2, 4, 8, 16, 32, 64)  # of x
LINEARS = {"v, o, out": (4096, 4096), "gate, up": (10944, 4096), "down": (4096, 10944)}  # rows and columns of weights
ATTENTION = ((64, 512), (64, 2048), (128, 512), (128, 2048))  # head dim, tokens
BATCH, HEADS = 8, 2
SECONDS = 0.12  # for each time
Times = dict[str, dict[str, float]]  # by what was done, then by who did it


def report(key: str, call: Callable[[], object], seconds: float = SECONDS) -> None:
    """Prints the median ms of a call, for the process that started this one."""
    call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    print(f"= {key} {1e3 * statistics.median(times):.4f}", flush=True)


# ---- in a process of its own; imports come late, after the instruction set is in the environment


def fill(layer: object) -> None:
    """Random weights, without the search for the best scales."""
    import torch

    from xlstm_hip.models.quantize import QuantizedLinear

    assert isinstance(layer, QuantizedLinear)
    layer.qweight.view(torch.int8).copy_(torch.randint(-128, 127, layer.qweight.shape, dtype=torch.int8))
    layer.scales.fill_(0.0002 if layer.scheme.bits == 8 else 0.002)
    if layer.offsets is not None:
        layer.offsets.fill_(-0.015)


def linears(by: str) -> None:
    import torch
    import torch.nn.functional as F

    from xlstm_hip.models.quantize import QuantizedLinear, Scheme

    for name, (rows, columns) in LINEARS.items():
        if by == TORCH:
            dense = torch.randn(rows, columns).bfloat16()
            for batch in ROWS:
                x = torch.randn(batch, columns).bfloat16()
                report(f"bf16 {name}, {batch}", lambda x=x, dense=dense: F.linear(x, dense))
            continue
        for bits in (8, 4):
            layer = QuantizedLinear(columns, rows, False, Scheme(bits, symmetric=bits == 8), torch.bfloat16)
            fill(layer)
            for batch in ROWS:
                x = torch.randn(batch, columns).bfloat16()
                report(f"int{bits} {name}, {batch}", lambda x=x, layer=layer: layer(x))


def steps(by: str) -> None:
    import torch

    from xlstm_hip.models import xLSTMLarge, xLSTMLargeConfig
    from xlstm_hip.models.quantize import Scheme, quantizable, replaced

    if by == TORCH:
        return
    config = xLSTMLargeConfig(4096, 8, 2, 1024, mode="inference", return_last_states=True)
    with torch.device("meta"):
        model = xLSTMLarge(config)
    model = model.to_empty(device="cpu").bfloat16()
    for x in model.parameters():
        x.data.fill_(0.01)
    scheme = Scheme(8)
    for name, layer in quantizable(model, scheme):
        fill(replaced(model, name, layer, scheme))
    model.quantization = scheme
    for rows in ROWS:
        tokens = torch.zeros(rows, dtype=torch.int64)
        _, state = model.read(tokens[:, None])
        report(f"step, {rows}", lambda tokens=tokens, state=state: model.step(tokens, state))


def attention(by: str) -> None:
    import torch
    import torch.nn.functional as F

    from xlstm_hip.attention import flash_attn_func

    for features, tokens in ATTENTION:
        q, k, v = (torch.randn(BATCH, tokens, HEADS, features).bfloat16() for _ in range(3))
        key = f"attention, D{features} S{tokens}"
        if by == TORCH:
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
            report(key, lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v), 0.5)
        else:
            report(key, lambda q=q, k=k, v=v: flash_attn_func(q, k, v), 0.5)


PARTS = {"linears": linears, "steps": steps, "attention": attention}


def measure_part(part: str, by: str, threads: int) -> None:
    import torch

    from xlstm_hip import _native

    torch.set_num_threads(threads)
    if by not in (TORCH, _native.cpu_isa()):
        raise SystemExit(f"{by}: not what the library chose, which is {_native.cpu_isa()}")
    with torch.no_grad():
        PARTS[part](by)


# ---- in the process that was started


def measured(part: str, by: str, threads: int, times: Times) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | ({} if by == TORCH else {"XLSTM_HIP_CPU_ISA": by})
    command = [sys.executable, __file__, "--part", part, "--isas", by, "--threads", str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"{by}, {part}: left out: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")
    for line in done.stdout.splitlines():
        if line.startswith("= "):
            key, ms = line[2:].rsplit(" ", 1)
            times.setdefault(key, {})[by] = float(ms)


def show(times: Times, columns: list[str]) -> None:
    print("\n| ms | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    for key, by in times.items():
        print(f"| {key} | " + " | ".join(f"{by[one]:.3f}" if one in by else "" for one in columns) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--isas", nargs="+", default=["amx", "avx512bf16"], help="instruction sets (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        return measure_part(args.part, args.isas[0], args.threads)
    times: Times = {}
    for part in PARTS:
        for by in (*args.isas, TORCH):
            measured(part, by, args.threads, times)
    print(f"{platform.processor() or platform.machine()}, {args.threads} threads; torch: bfloat16 weights, and SDPA")
    show(times, [*args.isas, TORCH])


if __name__ == "__main__":
    main()
