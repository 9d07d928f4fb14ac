# SPDX-License-Identifier: Apache-2.0
"""Attention: shapes, inputs, float64 truth of a head; ours, plain torch, torch's own and the flash_attn package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..attention import flash_attn_func, flash_attn_with_kvcache
from ..reference.attention import attention as plain_attention
from .registry import (
    DTYPES,
    FLASH,
    PLAIN,
    SDPA,
    XLSTM_HIP,
    Call,
    Implementation,
    Point,
    Prepare,
    Scale,
    Tensors,
    relative_error,
)

GPU, CPU = ("cuda",), ("cpu",)
PRODUCTS = {"forward": 2, "backward": 5, "forward+backward": 7, "decode": 2}
GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True)
class Cell:
    """Self-attention of whole sequences; or one token each against a cache of so many keys ("decode")."""

    work: str
    dtype: str
    batch: int
    heads: int
    key_heads: int
    tokens: int
    head_dim: int
    causal: bool = True  # of a sequence; the one token sees all keys

    @property
    def title(self) -> str:
        heads = f"H{self.heads}" if self.heads == self.key_heads else f"H{self.heads}/{self.key_heads}"
        full = "" if self.causal else " full"
        return f"{self.work} {self.dtype} B{self.batch} {heads} S{self.tokens} D{self.head_dim}{full}"

    @property
    def flops(self) -> float:
        """The flops of the matrix products only: two forward, five backward."""
        return PRODUCTS[self.work] * 2 * self.head_dim * self.pairs

    @property
    def pairs(self) -> float:
        """The pairs of a query and a key that it sees: a causal mask hides half of them."""
        if self.work == "decode":
            return float(self.batch * self.heads * self.tokens)
        return self.batch * self.heads * float(self.tokens) ** 2 * (0.5 if self.causal else 1.0)

    @property
    def bytes(self) -> int:
        """Inputs and results once; in a backward pass q, k, v, out, dout are read again."""
        queries = self.batch * self.heads * (1 if self.work == "decode" else self.tokens)
        keys = self.batch * self.key_heads * self.tokens
        forward = 0 if self.work == "backward" else 2 * queries + 2 * keys
        back = 4 * queries + 4 * keys if self.has_gradients else 0
        return (forward + back) * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def has_gradients(self) -> bool:
        return self.work in ("backward", "forward+backward")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "size": self.title.partition(f"{self.dtype} ")[2]}


def make_inputs(cell: Cell, device: torch.device) -> Tensors:
    rng = torch.Generator(device).manual_seed(0)

    def normal(tokens: int, heads: int) -> Tensor:
        shape = (cell.batch, tokens, heads, cell.head_dim)
        return torch.randn(*shape, generator=rng, device=device, dtype=DTYPES[cell.dtype])

    inputs = {"q": normal(1 if cell.work == "decode" else cell.tokens, cell.heads)}
    inputs |= {"k": normal(cell.tokens, cell.key_heads), "v": normal(cell.tokens, cell.key_heads)}
    return inputs | ({"dout": normal(cell.tokens, cell.heads)} if cell.has_gradients else {})


def prepared(cell: Cell, inputs: Tensors, forward: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Call:
    """The cell's work by a function of q, k and v."""
    if not cell.has_gradients:
        q, k, v = (inputs[name] for name in "qkv")

        def inference() -> Tensors:
            with torch.no_grad():
                return {"out": forward(q, k, v)}

        return inference
    leaves = [inputs[name].detach().requires_grad_() for name in "qkv"]
    if cell.work == "backward":
        forward_out = forward(*leaves)

        def backward() -> Tensors:
            gradients = torch.autograd.grad(forward_out, leaves, inputs["dout"], retain_graph=True)
            return dict(zip(GRADIENTS, gradients, strict=True))

        return backward

    def training() -> Tensors:
        out = forward(*leaves)
        gradients = torch.autograd.grad(out, leaves, inputs["dout"])
        return {"out": out.detach()} | dict(zip(GRADIENTS, gradients, strict=True))

    return training


def truth(cell: Cell, inputs: Tensors, **rules: Any) -> Tensors:
    """The truth for the last sequence's last head, or for the group of heads that share its keys: gradients of shared
    keys are the group's."""
    group = cell.heads // cell.key_heads
    last_head = {n: x[-1:, :, (-group if n in ("q", "dout") else -1) :].double() for n, x in inputs.items()}
    return prepared(cell, last_head, _plain(cell, **rules))()


def errors(cell: Cell, results: Tensors, true: Tensors) -> dict[str, float]:
    return {name: relative_error(x[-1:, :, -true[name].shape[2] :], true[name]) for name, x in results.items()}


# ---- the implementations


def _causal(cell: Cell) -> bool:
    return cell.causal and cell.work != "decode"


