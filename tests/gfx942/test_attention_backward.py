# SPDX-License-Identifier: Apache-2.0
"""Attention's backward pass as gfx942 code against the truth: every argument with every other, every kernel.

Forward runs on the CPU, so that what is measured here depends on no other GPU kernel. Truth and plain torch do too.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from builds import CHIP, has_code
from kernels_ran import LEAST_LEVEL, check_every_kernel_ran, function_of
from support.attention.pairs import ON_A_GPU, RAGGED, pairwise  # noqa: E402
from support.representative import marked, up_to

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
VALUES: dict[str, list[Any]] = {
    "dtype": DTYPES,
    "heads": [(2, 2), (4, 2), (3, 1)],
    "dims": [(64, 64), (128, 128), (80, 80), (5, 3), (192, 128), (256, 256), (48, 72)],
    "lengths": [((37, 70), (37, 70)), ((1, 150), (1, 90)), ((70, 33), (70, 33)), ((40, 40), (40, 11)), ((200, 200),)],
    **ON_A_GPU,
}
ROWS = pairwise(VALUES, lambda row: True)
# Plain kernels: the masks alone.
MASKS = {name: values for name, values in VALUES.items() if name not in ("softcap", "alibi", "dropout_p", "scale")}
PLAIN_ROWS = pairwise(MASKS | {"dtype": DTYPES[:2]}, lambda row: True)
CLASSES = [(64, 64), (128, 128), (192, 128), (256, 256)]  # of head dims: a kernel for each
PAIRS = ("dtype", "layout", "window", "heads", "sink")  # of these, values meet in rows that run by default
_ran: set[str] = set()


def axes(row: dict[str, Any]) -> dict[str, Any]:
    """A row's own arguments, and what of them chooses the kernel."""
    head_dims = next(c for c in CLASSES if c[0] >= row["dims"][0] and c[1] >= row["dims"][1])
    bends = any(row.get(name) for name in ("softcap", "alibi", "dropout_p"))
    return row | {"kernel": (row["dtype"], head_dims, bends)}


def parameters(rows: list[dict[str, Any]]) -> list[Any]:
    names = {id(row): f"{n}-{str(row['dtype']).removeprefix('torch.')}" for n, row in enumerate(rows)}
    return marked([(row,) for row in rows], lambda one: axes(*one), lambda one: names[id(*one)], PAIRS)


def on_gpu(x: Any) -> Any:
    """A tensor with the same strides, in memory of its own that it shares with nothing."""
    if not isinstance(x, Tensor):
        return x
    storage = x.new_empty(0).set_(x.untyped_storage())
    return storage.to("cuda").as_strided(x.shape, x.stride(), x.storage_offset())


class OnGpu:
    """The attention ops, with the backward pass on the GPU; where it is deterministic, twice the same bits."""

    def __init__(self, ops: Any, deterministic: bool = True) -> None:
        self.ops, self.deterministic = ops, deterministic

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ops, name)

    def attention_backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        moved = [on_gpu(x) for x in arguments[:-1]] + [self.deterministic]
        if not self.deterministic:
            return tuple(x.cpu() for x in self.ops.attention_backward(*moved))
        results, again = (self.ops.attention_backward(*moved) for _ in range(2))
        for one, repeated in zip(results, again, strict=True):
            assert torch.equal(one.cpu().view(torch.uint8), repeated.cpu().view(torch.uint8))
        return tuple(x.cpu() for x in results)


