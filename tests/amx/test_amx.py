# SPDX-License-Identifier: Apache-2.0
"""The instruction set amx as machine code: on a CPU without AMX a preloaded emulator executes the tile instructions.

The rows are those of the tables, in bfloat16, the one dtype whose products are those of tiles.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from mlstm.test_execution import python
from xlstm_hip import _native

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not _native.cpu_features().get("avx512bf16", False):
        pytest.skip("what is not AMX in this code runs on a CPU with AVX-512 and bfloat16 alone")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler for the emulator")
    library = tmp_path_factory.mktemp("amx") / "libamx_emulator.so"
    subprocess.run(
        [compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-o", library, HERE / "emulator.cpp", "-ldl"], check=True
    )
    return library


def run(emulator: Path, code: str) -> None:
    """Runs `code` with the instruction set amx, and looks that it executed products of tiles."""
    begin = """
        import ctypes
        import torch
        from xlstm_hip import _native

        assert _native.cpu_isa() == "amx"
        torch.set_num_threads(1)
        products = ctypes.CDLL(None).amx_products
        products.restype = ctypes.c_long
        """
    text = textwrap.dedent(begin) + textwrap.dedent(code) + "\nassert products() > 1000, products()\n"
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])  # pytest's has other `attention`s
    done = python(text, XLSTM_HIP_CPU_ISA="amx", LD_PRELOAD=str(emulator), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_mlstm(emulator: Path) -> None:
    run(
        emulator,
        """
        from mlstm.test_execution import SUB_TABLE
        from support import accuracy
        from support.shapes import BY_NAME
        from xlstm_hip import kernel_info

        info = kernel_info("chunkwise--fused", ("chunkwise",))
        for name in SUB_TABLE:
            accuracy.check(name, accuracy.measure(info, BY_NAME[name], torch.bfloat16))
        """,
    )


ATTENTION = """
    from attention.test_attention_table import ROWS, RAGGED
    from support.attention.problem import Case, check

    rows = [row for row in ROWS if row.dtype == torch.bfloat16]
    for row in rows[::STEP]:
        check(row)
    check(Case(dtype=torch.bfloat16, lengths=RAGGED, layout="packed", causal=True, heads=(3, 3), dims=(40, 40)))
    """


def test_attention(emulator: Path) -> None:
    run(emulator, ATTENTION.replace("STEP", "4"))


@pytest.mark.rows("everything")
def test_all_rows_of_attention(emulator: Path) -> None:
    run(emulator, ATTENTION.replace("STEP", "1"))


def test_a_cpu_without_amx_refuses_it() -> None:
    if _native.cpu_features()["amx"]:
        pytest.skip("this CPU has AMX")
    done = python("from xlstm_hip import _native; _native.cpu_isa()", XLSTM_HIP_CPU_ISA="amx")
    assert done.returncode == 1 and "XLSTM_HIP_CPU_ISA: expected one of" in done.stderr, done.stderr[-2000:]
    assert "got 'amx'" in done.stderr