def _plain(cell: Cell, **rules: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: plain_attention(q, k, v, causal=_causal(cell), **rules)[0]


def _plain_prepared(cell: Cell, inputs: Tensors) -> Call:
    return prepared(cell, inputs, _plain(cell))


def _standard(cell: Cell, inputs: Tensors) -> Call:
    """By way of all the weights, in the dtype of the inputs: softmax between two products."""

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if cell.heads != cell.key_heads:
            k, v = (x.repeat_interleave(cell.heads // cell.key_heads, dim=1) for x in (k, v))
        weights = q @ k.mT * cell.head_dim**-0.5
        if _causal(cell):
            later = torch.ones(weights.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            weights = weights.masked_fill(later, -torch.inf)
        return (weights.softmax(-1) @ v).transpose(1, 2)

    return prepared(cell, inputs, forward)


def _weights(cell: Cell) -> float:
    """Bytes of all the weights and what is made of them, in plain torch."""
    queries = 1 if cell.work == "decode" else cell.tokens
    return 8.0 * DTYPES[cell.dtype].itemsize * cell.batch * cell.heads * queries * cell.tokens


def _fused(cell: Cell, inputs: Tensors) -> Call:
    if cell.work == "decode":
        return prepared(cell, inputs, lambda q, k, v: flash_attn_with_kvcache(q, k, v, cache_seqlens=cell.tokens))
    return prepared(cell, inputs, lambda q, k, v: flash_attn_func(q, k, v, causal=cell.causal))


def _sdpa(backend: SDPBackend | None) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with nullcontext() if backend is None else sdpa_kernel(backend):
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                shared = cell.heads != cell.key_heads
                out = F.scaled_dot_product_attention(q, k, v, is_causal=_causal(cell), enable_gqa=shared)
            return out.transpose(1, 2)

        return prepared(cell, inputs, forward)

    return prepare


def _flash_attn(cell: Cell, inputs: Tensors) -> Call:
    package = importlib.import_module("flash_attn")
    if cell.work == "decode":
        return prepared(
            cell, inputs, lambda q, k, v: package.flash_attn_with_kvcache(q, k, v, cache_seqlens=cell.tokens)
        )
    return prepared(cell, inputs, lambda q, k, v: package.flash_attn_func(q, k, v, causal=cell.causal))


# The implementations that benchmarks/attention.py and xlstm-hip bench compare.
BESIDE_TORCH = (
    Implementation("ours", XLSTM_HIP, _fused),
    Implementation("torch SDPA", SDPA, _sdpa(None), CPU),
    Implementation("torch SDPA FLASH", SDPA, _sdpa(SDPBackend.FLASH_ATTENTION), GPU),
    Implementation("torch SDPA cuDNN", SDPA, _sdpa(SDPBackend.CUDNN_ATTENTION), GPU),
    Implementation("standard attention", PLAIN, _standard, needs=_weights),
    Implementation("flash_attn", FLASH, _flash_attn, GPU),
)
IMPLEMENTATIONS = (*BESIDE_TORCH, Implementation("plain torch", PLAIN, _plain_prepared, needs=_weights))


# ---- the points


def sequence_points(scale: Scale, work: str) -> list[Point]:
    """Over the length, with as many tokens in all; and over the head dim, as wide in all."""
    lengths: tuple[int, ...]
    dims: tuple[int, ...]
    if scale.quick:
        tokens, lengths, width, length, dims = 256, (64, 128), 64, 64, (32,)
    elif scale.gpu:
        tokens, lengths, width, length, dims = 65536, tuple(1 << n for n in range(9, 15)), 2048, 4096, (64, 128, 256)
    else:
        tokens, lengths, width, length, dims = 16384, (512, 1024, 2048, 4096), 128, 1024, (32, 64, 128)
    points = []
    for dtype in scale.dtypes:
        dim = 128 if scale.gpu and not scale.quick else 64
        for s in lengths:
            points.append(Point("length", s, Cell(work, dtype, tokens // s, width // dim, width // dim, s, dim)))
        for d in dims:
            heads = width // d
            points.append(Point("head dim", d, Cell(work, dtype, tokens // length, heads, heads, length, d)))
    return points


def shape_points(scale: Scale, work: str) -> list[Point]:
    """Head dims over the length, with as many tokens in all."""
    lengths: tuple[int, ...]
    dims: tuple[int, ...]
    if scale.quick:
        tokens, lengths, width, dims = 128, (32, 64), 64, (32, 64)
    else:
        tokens, width = (16384, 2048) if scale.gpu else (4096, 256)
        lengths, dims = (512, 1024, 2048, 4096), (64, 128, 256)
    return [
        Point("shapes", s, Cell(work, dtype, tokens // s, width // d, width // d, s, d))
        for dtype in scale.dtypes
        for d in dims
        for s in lengths
    ]


def decode_points(scale: Scale) -> list[Point]:
    """One token against ever more keys."""
    contexts: tuple[int, ...]
    if scale.quick:
        heads, key_heads, dim, contexts = 2, 1, 32, (128,)
    elif scale.gpu:
        heads, key_heads, dim, contexts = 32, 8, 128, tuple(1 << n for n in range(10, 19, 2))
    else:
        heads, key_heads, dim, contexts = 8, 2, 64, tuple(1 << n for n in range(8, 17, 2))
    return [
        Point("keys", keys, Cell("decode", dtype, 1, heads, key_heads, keys, dim))
        for dtype in scale.dtypes
        for keys in contexts
    ]
