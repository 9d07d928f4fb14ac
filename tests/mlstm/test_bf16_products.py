# SPDX-License-Identifier: Apache-2.0
"""The instruction set avx512bf16, which rounds the operands of bfloat16 products.

The table holds it to plain torch wherever it is the machine's best. Here, whatever the machine's choice: it does round,
and no worse than plain torch, which rounds the same operands.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from xlstm_hip import _native

CODE = """
    import torch
    from support.reference import doubled, outputs_and_gradients, relative_error, truth
    from xlstm_hip import _native, mlstm_interface

    assert _native.cpu_isa() == "avx512bf16"
    torch.manual_seed(0)
    B, NH, S, DQK, DHV = 2, 2, 200, 48, 64
    inputs = {
        "q": torch.rand(B, NH, S, DQK), "k": torch.rand(B, NH, S, DQK), "v": torch.randn(B, NH, S, DHV),
        "i": torch.randn(B, NH, S), "f": torch.randn(B, NH, S) + 3,
    }
    inputs = {name: x.bfloat16() for name, x in inputs.items()}
    states = ((B, NH, DQK, DHV), (B, NH, DQK), (B, NH, 1))
    cotangents = (torch.randn(B, NH, S, DHV).bfloat16(), *(torch.zeros(shape) for shape in states))
    def errors(kernel):
        got = outputs_and_gradients(mlstm_interface, inputs, cotangents, kernel=kernel, return_last_states=True)
        right = outputs_and_gradients(truth, doubled(inputs), cotangents)
        return {n: relative_error(a[n], b[n]) for a, b in zip(got, right) for n in b}
    fused, plain = errors("chunkwise--fused"), errors("chunkwise--native_autograd")
    over = {n: (fused[n], plain[n]) for n in fused if n not in "nm" and fused[n] > 2 * max(plain[n], 2**-8)}
    assert not over, over
    assert fused["h"] > 2**-10  # it does round: otherwise this test looks at another kernel
    """


def test_it_rounds_no_worse_than_plain_torch() -> None:
    if not _native.cpu_features().get("avx512bf16", False):
        pytest.skip("avx512bf16 does not run here")
    environment = os.environ | {
        "XLSTM_HIP_CPU_ISA": "avx512bf16",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_best_that_runs_is_chosen() -> None:
    if "XLSTM_HIP_CPU_ISA" in os.environ:
        pytest.skip("this run asks for an instruction set")
    assert _native.cpu_isa() == next(isa for isa, runs in _native.cpu_features().items() if runs)
