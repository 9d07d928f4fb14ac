# SPDX-License-Identifier: Apache-2.0
"""Attention's public functions, the forward kernels run as gfx942 code: every class of head dims, rows of the table of
arguments, pages, parts of the keys, and errors that only a GPU has."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from builds import has_code
from kernels_ran import check_every_kernel_ran, function_of, is_enough
from support.representative import up_to

_ran: set[str] = set()


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


def axes(case: Any) -> dict[str, Any]:
    """A case's own arguments, and what of them chooses the kernels: with dropout there is one that writes weights."""
    from support.attention.gpu_rows import CLASSES

    head_dims = next(c for c in CLASSES if c[0] >= case.dims[0] and c[1] >= case.dims[1])
    bends = bool(case.softcap or case.alibi or case.dropout_p)
    chosen = {"kernel": (case.dtype, head_dims, bends), "weights": (case.dtype, head_dims, case.dropout_p > 0)}
    return {**vars(case), **chosen}


@pytest.fixture(scope="module")
def cases(package: ModuleType, device: ModuleType, level: str) -> list[Any]:
    from support.attention.gpu_rows import rows

    p = device.properties()
    chip = (p["arch"], p["compute_units"], p["lds_bytes"])
    chosen = up_to(level, list(rows(chip)), axes, pairs_of=("dtype", "layout", "window", "block_size"))
    return [case for case in chosen if has_code(case.dtype)]


def test_table(package: ModuleType, cases: list[Any], level: str) -> None:
    """In one test: rows are known when the package is there. Every row has its say."""
    from support.attention.gpu_rows import measure

    failed = []
    for n, case in enumerate(cases):
        try:
            measure(case, "cuda", backward=False)
        except Exception as error:
            failed.append(f"row {n}: {error}")
    _ran.add(level)
    assert len(cases) > (20 if has_code(torch.float32) else 5)
    assert not failed, f"{len(failed)} of {len(cases)} rows\n" + "\n".join(failed)


@pytest.mark.parametrize("planted", ["out", "lse"])
def test_a_wrong_result_fails(package: ModuleType, planted: str) -> None:
    from support.attention.problem import Case, check, our_results

    case = Case(torch.bfloat16, causal=True, sink=True)
    actual = our_results(case, "cuda", backward=False)
    check(case, actual, "cuda")
    actual[planted] = actual[planted] * 1.1
    with pytest.raises(AssertionError, match=planted):
        check(case, actual, "cuda")


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, dtype=dtype).to("cuda")


@pytest.mark.parametrize("page", [1, 16, 100, 256])
def test_pages(package: ModuleType, page: int) -> None:
    """Keys in pages give the bits of the same keys side by side; entries that are not used may point anywhere."""
    from xlstm_hip import attention

    q, k, v = draw(60, 4, 64), draw(170, 2, 64), draw(170, 2, 64)
    ends_q, ends_k = torch.tensor([0, 20, 60]).to("cuda"), torch.tensor([0, 93, 170]).to("cuda")
    per = -(-120 // page)
    table = torch.randperm(2 * per).reshape(2, per).int()
    pages = [torch.full((2 * per, page, 2, 64), math.nan, dtype=torch.bfloat16).to("cuda") for _ in range(2)]
    for b in range(2):
        count = int(ends_k[b + 1] - ends_k[b])
        for t in range(count):
            for cache, x in zip(pages, (k, v), strict=True):
                cache[table[b, t // page], t % page] = x[ends_k[b] + t]
        table[b, -(-count // page) :] = 10**6 * (-1) ** b
    arguments: dict[str, Any] = {"causal": True, "return_attn_probs": True}
    out, lse, _ = attention.flash_attn_varlen_func(
        q, *pages, ends_q, ends_k, 40, 93, **arguments, block_table=table.to("cuda")
    )
    expected, expected_lse, _ = attention.flash_attn_varlen_func(q, k, v, ends_q, ends_k, 40, 93, **arguments)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("tile", [False, True], ids=["any kernel", "the one with tiles"])
def test_parts_of_the_keys(package: ModuleType, dtype: torch.dtype, splits: int, tile: bool) -> None:
    """More parts than tiles are empty ones. A sink counts once."""
    from xlstm_hip import attention

    q, k, v = draw(2, 3, 4, 64, dtype=dtype), draw(2, 200, 2, 64, dtype=dtype), draw(2, 200, 2, 64, dtype=dtype)
    used = torch.tensor([200, 70]).int().to("cuda")
    options: dict[str, Any] = {
        "cache_seqlens": used, "causal": True, "return_softmax_lse": True, "sink": draw(4, dtype=dtype)
    }  # fmt: skip
    if tile:
        options["block_size"] = 32 if dtype == torch.float32 else 128
    unsplit, lse = attention.flash_attn_with_kvcache(q, k, v, num_splits=1, **options)
    actual, got_lse = attention.flash_attn_with_kvcache(q, k, v, num_splits=splits, **options)
    torch.testing.assert_close(got_lse, lse)
    near = 4 * torch.finfo(dtype).eps  # weights are rounded before their parts are scaled
    torch.testing.assert_close(actual, unsplit, rtol=near, atol=near * float(unsplit.abs().max()))
    again, _ = attention.flash_attn_with_kvcache(q, k, v, num_splits=splits, **options)
    assert torch.equal(actual, again)


def test_errors(package: ModuleType) -> None:
    from xlstm_hip import attention

    x = draw(1, 8, 2, 64)
    with pytest.raises(RuntimeError, match="q: expected float32, bfloat16 or float16 on a GPU, got float64"):
        attention.flash_attn_func(x.double(), x.double(), x.double())
    with pytest.raises(RuntimeError, match="block_size: expected 128 .* got 256"):
        attention.flash_attn_func(x, x, x, block_size=256)
    wide = draw(1, 8, 2, 264)
    with pytest.raises((RuntimeError, ValueError), match="256"):
        attention.flash_attn_func(wide, wide, wide)


@pytest.mark.parametrize("dim", [64, 128])
def test_weights_never_leave_their_registers(package: ModuleType, device: ModuleType, dim: int) -> None:
    """A forward call writes each tile of K and V to LDS, once a block, and no more: P^T is an operand as it lies."""
    from xlstm_hip import attention

    before = written_to_lds(device, "forward_kernel")
    length, heads = 512, 3
    attention.flash_attn_func(*(draw(1, length, heads, dim) for _ in range(3)))
    blocks = heads * length // 128  # of 128 rows
    assert written_to_lds(device, "forward_kernel") - before == blocks * 2 * length * dim * 2


def written_to_lds(device: ModuleType, kernel: str) -> int:
    """Bytes, by the kernels of that name."""
    width = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}
    total = 0
    for counted in device.counters(kernel):
        if function_of(counted.kernel.name) == kernel:
            for i in counted.instructions:
                if i.mnemonic.startswith("ds_write"):
                    total += i.lanes * width[i.mnemonic.split("_")[-1]] * (2 if "write2" in i.mnemonic else 1)
    return total


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    if not any(map(is_enough, _ran)):
        pytest.skip("the table above was not chosen")
    check_every_kernel_ran(device, "test_attention.py")
