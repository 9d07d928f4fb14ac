# SPDX-License-Identifier: Apache-2.0
"""The package's own calls, its kernels run as gfx942 code: rows of the GPU's table at small shapes, forward and
backward, and what the GPU's checks ask beside them. Every mLSTM kernel that the library holds must have run.

Truth and plain torch run on the CPU. `python tests/gfx942/sweep.py` runs the GPU's whole table instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from builds import CHIP, has_code
from code_objects import built_archs
from emulated_torch import CHECKS
from kernels_ran import LEAST_LEVEL, check_every_kernel_ran
from support.representative import marked, up_to
from support.shapes import BY_NAME, GPU_CASES, HALF, STATES, Case, make

SEQUENCE = ("chunkwise--fused", "fused")
SIGMOID = ("chunkwise--fused_siging", "fused_siging")
DTYPES = (torch.float32, *HALF)

# One pair for each class of walk rows, as keys and as values; none a multiple of a tile, most wider than one. Rows of
# the first four are no vectors of 16 bytes, which the common walk takes; those of the others are, for CDNA's walk. The
# sequences are cut into segments, with a tail: chunks are of 16 tokens for floats and of 32 for the rest.
CLASSES = ((60, 130), (130, 60), (70, 260), (260, 70), (56, 136), (136, 56), (72, 264), (264, 72))
# CDNA's class of 128 rows and at most 64 columns, likewise.
NARROW = ((60, 70), (70, 60), (56, 72), (72, 56))
# Backward's walks have one launch where neither state has more than 128 rows: these classes, beside the narrow ones.
SMALL = ((40, 56), (104, 72))
WIDE = ((520, 40), (40, 577))  # states of more rows than registers: walked in slices
SEGMENTS = {torch.float32: 270, torch.bfloat16: 530, torch.float16: 530}

# How wide a tile of C a recurrent block has follows from how many heads there are for 304 compute units.
HEADS = tuple(
    Case(f"{heads} heads, length {n}", n, 8, 32, heads=heads, states=True, long=True)
    for n in (1, 3)
    for heads in (304, 152, 20)
)
# Of support/shapes.py. In the half dtypes one run of plain torch says what is allowed: where a sum all but vanishes,
# one row in fifty of the whole table is above it, by what rounding alone does to products of two-byte operands.
TABLE = (
    "1 token",
    "17 tokens, a tail of 1",
    "65 tokens, half gates",
    "127 tokens, chunks of 32",
    "head dims of 256 and 512",
    "head dims of 1 and 24",
    "packed, states",
    "packed, bshd",
    "strided",
    "gates from -60 to 60, chunks of 16",
    "forgets some tokens wholly",
    "enters nothing",
    "the peers' gradient",
)
STEPS = ("step", "step, one head of 1 and 1", "step, half gates")
# Of the GPU's table: of a token's gradients most is one number's rounding, that of its l, which cancels.
CANCELS = ("100 tokens, head dims of 24 and 48", "100 tokens, head dims of 1 and 7")


class TableRow(NamedTuple):
    """A row before the package is imported: which package that is, is not known when tests are collected."""

    case: Case
    kind: str
    kernel: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.case.name}-{self.kind} {self.kernel}-{str(self.dtype).removeprefix('torch.')}"


def rows() -> Iterator[TableRow]:
    for dqk, dhv in (*CLASSES, *NARROW, *SMALL):
        for dtype, length in SEGMENTS.items():
            name = f"{length} tokens, head dims of {dqk} and {dhv}"
            case = Case(name, length, dqk, dhv, heads=1, states=True, long=True, eps=0.05)
            yield TableRow(case, "sequence", "chunkwise--fused", dtype)
    for dqk, dhv in WIDE:
        case = Case(f"70 tokens, head dims of {dqk} and {dhv}", 70, dqk, dhv, heads=2, states=True)
        for kernel in (SEQUENCE[0], SIGMOID[0]):
            yield from (TableRow(case, "sequence", kernel, dtype) for dtype in DTYPES)
    for name in TABLE:
        for kernel in (*SEQUENCE, *SIGMOID):
            yield from (TableRow(BY_NAME[name], "sequence", kernel, dtype) for dtype in DTYPES)
    for case in GPU_CASES:
        if case.name in CANCELS:
            yield TableRow(case, "sequence", "fused_siging", torch.float32)
    for case in HEADS:
        kind = "step" if case.length == 1 else "sequence"
        yield from (TableRow(case, kind, "fused", dtype) for dtype in DTYPES)
    for name in STEPS:
        for kernel in ("fused", "fused_siging"):
            yield from (TableRow(BY_NAME[name], "step", kernel, dtype) for dtype in DTYPES)


def axes(row: TableRow) -> dict[str, Any]:
    """Recurrent kernels are others where rows of q, k and v are no whole pieces of 16 bytes: a path of every dtype."""
    case, kernel = row.case, (row.kind, row.kernel)
    vectorised = case.dqk % 8 == 0 and case.dhv % 8 == 0
    return {"case": case.name, "kernel": kernel, "dtype": row.dtype, "path": (kernel, row.dtype, vectorised)}


ROWS = tuple(rows())
PAIRS = ("case", "kernel", "dtype")
_ran: set[TableRow | str] = set()


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


@pytest.mark.parametrize(
    "table_row", marked([(w,) for w in ROWS], lambda row: axes(*row), lambda row: str(*row), PAIRS)
)
def test_table(package: ModuleType, table_row: TableRow, report: Any) -> None:
    from support.gpu_table import Row, measure

    _ran.add(table_row)
    kinds = ("chunkwise", "sequence") if table_row.kind == "sequence" else "step"
    row = Row(table_row.case, package.kernel_info(table_row.kernel, kinds), table_row.dtype)
    measured, problems = measure(row, "cuda", truth_on="cpu")
    report.add(f"{row.kernel}, {CHIP}", row.dtype, row.case.name, measured)
    assert not problems, "\n".join(problems)


def test_a_normaliser_that_cancels(package: ModuleType) -> None:
    """l of a float32 sequence has a float's digits where its terms, the initial state's alone, have a tenth of them."""
    from xlstm_hip._core.ops import OPS

    case = Case("l cancels", 40, 64, 32, heads=8, states=True, gates="enter nothing")
    inputs, _ = make(case, torch.float32)
    arguments = [inputs[name].to("cuda") for name in ("q", "k", "v", "i", "f", *STATES)]
    _, l, *_ = OPS.mlstm_sequence(*arguments, None, True, True, case.eps, False)
    x = {name: value.double() for name, value in inputs.items()}
    left = torch.exp(torch.nn.functional.logsigmoid(x["f"]).cumsum(-1) + x["m_initial"])
    terms = case.dqk**-0.5 * left[..., None] * x["q"] * x["n_initial"][..., None, :]
    expected = terms.sum(-1)
    assert (terms.abs().sum(-1) > 100 * expected.abs()).any()
    off = (l.cpu().double() - expected).abs() / expected.abs()
    assert float(off.max()) <= torch.finfo(torch.float32).eps


# Whole short sequences, without states: the parallel schedule. Chunks with a tail, an odd number of them, more than a
# block has waves, and the most; head dims below and above a tile of columns.
PARALLEL = (
    Case("1 token, no states", 1, 24, 40),
    Case("70 tokens, no states", 70, 56, 136, batch=2),
    Case("270 tokens, no states, bshd", 270, 136, 64, layout="bshd"),
    Case("1024 tokens, no states", 1024, 16, 16, heads=1),
    Case("150 tokens, no states, forgets wholly", 150, 32, 32, gates="forget some wholly"),
    Case("200 tokens, no states, forgets nothing", 200, 32, 32, gates="forget nothing"),
    Case("100 tokens, no states, half gates", 100, 32, 48, wide_gates=False),
    Case("65 tokens, no states, a constant normaliser", 65, 32, 32, normalizer_grad=False),
)
WITHOUT_STATES = ("h", "dq", "dk", "dv", "di", "df")


def without_states(case: Case, inputs: dict[str, torch.Tensor], dh: torch.Tensor, **options: Any) -> dict[str, Any]:
    from xlstm_hip import mlstm_interface

    turned = case.layout == "bshd"
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    tensors = {name: x.transpose(1, 2).contiguous() if turned else x for name, x in leaves.items()}
    options = {"eps": case.eps, "normalizer_grad": case.normalizer_grad} | options
    h = mlstm_interface(**tensors, layout="bshd" if turned else "bhsd", **options)
    h = h.transpose(1, 2) if turned else h
    gradients = torch.autograd.grad(h, list(leaves.values()), dh)
    return {"h": h.detach().cpu()} | {f"d{name}": g.cpu() for name, g in zip(leaves, gradients, strict=True)}


def parallel_workgroups(device: ModuleType) -> int:
    return sum(c.workgroups for c in device.counters("parallel_", instructions=False))


@pytest.mark.parametrize("gate", ["exp", "sigmoid"])
@pytest.mark.parametrize("case", PARALLEL, ids=lambda case: case.name)
def test_without_states(package: ModuleType, device: ModuleType, case: Case, gate: str) -> None:
    from support import accuracy, reference
    from support.gpu_table import same_bits
    from support.poison import poisoned

    name = {"exp": "chunkwise--fused", "sigmoid": "chunkwise--fused_siging"}[gate]
    inputs, (dh, *_) = make(case, torch.bfloat16)
    on_device = {name: x.to("cuda") for name, x in inputs.items()}
    before = parallel_workgroups(device)
    with poisoned():
        actual = without_states(case, on_device, dh.to("cuda"), kernel=name)
    assert parallel_workgroups(device) > before
    zeros = [torch.zeros(case.batch, case.heads, *shape) for shape in ((case.dqk, case.dhv), (case.dqk,), (1,))]
    wide = reference.doubled(inputs)
    options = {"eps": case.eps, "gate": gate, "normalizer_grad": case.normalizer_grad}
    true = accuracy.quantities(reference.truth, wide, [dh.double(), *(x.double() for x in zeros)], **options)
    expected = {name: true[name] for name in WITHOUT_STATES}
    plain = without_states(case, inputs, dh, kernel=accuracy.PLAIN[gate])
    floor = accuracy.FLOOR * torch.finfo(torch.bfloat16).eps
    allowed = {n: max(floor, 2 * error) for n, error in accuracy.errors_of(plain, expected).items()}
    measured = accuracy.Measured(accuracy.errors_of(actual, expected), allowed, allowed)
    accuracy.check(f"{case.name}, {gate}", measured)
    same_bits("again", without_states(case, on_device, dh.to("cuda"), kernel=name), actual)


# Of a packed row: tokens on their own and around a long sequence, and sequences that end within a chunk and with it.
JOINED = Case("a packed row as one sequence", 240, 16, 40, heads=8, lengths=(*(1,) * 97, 45, *(1,) * 90, 5, 2, 1))


@pytest.mark.parametrize("gate", ["exp", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_packed_row_as_one_sequence(package: ModuleType, dtype: torch.dtype, gate: str) -> None:
    from support import accuracy, reference
    from support.gpu_table import same_bits
    from support.poison import poisoned
    from xlstm_hip import _native

    case = JOINED
    plan = _native.plan_mlstm_gpu(
        "MI300X",
        case.sequences,
        case.heads,
        case.length,
        case.dqk,
        case.dhv,
        dtype.itemsize,
        stateless=True,
        packed=True,
    )
    assert plan["joined"]
    name = {"exp": "chunkwise--fused", "sigmoid": "chunkwise--fused_siging"}[gate]
    inputs, (dh, *_) = make(case, dtype)
    on_device, ends = {name: x.to("cuda") for name, x in inputs.items()}, torch.tensor(case.cu_seqlens)
    call = lambda: without_states(case, on_device, dh.to("cuda"), kernel=name, cu_seqlens=ends.to("cuda"))  # noqa: E731
    with poisoned():
        actual = call()
    wide = reference.doubled(inputs)
    expected = without_states(case, wide, dh.double(), kernel=accuracy.PLAIN[gate], cu_seqlens=ends)
    plain = without_states(case, inputs, dh, kernel=accuracy.PLAIN[gate], cu_seqlens=ends)
    eps = torch.finfo(dtype).eps
    allowed = {n: max(accuracy.FLOOR * eps, 2 * e) for n, e in accuracy.errors_of(plain, expected).items()}
    # df is a difference of sums over a chunk, of other sequences' terms too: 64 roundings, added as random errors.
    of_df = 2 * 64**0.5 * eps / 2
    allowed |= {n: max(most, of_df) for n, most in allowed.items() if n.startswith("df ")}
    accuracy.check(f"{case.name}, {gate}", accuracy.Measured(accuracy.errors_of(actual, expected), allowed, allowed))
    same_bits("again", call(), actual)


@pytest.mark.parametrize("name", CHECKS)
def test_check(package: ModuleType, name: str) -> None:
    from support import gpu_checks

    _ran.add(name)
    getattr(gpu_checks, name)("cuda")


NO_CODE = """
import emulated_torch
package = emulated_torch.import_package()
import torch
x = {name: torch.randn(1, 1, 20, 16).to("cuda") for name in "qkv"} | {g: torch.randn(1, 1, 20).to("cuda") for g in "if"}
try:
    print(package.mlstm_interface(**x).shape)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(("backend", "words"), [("", "no GPU code for gfx90c"), ("reference", "[1, 1, 20, 16]")])
def test_a_chip_without_code(package: ModuleType, backend: str, words: str) -> None:
    """An error that names it and those that there is code for; plain torch runs there where it was asked for."""
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": paths, "GFX942_STAND_IN_FOR": "gfx90c", "XLSTM_HIP_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", NO_CODE], capture_output=True, text=True, timeout=120, env=environment)
    assert words in done.stdout, done.stdout + done.stderr
    assert (f"only for {';'.join(built_archs())}" in done.stdout) == (not backend), done.stdout


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    rows_with_code = [row for row in up_to(LEAST_LEVEL, ROWS, axes, PAIRS) if has_code(row.dtype)]
    left_out = [str(x) for x in (*rows_with_code, *CHECKS) if x not in _ran]
    if left_out:
        pytest.skip(f"{len(left_out)} of the tests above were not chosen")
    check_every_kernel_ran(device, "test_mlstm.py")
