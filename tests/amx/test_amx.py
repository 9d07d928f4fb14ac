# SPDX-License-Identifier: Apache-2.0
"""The instruction set amx as machine code: on a CPU without AMX a preloaded emulator executes the tile instructions.

The rows are those of the tables, in bfloat16, whose products are those of tiles, and products of int8 and int4 weights.
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


def run(emulator: Path, code: str, counter: str = "amx_products") -> None:
    """Runs `code` with the instruction set amx, and looks that it executed the products that `counter` counts."""
    begin = """
        import ctypes
        import torch
        from xlstm_hip import _native

        assert _native.cpu_isa() == "amx"
        torch.set_num_threads(1)
        products = ctypes.CDLL(None).COUNTER
        products.restype = ctypes.c_long
        """
    end = "\nassert products() > 1000, products()\n"
    text = textwrap.dedent(begin).replace("COUNTER", counter) + textwrap.dedent(code) + end
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


def test_attention_forward_by_16_rows(emulator: Path) -> None:
    """All products of a forward call; long enough for several tiles of keys and panels, few rows, and dropout's mask as
    other instruction sets draw it, which test_attention compares."""
    run(
        emulator,
        """
        from support.attention.problem import Case, check
        from xlstm_hip.attention import flash_attn_func

        q, k, v = (torch.randn(1, 300, 2, 64, generator=torch.Generator().manual_seed(n)).bfloat16() for n in range(3))
        flash_attn_func(q, k, v)
        flash_attn_func(q[:, :1], k, v)
        every = ctypes.CDLL(None).amx_products
        every.restype = ctypes.c_long
        assert products() == every(), (products(), every())
        for causal, window in ((False, (-1, -1)), (True, (-1, -1)), (False, (200, 5)), (True, (9, 0))):
            for scale in (None, -0.3):
                check(Case(dtype=torch.bfloat16, lengths=((300, 400),), causal=causal, window=window, scale=scale,
                           heads=(4, 2), dims=(64, 48)))
        """,
        "amx_row_products",
    )


@pytest.mark.rows("everything")
def test_all_rows_of_attention(emulator: Path) -> None:
    run(emulator, ATTENTION.replace("STEP", "1"))


def test_quantised_linear_layers(emulator: Path) -> None:
    """As close to float64 as float sums; a row is the same bits in any company, for int4 in any of 16 rows and more;
    rows of any size, and one that is not finite, which has no effect on the others."""
    run(
        emulator,
        """
        from models.test_quantized_linear import SCHEMES, call, check, layer_of

        SIZES = torch.tensor([1.0, 0.0, 1e20, 1e-20, -3.0])
        INTEGERS = [name for name in SCHEMES if name.startswith("int")]
        for name in INTEGERS:
            for columns, features, bias in ((1088, 270, False), (136, 33, True), (64, 9, True)):
                layer = layer_of(SCHEMES[name], columns, features, bias, torch.float32)
                x = torch.randn(64, columns, generator=torch.Generator().manual_seed(columns))
                x[:5] *= SIZES[:, None]
                every = call(layer, x)
                check(layer, x, every)
                for rows in (1, 5, 6, 16, 31):
                    some = x[64 - rows :]
                    y = call(layer, some)
                    check(layer, some, y)
                    if rows >= 16 or not name.startswith("int4"):
                        assert torch.equal(y, every[64 - rows :]), (name, columns, rows)
                halves = x.bfloat16()
                check(layer, halves, call(layer, halves))
                x[3, 7] = float("inf")
                with_infinity = call(layer, x)
                assert not with_infinity[3].isfinite().any() and torch.equal(with_infinity[4:], every[4:])
        """,
        "amx_byte_products",
    )


def test_a_models_step(emulator: Path) -> None:
    """With int8 and int4 weights, gates that are not quantised beside them: no further from float64 than plain weights
    of float32 are in the layers, twice at the most, and a row is the same bits in any company that has tiles, too, and
    with any number of threads. By one draw of tokens this hangs on the CPU's own sums: 1 of 32 draws is beyond it
    without AMX, too."""
    run(
        emulator,
        """
        from models.test_quantize import test_the_engine_reads_them, widened
        from support.engine_calls import copied, no_worse_than_layers, state_after, steps
        from support.peer_models import small_model, tokens
        from xlstm_hip.models.quantize import quantize

        for bits, group_size, symmetric in ((8, 64, True), (8, 128, False), (4, 64, False), (4, 128, True)):
            test_the_engine_reads_them(bits, group_size, symmetric, "float16")
            model = quantize(small_model(), bits, group_size=group_size, symmetric=symmetric, progress=False)[0]
            count, least = (7, 1) if bits == 8 else (17, 16)
            begun, x = state_after(model, tokens(count, 5)), tokens(count, 2, seed=2)
            every = {}
            for threads in (1, 3):
                torch.set_num_threads(threads)
                every[threads] = steps(model, copied(begun), x)
            assert torch.equal(every[1], every[3])
            no_worse_than_layers(model, widened(model), count, 2, beside=widened(model, torch.float32))
            for row in (0, count - least):
                some = slice(row, row + least)
                state = {n: tuple(s[some].clone() for s in layer) for n, layer in begun.items()}
                assert torch.equal(steps(model, state, x[some]), every[1][some])
        """,
        "amx_byte_products",
    )


def test_a_cpu_without_amx_refuses_it() -> None:
    if _native.cpu_features().get("amx", False):
        pytest.skip("this CPU has AMX")
    done = python("from xlstm_hip import _native; _native.cpu_isa()", XLSTM_HIP_CPU_ISA="amx")
    assert done.returncode == 1 and "XLSTM_HIP_CPU_ISA: expected one of" in done.stderr, done.stderr[-2000:]
    assert "got 'amx'" in done.stderr
