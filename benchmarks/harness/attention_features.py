# SPDX-License-Identifier: Apache-2.0
"""Attention with features: windows, packed sequences, caches in pages, and MLA. Inputs, float64 truth, ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xlstm_hip.attention import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from xlstm_hip.bench import attention
from xlstm_hip.bench.operators import OPERATORS
from xlstm_hip.bench.registry import DTYPES, XLSTM_HIP, Call, Implementation, Tensors
from xlstm_hip.reference.attention import attention as plain_attention

MLA_VALUES, MLA_BEYOND = 512, 64  # features of values, and what keys have beyond


@dataclass(frozen=True)
class Cell(attention.Cell):
    """As without features; or MLA, one token of each sequence against a latent cache ("mla")."""

    window: int | None = None  # tokens before its own that a query sees
    ends: tuple[int, ...] = ()  # where packed sequences begin and end; the batch is 1 then
    page: int = 0  # tokens of a page of the cache; 0: flat, of MLA one page a sequence

    @property
    def pairs(self) -> float:
        if self.window is not None:
            return self.batch * self.heads * float(self.tokens * self.window - self.window**2 / 2)
        if self.ends:
            return self.heads * sum(
                (end - begin) ** 2 / 2 for begin, end in zip(self.ends, self.ends[1:], strict=False)
            )
        return super().pairs

    @property
    def flops(self) -> float:
        if self.work == "mla":
            return 2.0 * (2 * MLA_VALUES + MLA_BEYOND) * self.batch * self.heads * self.tokens
        return super().flops

    @property
    def bytes(self) -> int:
        if self.work == "mla":
            return self.batch * self.tokens * (MLA_VALUES + MLA_BEYOND) * DTYPES[self.dtype].itemsize
        return super().bytes


def make_inputs(cell: Cell, device: torch.device) -> Tensors:
    if cell.work != "mla":
        return attention.make_inputs(cell, device)
    rng = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        shape = (*shape, MLA_VALUES + MLA_BEYOND)
        return torch.randn(shape, generator=rng, device=device, dtype=DTYPES[cell.dtype])

    return {"q": normal(cell.batch, 1, cell.heads), "cache": normal(cell.batch, cell.tokens, 1)}


def _of_last_sequence(cell: Cell, tensors: Tensors) -> Tensors:
    return {name: x[:, cell.ends[-2] :] if cell.ends else x[-1:] for name, x in tensors.items()}


def truth(cell: Cell, inputs: Tensors) -> Tensors:
    last_sequence = _of_last_sequence(cell, inputs)
    if cell.work == "mla":
        q, cache = last_sequence["q"][:, :, -1:].double(), last_sequence["cache"].double()
        return {"out": plain_attention(q, cache, cache[..., :MLA_VALUES])[0]}
    rules = {} if cell.window is None else {"window_size": (cell.window, 0)}
    return attention.truth(cell, last_sequence, **rules)


def errors(cell: Cell, results: Tensors, true: Tensors) -> dict[str, float]:
    return attention.errors(cell, _of_last_sequence(cell, results), true)


def _packed(cell: Cell, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    ends = torch.tensor(cell.ends, device=device, dtype=torch.int32)
    longest = max(end - begin for begin, end in zip(cell.ends, cell.ends[1:], strict=False))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # views, backward too
        out = flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, causal=cell.causal)
        assert isinstance(out, Tensor)
        return out[None]

    return call


def _paged(cell: Cell, inputs: Tensors) -> Call:
    """The same tokens, elsewhere."""
    table = torch.randperm(cell.tokens // cell.page, device=inputs["q"].device).int()[None]
    pages = []
    for x in (inputs["k"], inputs["v"]):
        pool = torch.empty_like(x).view(-1, cell.page, cell.key_heads, cell.head_dim)
        pool[table[0].long()] = x.view_as(pool)
        pages.append(pool)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = flash_attn_with_kvcache(q, k, v, cache_seqlens=cell.tokens, block_table=table)
        assert isinstance(out, Tensor)
        return out

    return attention.prepared(cell, {"q": inputs["q"], "k": pages[0], "v": pages[1]}, forward)


def _mla(cell: Cell, inputs: Tensors) -> Call:
    q, cache = inputs["q"], inputs["cache"]
    pages = cache.view(-1, cell.page or cell.tokens, 1, cache.shape[-1])
    table = torch.arange(len(pages), device=q.device, dtype=torch.int32).view(cell.batch, -1)
    lengths = torch.full((cell.batch,), cell.tokens, device=q.device, dtype=torch.int32)
    older = get_mla_metadata(lengths, cell.heads, 1)
    return lambda: {"out": flash_mla_with_kvcache(q, pages, table, lengths, MLA_VALUES, *older)[0]}


def _fused(cell: Cell, inputs: Tensors) -> Call:
    if cell.work == "mla":
        return _mla(cell, inputs)
    if cell.page:
        return _paged(cell, inputs)
    if cell.ends:
        return attention.prepared(cell, inputs, _packed(cell, inputs["q"].device))
    if cell.window is not None:
        side = (cell.window, 0)
        return attention.prepared(
            cell, inputs, lambda q, k, v: flash_attn_func(q, k, v, causal=cell.causal, window_size=side)
        )
    return attention.BESIDE_TORCH[0].prepare(cell, inputs)


OPERATOR = replace(
    OPERATORS["attention"],
    inputs=make_inputs,
    truth=truth,
    errors=errors,
    implementations=(Implementation("ours", XLSTM_HIP, _fused),),
)
