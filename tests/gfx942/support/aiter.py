# SPDX-License-Identifier: Apache-2.0
"""AMD's own kernels for gfx942, out of AITER's wheel: the code objects as they are shipped, and how each is called.

They are written by hand. The checks in BY_HAND complain of what such code does on purpose and compilers never do."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import builds
import device
import wheels
from tensors import array

WHEEL = Path(__file__).with_name("aiter_wheel.txt")
FOLDER = builds.BUILD / "aiter"
PARTS = FOLDER / hashlib.sha256(WHEEL.read_bytes()).hexdigest()[:12]
MEMBERS = (
    r"aiter_meta/hsa/gfx942/(fmha_v3_fwd/MI300|fmha_v3_bwd|bf16gemm|mla)/\w+\.co",
    r"aiter_meta/hsa/gfx942/layer_norm\.co",
    r"[^/]+\.dist-info/LICENSE",
)
BY_HAND = ("ieee-mode", "divergent-barrier", "buffer-offset", "buffer-stride", "argument-block")


def ensure_code() -> None:
    """Downloads the wheel and unpacks it, once for each aiter_wheel.txt. wheels.NotDownloaded where pip cannot."""
    wheels.make_once(PARTS, lambda folder: wheels.unpack(WHEEL, folder, MEMBERS))


@functools.cache
def _module(file: str) -> device.Module:
    return device.Module((PARTS / "aiter_meta/hsa/gfx942" / file).read_bytes())


def _mangled(name: str) -> str:
    return f"_ZN5aiter{len(name)}{name}E"


def _slots(values: Sequence[Tensor | int | float | None], size: int = 16) -> bytes:
    """The argument block: a slot for each value. What AITER leaves unset behind it is set here."""
    block = b""
    for x in values:
        if isinstance(x, float):
            one = struct.pack("<f", x)
        elif isinstance(x, int):
            one = struct.pack("<I", x)
        else:
            one = struct.pack("<Q", 0 if x is None else x.data_ptr())
        block += one + b"\xa5" * (size - len(one))
    return block


def _launch(file: str, kernel: str, grid: tuple[int, int, int], threads: int, values: Sequence, block: bytes) -> None:
    arrays = [array(x) for x in values if isinstance(x, Tensor)]
    _module(file).launch_block(kernel, grid, threads, block, arrays)


# ---- attention


def forward(variant: str, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(B, S, H, 128) in bfloat16 -> out, lse (B, H, S). A variant: "rtne", "causal_rtz"."""
    batch, queries, heads, dim = q.shape
    out, lse = torch.full_like(q, torch.nan), torch.full((batch, heads, queries), torch.nan)
    values = _forward_values(q, k, v, out, lse, scale, queries * heads * dim, k.shape[1] * k.shape[2] * dim)
    values += [None, None, queries * 4, None, None]
    blocks = -(-queries // 256)
    blocks = -(-blocks // 2) if "causal" in variant else blocks
    _launch_forward(variant, (blocks, heads, batch), values)
    return out, lse


def forward_of_group(
    variant: str, q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    """Sequences one behind the other, (tokens, H, 128), where each begins and the end -> out, lse (H, tokens)."""
    tokens, heads, _ = q.shape
    out, lse = torch.full_like(q, torch.nan), torch.full((heads, tokens), torch.nan)
    offsets = torch.tensor(starts, dtype=torch.int32)
    longest = int((offsets[1:] - offsets[:-1]).max())
    values = _forward_values(q[None], k[None], v[None], out[None], lse, scale, 0, 0)
    values += [offsets, offsets, tokens * 4, offsets, offsets]
    blocks = -(-longest // 256)
    blocks = -(-blocks // 2) if "causal" in variant else blocks
    _launch_forward(f"{variant}_group", (heads, len(starts) - 1, blocks), values)
    return out, lse


def _forward_values(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, of_batch: int, of_batch_kv: int
) -> list[Tensor | int | float | None]:
    """Sizes are in bytes."""
    _, queries, heads, dim = q.shape
    keys, heads_kv = k.shape[1:3]
    row, row_kv, head = heads * dim * 2, heads_kv * dim * 2, dim * 2
    tune = 5 if heads % 8 == 0 else 3
    return [
        out, q, k, v, lse, scale, queries, row, 256 * row, head, 2 * of_batch, heads // heads_kv,
        row_kv, head, 2 * of_batch_kv, tune, 1, keys, dim, dim, heads,
        row_kv, head, 2 * of_batch_kv, row, head, 2 * of_batch,
    ]  # fmt: skip


def _launch_forward(variant: str, grid: tuple[int, int, int], values: Sequence) -> None:
    name = f"hd128_bf16_{variant}"
    kernel = _mangled(f"fmha_fwd_{name}")
    _launch(f"fmha_v3_fwd/MI300/fwd_{name}.co", kernel, grid, 512, values, _slots(values))


def backward(
    accumulator: str, rounding: str, causal: bool, q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, lse: Tensor,
    delta: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(B, S, H, 128), lse and delta (B, H, S) -> dq, dk, dv. dq is added up in bfloat16 ("a16") or in float32 ("a32",
    and "any", which takes sequences that are no multiple of 64)."""
    batch, tokens, heads, dim = q.shape
    keys = k.shape[1]
    dq = torch.zeros_like(q) if accumulator == "a16" else torch.zeros(batch, heads, tokens, dim)
    dk, dv = (torch.full((batch, keys, heads, dim), torch.nan, dtype=q.dtype) for _ in range(2))
    row, head = heads * dim * 2, dim * 2
    tensors = [dq, dk, dv, q, k, v, d_out, lse, delta, scale, 1.4426950408889634]
    if accumulator == "any":
        each = {x: [head, x * row, row] for x in (tokens, keys)}  # a step of a head, a sequence, a token
        values = [*tensors, 1, tokens, keys, dim, heads, *each[tokens]]
        values += [*each[keys], *each[keys], *each[tokens], *each[keys], *each[keys]]
        block = _slots(values, 8)
    else:
        values = [*tensors, tokens, 192 * row, head, tokens * row, row, 1, head, keys * row, row, row]
        block = _slots(values)
    blocks = -(-keys // 192)
    blocks = -(-blocks // 2) if causal else blocks
    suffix = {"a16": "a16_{}", "a32": "a32_{}", "any": "a32_{}_psskddv"}[accumulator].format(rounding)
    name = f"bwd_hd128_bf16_{'causal_' if causal else ''}{suffix}"
    _launch(f"fmha_v3_bwd/{name}.co", _mangled(f"fmha_{name}"), (blocks, heads, batch), 256, values, block)
    return (dq if accumulator == "a16" else dq.transpose(1, 2)), dk, dv


# ---- others


def mla_decode(
    q: Tensor, kv: Tensor, pages: Tensor, lengths: Sequence[int], splits: int, scale: float
) -> tuple[Tensor, Tensor | None]:
    """q (B, H, 576) with 16 or 128 heads, kv (pages, 1, 1, 576) one token a page, the pages of each sequence one behind
    the other -> parts (B, splits, H, 512), and their lse (B, splits, H). Both in bfloat16, or both in float8_e4m3fnuz.
    With 128 heads and one split the part is the output in bfloat16, and there is no lse."""
    batch, heads, dim = q.shape
    has_bytes = q.dtype == torch.float8_e4m3fnuz
    whole = heads == 128 and splits == 1
    parts = torch.full((batch, splits, heads, 512), torch.nan, dtype=torch.bfloat16 if whole else torch.float32)
    lse = torch.full((batch, splits, heads), torch.nan)
    ends = np.cumsum([0, *lengths])
    key_starts, last, q_starts, split_starts = (
        torch.tensor(x, dtype=torch.int32)
        for x in (ends, np.ones(batch), np.arange(batch + 1), np.arange(batch + 1) * splits)
    )
    row = dim * q.element_size()
    values = [
        parts, lse, q, kv, key_starts, pages, last, scale, heads, splits, heads * row, row, 0, q_starts,
    ]  # fmt: skip
    name = f"mla_dec_stage1_bf16_a16w16_subQ{heads}_mqa{heads}"
    if has_bytes:
        values += [split_starts, None, torch.ones(1), torch.ones(1)]
        name = "mla_a8w8_" + {16: "qh16_qseqlen1_gqaratio16", 128: "qh128_m32x4_n16x2_msk1"}[heads]
    _launch(f"mla/{name}.co", _mangled(name), (1, batch, splits), 256, values, _slots(values))
    return parts, None if whole else lse


def gemm(rows: int, a: Tensor, b: Tensor, splits: int) -> Tensor:
    """a (M, K), b (N, K) in bfloat16 -> a b^T in float32, by the kernel whose tile has so many rows and 64 columns."""
    (m, k), n = a.shape, b.shape[0]
    out = torch.zeros(m, n) if splits > 1 else torch.full((m, n), torch.nan)
    values = [out, None, a, b, 1.0, 0.0, 0, 0, n * 4, 0, k * 2, 0, k * 2, 0, m, n, k, splits]
    name = f"bf16gemm_outf32_tn_{rows}x64_pf3"
    block = _slots(values)[:-4]  # the last slot is shorter
    _launch(f"bf16gemm/{name}.co", _mangled(name), (-(-n // 64), -(-m // rows), splits), 256, values, block)
    return out


def layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Of x + residual, (M, 8192): the norm, and the sum."""
    m, n = x.shape
    out, total = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    values = [out, x, weight, bias, eps, m, n, total, residual, None, None]
    _launch("layer_norm.co", "layer_norm_kernel_func", (-(-m // 2), 1, 1), 256, values, _slots(values))
    return out, total