@pytest.fixture
def problem(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """tests/support/attention/problem.py, with gradients from the GPU."""
    from support.attention import problem
    from support.poison import poisoned
    from xlstm_hip.attention import ops

    monkeypatch.setattr(ops, "OPS", OnGpu(ops.OPS))
    with poisoned():
        yield problem


@pytest.fixture
def one_pass(problem: ModuleType) -> ModuleType:
    """The same with dq added by atomics, where the plan has that."""
    from xlstm_hip.attention import ops

    ops.OPS.deterministic = False
    return problem


def check(problem: ModuleType, case: Any) -> None:
    """As the table of the CPU does. Forward's float32 scores are rounded elsewhere on the CPU than backward's are here,
    so that these do not cancel: a weight may be wrong by a rounding of the largest score more than on the CPU."""
    actual = problem.our_results(case)
    try:
        problem.check(case, actual)
    except AssertionError:
        if case.dtype != torch.float32:
            raise
        from xlstm_hip.attention import ops

        true, on_gpu_ops = problem.true_results(case), ops.OPS
        ops.OPS = on_gpu_ops.ops
        try:
            allowed = problem.errors(problem.our_results(case), true)
        finally:
            ops.OPS = on_gpu_ops
        largest = true["lse"][true["lse"].isfinite()].abs().max()
        floor = (problem.FLOOR + float(largest)) * problem.EPS[case.dtype]
        over = {n: (x, allowed[n]) for n, x in problem.errors(actual, true).items() if not x <= 2 * allowed[n] + floor}
        assert not over, f"{case}\n{over}"


@pytest.mark.parametrize("row", parameters(ROWS))
def test_row(problem: ModuleType, row: dict[str, Any]) -> None:
    _ran.add(str(row))
    check(problem, problem.Case(**row))


@pytest.mark.parametrize("row", parameters(PLAIN_ROWS))
def test_masks_alone(problem: ModuleType, row: dict[str, Any]) -> None:
    _ran.add(str(row))
    check(problem, problem.Case(**row))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_all_kinds(problem: ModuleType, dtype: torch.dtype, causal: bool) -> None:
    """Packed: empty sequences, queries without keys, more queries than keys."""
    case = problem.Case(dtype=dtype, lengths=RAGGED, layout="packed", causal=causal, heads=(3, 3), dims=(40, 40))
    check(problem, case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", CLASSES, ids=str)
def test_parts(problem: ModuleType, dtype: torch.dtype, dims: tuple[int, int]) -> None:
    """The rows of one key head dealt out to several blocks, and the kernels that bend scores."""
    _ran.add(f"{dtype} {dims}")
    check(problem, problem.Case(dtype, (8, 1), dims, ((160, 100),), causal=True, alibi="h"))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("dims", CLASSES, ids=str)
def test_full_tiles(problem: ModuleType, dtype: torch.dtype, dims: tuple[int, int]) -> None:
    """Whole tiles of aligned rows: walks without branches for other layouts, through both query heads of a key head."""
    check(problem, problem.Case(dtype, (4, 2), dims, ((96, 160), (96, 160)), causal=True))


ONE_PASS: dict[str, dict[str, Any]] = {
    "tails": {"lengths": ((37, 70), (37, 131))},
    "causal, shared heads": {"lengths": ((200, 200),), "heads": (4, 2), "causal": True},
    "parts": {"lengths": ((160, 100),), "heads": (8, 1), "causal": True, "backward_plan": (("parts", 3),)},
    "window, sink": {"lengths": ((70, 140), (70, 140)), "window": (40, 9), "sink": True},
    "packed": {"lengths": RAGGED, "layout": "packed", "causal": True, "heads": (2, 1)},
    "strided, padded": {"lengths": ((70, 33), (70, 61)), "layout": "strided", "leftpad": True, "unused": True},
}


ONE_PASS_DIMS = [(64, 64), (128, 128)]


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("dims", ONE_PASS_DIMS, ids=str)
@pytest.mark.parametrize("row", ONE_PASS.values(), ids=ONE_PASS)
def test_one_pass(one_pass: ModuleType, dtype: torch.dtype, dims: tuple[int, int], row: dict[str, Any]) -> None:
    _ran.add(f"one pass {dtype} {dims} {row}")
    check(one_pass, one_pass.Case(**({"dtype": dtype, "heads": (2, 2), "dims": dims} | row)))


def test_last_round_in_parts(one_pass: ModuleType) -> None:
    """305 blocks of keys, for 304 compute units: the last of each head is divided, and the others are not."""
    from xlstm_hip import _native

    case = one_pass.Case(dtype=torch.bfloat16, heads=(61, 61), dims=(128, 128), lengths=((768, 640),))
    plan = _native.plan_attention_backward_gpu("MI300X", 1, 61, 61, 768, 640, 128, 128, 2, panels=True, even=True)
    assert plan["parts"] > 1 and plan["of_keys"]["grid"] == 61 * (4 + plan["parts"])
    check(one_pass, case)


PRODUCT = {  # of bfloat16: gfx950 has one of twice the k
    "gfx90a": "v_mfma_f32_16x16x16bf16_1k",
    "gfx942": "v_mfma_f32_16x16x16_bf16",
    "gfx950": "v_mfma_f32_16x16x32_bf16",
}


def test_products_of_one_pass(one_pass: ModuleType, device: ModuleType) -> None:
    """The kernel whose instructions follow single products (multiply_each) has the chip's longest."""
    check(one_pass, one_pass.Case(**{"dtype": torch.bfloat16, "heads": (2, 2), "dims": (128, 128)} | ONE_PASS["tails"]))
    counted = device.counters("one_pass_kernel")
    ran = [x for x in counted if function_of(x.kernel.name) == "one_pass_kernel" and "BFloat16" in x.kernel.name]
    products = {i.mnemonic for x in ran for i in x.instructions if i.mnemonic.startswith("v_mfma")}
    assert products == {PRODUCT[CHIP]}


@pytest.mark.parametrize("planted", ["dq", "dk", "dv", "dsink"])
def test_a_wrong_result_fails(problem: ModuleType, planted: str) -> None:
    case = problem.Case(causal=True, sink=True, dropout_p=0.2)
    actual = problem.our_results(case)
    problem.check(case, actual)
    actual[planted] = actual[planted] * 1.0001
    with pytest.raises(AssertionError, match=planted):
        problem.check(case, actual)


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    rows = [row for table in (ROWS, PLAIN_ROWS) for row in up_to(LEAST_LEVEL, table, axes, PAIRS)]
    expected = {str(row) for row in rows if has_code(row["dtype"])}
    expected |= {f"{dtype} {dims}" for dtype in DTYPES for dims in CLASSES if has_code(dtype)}
    expected |= {
        f"one pass {dtype} {dims} {row}"
        for dtype in DTYPES[:2]
        for dims in ONE_PASS_DIMS
        for row in ONE_PASS.values()
        if has_code(dtype)
    }
    if not expected <= _ran:
        pytest.skip("some of the tests above were not chosen")
    check_every_kernel_ran(device, "test_attention_backward.py")
