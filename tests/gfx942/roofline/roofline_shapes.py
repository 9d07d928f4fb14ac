# SPDX-License-Identifier: Apache-2.0
"""The calls that docs/amd_roofline.md has tables of, and what an issue asks of a kernel in one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HEADS, DQK, DHV = 8, 256, 512  # the mLSTM of xLSTM-7B
WIDTH, FEED, WORDS = 4096, 10944, 50304  # its other widths
PAGE, POOL = 64, 16  # tokens of a page, and pages that all sequences share: counts do not depend on which they are


@dataclass(frozen=True)
class Aim:
    kernel: str  # a regular expression
    share: float  # of MFMA peak with everything overlapped, at least


@dataclass(frozen=True)
class Shape:
    title: str
    run: Callable[[], None]
    every: int = 1  # one workgroup in so many runs: of kernels whose work depends on no other's result
    aim: Aim | None = None
    words: str = ""  # what is smaller than it would be, and other things to know


def draw(*shape: int, grad: bool = False) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(torch.bfloat16).to("cuda").requires_grad_(grad)


# ---- the mLSTM


def _mlstm_inputs(batch: int, length: int, grad: bool) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [(DQK,), (DQK,), (DHV,), (), ()]
    tensors = [torch.randn(batch, HEADS, length, *d, generator=g) for d in shapes]
    tensors[4] += 3
    return [x.to(torch.bfloat16).to("cuda").requires_grad_(grad) for x in tensors]


def mlstm(batch: int, length: int) -> None:
    from xlstm_hip import mlstm_interface

    q, k, v, i, f = _mlstm_inputs(batch, length, True)
    h = mlstm_interface(q, k, v, i, f)
    h.backward(torch.ones_like(h))


def mlstm_step(batch: int) -> None:
    from xlstm_hip import mlstm_step_interface

    q, k, v, i, f = _mlstm_inputs(batch, 1, False)
    states = [torch.randn(batch, HEADS, *d).to("cuda") for d in ((DQK, DHV), (DQK,), (1,))]
    mlstm_step_interface(q[:, :, 0], k[:, :, 0], v[:, :, 0], i, f, *states, in_place=True)


# ---- attention


def attention(length: int, heads: int, dim: int, causal: bool, backward: bool = False) -> None:
    from xlstm_hip.attention import flash_attn_func

    q, k, v = (draw(1, length, heads, dim, grad=backward) for _ in range(3))
    out = flash_attn_func(q, k, v, causal=causal)
    if backward:
        out.backward(draw(*out.shape))


def _pages(batch: int, length: int) -> tuple[Tensor, Tensor]:
    table = (torch.arange(length // PAGE) % POOL).int().repeat(batch, 1)
    return table.to("cuda"), torch.full((batch,), length).int().to("cuda")


def decode(length: int, heads_q: int, heads_k: int, in_pages: bool) -> None:
    from xlstm_hip.attention import flash_attn_with_kvcache

    q, pool = draw(1, 1, heads_q, 128), draw(POOL, PAGE, heads_k, 128)
    table, used = _pages(1, length)
    if in_pages:
        flash_attn_with_kvcache(q, pool, pool, cache_seqlens=used, block_table=table)
    else:
        cache = pool.cpu().reshape(1, -1, heads_k, 128).repeat(1, length // (POOL * PAGE), 1, 1).to("cuda")
        flash_attn_with_kvcache(q, cache, cache, cache_seqlens=used)


def mla(batch: int, length: int, heads: int) -> None:
    from xlstm_hip.attention import flash_mla_with_kvcache

    table, used = _pages(batch, length)
    flash_mla_with_kvcache(draw(batch, 1, heads, 576), draw(POOL, PAGE, 1, 576), table, used, 512)


# ---- a model's step, and the layers

STEP_WORDS = 4096


SMALL_NUMBERS = 1 / 64  # of weights and of scales: nothing becomes infinite


@functools.lru_cache(maxsize=3)
def step_weights(bits: int, blocks: int, words: int) -> tuple[list[Tensor], Tensor, float]:
    """On the device, as decode_step_ takes them, and the norms' epsilon. Random, also in their quantised form: what is
    executed does not depend on them."""
    from tensors import drawn
    from xlstm_hip.models import xLSTMLarge, xLSTMLargeConfig
    from xlstm_hip.models.quantize import Scheme, quantizable, replaced

    config = xLSTMLargeConfig(
        embedding_dim=WIDTH, num_heads=HEADS, num_blocks=blocks, vocab_size=words, ffn_proj_factor=FEED / WIDTH
    )
    with torch.device("meta"):
        model = xLSTMLarge(config).to(torch.bfloat16)
        if bits:
            scheme = Scheme(bits, symmetric=bits == 8)
            for name, layer in quantizable(model, scheme):
                replaced(model, name, layer, scheme)
    model.to_empty(device="cpu")
    for n, x in enumerate((*model.parameters(), *model.buffers())):
        x.data = drawn(*x.shape, seed=n, dtype=x.dtype)
        if x.is_floating_point():
            x.data *= SMALL_NUMBERS
    engine = model._new_engine()
    return [w.detach().to("cuda") for w in engine._parts.tensors], engine._weight_index, engine._norm_eps


def model_step(batch: int, bits: int, blocks: int = 1, words: int = STEP_WORDS) -> None:
    """Blocks of xLSTM-7B with its embedding, and a head of so many words."""
    from xlstm_hip._core.ops import OPS

    weights, index, eps = step_weights(bits, blocks, words)
    states = [torch.randn(batch, HEADS, *d).to("cuda") for d in blocks * ((DQK, DHV), (DQK,), (1,))]
    out = torch.empty(batch, words).to("cuda")
    x = torch.arange(batch).to("cuda")
    OPS.decode_step_(out, x, None, weights, index, states, HEADS, eps, 1e-6, 15.0, 30.0)


def layers(tokens: int) -> None:
    from xlstm_hip.layers import head_norm_gate, rms_norm, swiglu

    x, h = draw(tokens, WIDTH, grad=True), draw(tokens, HEADS, DHV, grad=True)
    gate, up = (draw(tokens, FEED, grad=True) for _ in range(2))
    weight = draw(WIDTH, grad=True)
    for out in (rms_norm(x, weight), head_norm_gate(h, x, weight), swiglu(gate, up)):
        out.backward(torch.ones_like(out))


def cross_entropy(tokens: int) -> None:
    from xlstm_hip.layers import capped_cross_entropy

    logits = draw(tokens, WORDS, grad=True)
    capped_cross_entropy(logits, torch.arange(tokens).to("cuda"), 30.0).backward()


SHARED_PAGES = "All sequences have the same 16 pages, which changes no count."
SMALL_HEAD = f"One block and an output head with a vocabulary of {STEP_WORDS}; a full model has more of both."
SHAPES = (
    Shape("mLSTM, forward + backward, B8 NH8 S2048, 256/512, bf16", lambda: mlstm(8, 2048)),
    Shape("mLSTM, forward + backward, B1 NH8 S8192, 256/512, bf16", lambda: mlstm(1, 8192)),
    Shape("mLSTM, step in place, B1 NH8, 256/512, bf16", lambda: mlstm_step(1)),
    Shape("mLSTM, step in place, B64 NH8, 256/512, bf16", lambda: mlstm_step(64)),
    Shape(
        "attention, forward, causal, B1 H16 S8192, head dim 128, bf16",
        lambda: attention(8192, 16, 128, True),
        every=7,
        aim=Aim(r"forward_kernel<.*", 0.6),
    ),
    Shape("attention, forward, B1 H16 S4096, head dim 128, bf16", lambda: attention(4096, 16, 128, False), every=7),
    Shape("attention, forward, causal, B1 H16 S8192, head dim 64, bf16", lambda: attention(8192, 16, 64, True), 7),
    Shape(
        "attention, forward + backward, causal, B1 H16 S4096, head dim 128, bf16",
        lambda: attention(4096, 16, 128, True, True),
    ),
    Shape(
        "attention, forward + backward, causal, B1 H16 S4096, head dim 64, bf16",
        lambda: attention(4096, 16, 64, True, True),
    ),
    Shape(
        "decoding, B1, 32 heads on 8, 131072 keys side by side, head dim 128, bf16",
        lambda: decode(131072, 32, 8, False),
        words="Each key is used once: `memory` is what HBM takes.",
    ),
    Shape(
        "decoding, B1, 32 heads on 8, 131072 keys in pages of 64, head dim 128, bf16",
        lambda: decode(131072, 32, 8, True),
        words=f"{SHARED_PAGES} `memory` is what HBM takes.",
    ),
    Shape(
        "MLA decoding, B64, 128 heads, 8192 keys in pages of 64, 576/512, bf16",
        lambda: mla(64, 8192, 128),
        every=5,
        aim=Aim(r"mla_cdna_kernel<.*", 0.6),
        words=SHARED_PAGES,
    ),
    Shape("a model's step, B1, widths of xLSTM-7B, bf16", lambda: model_step(1, 0), words=SMALL_HEAD),
    Shape("a model's step, B8, widths of xLSTM-7B, bf16", lambda: model_step(8, 0), words=SMALL_HEAD),
    Shape("a model's step, B1, widths of xLSTM-7B, int4", lambda: model_step(1, 4), words=SMALL_HEAD),
    Shape("layers, forward + backward, 1024 tokens, widths of xLSTM-7B, bf16", lambda: layers(1024)),
    Shape("cross entropy, forward + backward, 256 tokens, 50304 words, bf16", lambda: cross_entropy(256)),
)
