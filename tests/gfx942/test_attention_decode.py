# SPDX-License-Identifier: Apache-2.0
"""Decoding's public functions, its kernels run as gfx942 code: append, rotary embedding, combination, few rows against
caches of every kind, MLA. Every kernel of them that the library holds must have run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from builds import CHIP, has_code
from kernels_ran import check_every_kernel_ran, is_enough
from support.representative import up_to

_ran: set[str] = set()


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


def axes(row: dict[str, Any]) -> dict[str, Any]:
    """A row's own arguments, and what of them chooses the kernel."""
    if "features" in row:  # MLA: kernels for up to 16 rows, for up to 64, and for more
        rows = row["heads"] * row["queries"]
        return row | {"kernel": (row["dtype"], row.get("stored"), row["features"], (rows > 16) + (rows > 64))}
    modified = any(row.get(name) for name in ("softcap", "alibi"))
    return row | {"kernel": (row["dtype"], row.get("stored"), row["dims"], modified, row["queries"] > 5)}


def with_products(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the chip multiplies, and of what it widens a few."""
    own = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}.get(CHIP)
    multiplied = [row | {"multiplied": True} for row in rows if row["stored"] == own]
    return multiplied + [row for row in rows if row["stored"] != own][:2]


@pytest.mark.parametrize("table", ["rows", "mla", "float8", "float8 mla", "products mla"])
def test_table(package: ModuleType, table: str, level: str) -> None:
    """In one test: rows are known when the package is there. Every row has its say."""
    from support.attention import decode_rows

    rows, run, pairs = {
        "rows": (decode_rows.gpu_rows(), decode_rows.run_row, ("dtype", "cache", "rotary", "new")),
        "mla": (decode_rows.gpu_mla_rows(), decode_rows.run_mla, None),
        "float8": (decode_rows.gpu_float8_rows(), decode_rows.run_row, ("stored", "cache", "rotary", "new")),
        "float8 mla": (decode_rows.gpu_float8_mla_rows(), decode_rows.run_mla, None),
        "products mla": (with_products(decode_rows.products_mla_rows()), decode_rows.run_mla, None),
    }[table]
    rows = [row for row in up_to(level, rows, axes, pairs) if has_code(row["dtype"])]
    failed = []
    for row in rows:
        try:
            run(row, "cuda")
        except Exception as error:
            failed.append(f"{row}: {error}")
    if is_enough(level):
        _ran.add(table)
    assert not failed, f"{len(failed)} of {len(rows)} rows\n" + "\n".join(failed)


@pytest.mark.parametrize("dims", [(40, 64), (128, 128), (192, 128), (256, 256)], ids=str)
def test_attention_weights_of_keys_in_float8(package: ModuleType, dims: tuple[int, int]) -> None:
    """Their numbers are numbers of q's dtype, too: all results are those of such keys."""
    from support.attention import decode_rows
    from xlstm_hip import attention

    rng = torch.Generator().manual_seed(dims[0])
    for dtype in (torch.bfloat16, torch.float16):
        if not has_code(dtype):
            continue
        q, k, v = (torch.randn(1, n, 2, d, generator=rng) for n, d in ((20, dims[0]), (70, dims[0]), (70, dims[1])))
        for stored in decode_rows.FLOAT8:
            k8, v8 = decode_rows.float8_of(k, stored), decode_rows.float8_of(v, stored)
            results = []
            for keys, values in ((k8, v8), (k8.to(dtype), v8.to(dtype))):
                torch.manual_seed(5)
                found = attention.flash_attn_func(
                    q.to(dtype).to("cuda"), keys.to("cuda"), values.to("cuda"), dropout_p=0.3, return_attn_probs=True
                )
                results.append([x.float().cpu() for x in found])
            for actual, right in zip(*results, strict=True):
                torch.testing.assert_close(actual, right, atol=2e-3, rtol=2 * torch.finfo(dtype).eps)
    _ran.add("float8 weights")


def test_rotary_pairs_that_are_no_whole_pieces(package: ModuleType) -> None:
    """And everything else that a token may be moved with one feature at a time."""
    from support.attention import decode_rows

    row = decode_rows.gpu_rows()[0] | {"new": 7, "rotary_dim": 6, "cache": "rows", "dims": (32, 48)}
    for dtype in filter(has_code, decode_rows.GPU_DTYPES):
        for rotary in ("interleaved", "halves"):
            decode_rows.run_row(row | {"dtype": dtype, "rotary": rotary}, "cuda")
    _ran.add("rotary")


@pytest.mark.parametrize("splits", [1, 3, 40])
def test_combine(package: ModuleType, splits: int) -> None:
    from xlstm_hip import attention

    outs, lses = torch.randn(splits, 2, 3, 4, 72), 5 * torch.randn(splits, 2, 3, 4)
    lses[0, :, 0] = torch.inf
    lses[-1, 1] = -torch.inf
    outs[lses.isinf()] = torch.nan
    out, lse = attention.flash_attn_combine(outs.to("cuda"), lses.to("cuda"))
    expected, expected_lse = attention.flash_attn_combine(outs, lses)
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(lse.cpu(), expected_lse)
    # Strides and a number of features that are no whole pieces.
    out, lse = attention.flash_attn_combine(outs.to("cuda")[..., 1:70], lses.to("cuda"), out_dtype=torch.bfloat16)
    torch.testing.assert_close(out.cpu(), expected[..., 1:70].bfloat16())
    _ran.add("combine")


def test_places_outside_the_cache_are_left_out(package: ModuleType) -> None:
    """What the host cannot check reads and writes nothing outside the tensors."""
    from xlstm_hip import attention

    q, new = torch.randn(2, 1, 4, 64).to("cuda"), torch.randn(2, 3, 2, 64).to("cuda")
    pools = [torch.zeros(6, 16, 2, 64).to("cuda") for _ in range(2)]
    table = torch.tensor([[0, 99], [-5, 4]]).int().to("cuda")
    out = attention.flash_attn_with_kvcache(
        q, *pools, new, new, cache_seqlens=torch.tensor([15, 31]).int().to("cuda"), block_table=table
    )
    assert out.isfinite().all()
    written = pools[0].cpu().abs().sum((2, 3)).nonzero().tolist()
    assert written == [[0, 15], [4, 15]]  # the others' pages and places are not there


def test_what_is_refused_leaves_the_cache(package: ModuleType) -> None:
    from support.attention import decode_rows

    decode_rows.refuse_and_keep_the_cache("cuda")


def test_nan_goes_on(package: ModuleType) -> None:
    from support.attention import decode_rows

    decode_rows.nan_goes_on("cuda")


def test_mla_says_what_it_lacks(package: ModuleType) -> None:
    from xlstm_hip import attention

    q, cache = torch.randn(1, 1, 8, 576).to("cuda"), torch.randn(1, 9, 1, 576).to("cuda")
    used = torch.tensor([9]).to("cuda")
    with pytest.raises(RuntimeError, match="q: expected bfloat16 or float16 on a GPU with head dims of 576 and 512"):
        attention.flash_mla_with_kvcache(q, cache, None, used, 512)


def test_mla_whose_last_parts_are_short(package: ModuleType) -> None:
    """As many blocks as leave compute units for short ones: by the plan, 5 parts of 64 sequences on an MI300X."""
    from xlstm_hip import attention

    g = torch.Generator().manual_seed(5)
    lengths = torch.tensor([37 * n % 211 for n in range(64)], dtype=torch.int32)
    q = torch.randn(64, 1, 128, 512, generator=g).bfloat16()
    cache = torch.randn(64, 211, 1, 512, generator=g).bfloat16()
    arguments = (q.to("cuda"), cache.to("cuda"), None, lengths.to("cuda"), 512)
    out, lse = attention.flash_mla_with_kvcache(*arguments, plan={"splits": 5})
    whole, whole_lse = attention.flash_mla_with_kvcache(*arguments, plan={"splits": 1})
    torch.testing.assert_close(lse, whole_lse, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(out.float(), whole.float(), atol=2**-8, rtol=2**-6)


def test_a_planted_error_is_seen(package: ModuleType) -> None:
    """A table entry that points at another page."""
    from support.attention import decode_rows

    row = decode_rows.gpu_mla_rows()[0] | {"page": 64}
    decode_rows.run_mla(row, "cuda")
    move = torch.Tensor.to

    def moved(x: torch.Tensor, *where: object, **how: object) -> torch.Tensor:
        y = move(x, *where, **how)
        if where == ("cuda",) and y.dim() == 2 and y.dtype == torch.int32:
            y[0, 1] = y[0, 0]
        return y

    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match="error"):
        patch.setattr(torch.Tensor, "to", moved)
        decode_rows.run_mla(row, "cuda")


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    left_out = {"rows", "mla", "float8", "float8 mla", "products mla", "float8 weights", "rotary", "combine"} - _ran
    if left_out:
        pytest.skip(f"not chosen: {left_out}")
    check_every_kernel_ran(device, "test_attention_decode.py")
