# SPDX-License-Identifier: Apache-2.0
"""How the CPU kernels run: threads, segments of a sequence, memory, and the choice of instruction set."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support import accuracy, gpu_checks
from support.representative import up_to
from support.shapes import BY_NAME, Case
from xlstm_hip import kernel_info

TESTS = Path(__file__).resolve().parents[1]
KERNELS = ("chunkwise--fused", "chunkwise--fused_siging", "fused", "fused_siging")
MANY_HEADS = Case("many heads", 200, 24, 33, batch=2, heads=4, chunk=16, states=True)
ONE_HEAD = Case("one head", 512, 24, 16, heads=1, chunk=16, states=True)  # four segments of eight chunks


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), *(p for p in sys.path if p)])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run(case: Case, kernel: str, threads: int) -> dict[str, Tensor]:
    torch.set_num_threads(threads)
    inputs, cotangents = accuracy.make(case, torch.float32)
    outputs, gradients = accuracy.outputs_and_gradients(accuracy.sequence_call(case, kernel), inputs, cotangents)
    return outputs | {f"d{name}": g for name, g in gradients.items()}


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_bits_again_and_with_more_threads(kernel: str) -> None:
    """Enough heads for the threads: the plan is then the same, and so is every bit."""
    first = run(MANY_HEADS, kernel, 1)
    for threads in (1, 2, 4):
        again = run(MANY_HEADS, kernel, threads)
        for name, x in first.items():
            assert torch.equal(x, again[name]), f"{name} with {threads} threads"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", [ONE_HEAD, replace(ONE_HEAD, name="one head, packed", lengths=(350, 1, 161))], ids=str)
def test_segments(kernel: str, case: Case) -> None:
    """Too few heads for the threads: the sequence is cut into segments, with a scan over their states."""
    torch.set_num_threads(4)
    info = kernel_info(kernel, ("chunkwise", "sequence"))
    accuracy.check(f"{kernel} in segments", accuracy.measure(info, case, torch.float32))
    first, again = (run(case, kernel, 4) for _ in range(2))
    assert all(torch.equal(x, again[name]) for name, x in first.items()), "another result from run to run"


def test_segments_forget_and_keep() -> None:
    """Gates at their ends, where a segment's decay is 0 or 1."""
    torch.set_num_threads(4)
    for gates in ("forget everything", "forget nothing", "forget some wholly", "from -60 to 60"):
        case = replace(ONE_HEAD, name=f"one head, {gates}", length=384, gates=gates)
        for kernel in KERNELS[:2]:
            measured = accuracy.measure(kernel_info(kernel), case, torch.float32)
            accuracy.check(f"{kernel}, {gates}, in segments", measured)


def test_short_sequences_of_a_row() -> None:
    gpu_checks.short_sequences_of_a_row("cpu")


def test_a_step_caps_its_gates() -> None:
    gpu_checks.a_step_caps_its_gates("cpu")


def test_a_step_with_c_in_bfloat16() -> None:
    gpu_checks.a_step_with_c_in_bfloat16("cpu")


def test_memory() -> None:
    """Forward and backward: inputs, outputs, gradients, one state per segment and per worker, and little else."""
    code = """
        import torch
        from xlstm_hip import mlstm_interface

        torch.set_num_threads(2)
        def peak():  # kB so far
            return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1])

        def call(heads, length, dqk, dhv):
            tensors = [torch.randn(1, heads, length, d) for d in (dqk, dqk, dhv)]
            tensors += [torch.randn(1, heads, length) for _ in range(2)]
            for x in tensors:
                x.requires_grad_()
            dh = torch.randn(1, heads, length, dhv)
            torch.autograd.grad(mlstm_interface(*tensors, chunk_size=64), tensors, dh)
            floats = 2 * sum(x.numel() for x in tensors) + 2 * dh.numel()  # inputs, gradients, h, dh
            return floats * 4 / 1024

        call(1, 64, 16, 16)  # what torch itself needs is taken before
        before = peak()
        expected = call(2, 8192, 256, 256)
        print(peak() - before, expected)
        """
    done = python(code, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    used, expected = map(float, done.stdout.split())
    # Two workers' scratch: a state and a chunk of each operand; per token l, the gates and what backward sums, in
    # float64, under 100 bytes.
    slack = 2 * (256 * 257 + 6 * 64 * 257) * 4 / 1024 + 2 * 8192 * 100 / 1024 + 4096
    assert used <= expected + slack, f"{used / 1024:.1f} MB, of which {expected / 1024:.1f} MB are the tensors"


SUB_TABLE = ("17 tokens, a tail of 1", "strided", "packed, states", "gates from -60 to 60")


def instruction_sets() -> list[str]:
    """The instruction sets of this machine, best first, as the error for a wrong name lists them."""
    done = python(CALL, XLSTM_HIP_CPU_ISA="mmx")
    words = done.stderr.partition("expected one of ")[2].partition(" on this machine")[0]
    return words.split(", ") if words else []


CALL = """
    import torch
    from xlstm_hip import mlstm_interface
    x = torch.randn(1, 1, 4, 4)
    mlstm_interface(x, x, x, x[..., 0], x[..., 0])
    """


def test_a_wrong_instruction_set_is_an_error() -> None:
    done = python(CALL, XLSTM_HIP_CPU_ISA="mmx")
    assert done.returncode == 1, done.stderr  # an exception, not an abort
    assert "XLSTM_HIP_CPU_ISA: expected one of" in done.stderr and "got 'mmx'" in done.stderr
    assert "portable" in instruction_sets()


CI = pytest.mark.rows("ci")  # avx512 has the vectors of avx512bf16, avx2 the sources of both


@pytest.mark.parametrize(
    "isa", ["portable", pytest.param("avx2", marks=CI), pytest.param("avx512", marks=CI), "avx512bf16"]
)
def test_each_instruction_set(isa: str, level: str) -> None:
    if isa not in instruction_sets():
        pytest.skip(f"{isa} does not run here")
    every = itertools.product(SUB_TABLE, ("float32", "bfloat16", "float16", "float64"), KERNELS)
    rows = up_to(level, list(every), lambda row: dict(zip(("case", "dtype", "kernel"), row, strict=True)))
    code = f"""
        import torch
        torch.set_num_threads(1)
        from support import accuracy
        from support.shapes import BY_NAME
        from xlstm_hip import kernel_info

        for name, dtype, kernel in {rows!r}:
            info = kernel_info(kernel, ("chunkwise", "sequence"))
            measured = accuracy.measure(info, BY_NAME[name], getattr(torch, dtype))
            accuracy.check(f"{{kernel}}, {{name}}, {{dtype}}", measured)
        """
    assert all(name in BY_NAME for name in SUB_TABLE)
    done = python(code, XLSTM_HIP_CPU_ISA=isa, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-3000:]
