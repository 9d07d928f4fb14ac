# SPDX-License-Identifier: Apache-2.0
"""Attention whose offsets need more than 32 bits: q, k, v, out and all gradients are whole tensors of more than 2^31
elements. The last tokens are held to the truth, so that an offset that wraps is wrong by all of it. Nothing here needs
pytest."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest import SkipTest

import torch
from torch import Tensor

from support.attention import truth
from support.attention.problem import FLOOR, plain
from xlstm_hip import attention

LOOKED_AT = (0, -1)  # heads that are compared
PAGE = 16


@dataclass(frozen=True)
class Far:
    beyond: int = 2**31
    heads: int = 256
    dim: int = 128
    length: int = 1040  # of one of many sequences
    window: int = 500  # of the one long sequence, so that it costs little
    dtype: torch.dtype = torch.bfloat16

    @property
    def sequences(self) -> int:
        return self.beyond // (self.length * self.heads * self.dim) + 1

    @property
    def tokens(self) -> int:
        """More than length beyond the last that 32 bits reach, so that all that is compared lies there."""
        return (self.sequences + 1) * self.length

    @property
    def bytes(self) -> int:
        """q, k, v, out, the four gradients, and as much again in float32 for sums of one of them."""
        return self.tokens * self.heads * self.dim * torch.finfo(self.dtype).bits // 8 * (8 + 2)


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else 1 << 30


def near(name: str, actual: Tensor, rounded: Tensor, true: Tensor) -> None:
    """At most twice as far from the truth as plain torch in the same dtype."""
    dtype = actual.dtype
    actual, rounded = actual.detach().cpu().double(), rounded.detach().cpu().double()
    for order in (2, torch.inf):
        error, allowed, size = (
            float(torch.linalg.vector_norm(x, order)) for x in (actual - true, rounded - true, true)
        )
        allowed = 2 * allowed + FLOOR * torch.finfo(dtype).eps * size
        assert error <= allowed, f"{name}, norm {order}: error {error:.3g}, allowed {allowed:.3g}"


def hold_the_end(actual: dict[str, Tensor], inputs: dict[str, Tensor], window: int, compared: int) -> None:
    """got and given: (tokens, H, D) of one sequence's end alone, causal. The last of them are compared: what they see,
    and what sees them, is there too."""
    near_heads = {name: x.detach()[:, list(LOOKED_AT)].cpu() for name, x in inputs.items()}
    rules = truth.Rules(inputs["q"].shape[-1] ** -0.5, causal=True, window=(window, 0))
    leaves = [near_heads[n].double().requires_grad_() for n in "qkv"]
    true_out = truth.attention([(leaves[0], leaves[1], leaves[2])], rules)[0][0]
    true = [true_out, *torch.autograd.grad(true_out, leaves, near_heads["dout"].double())]
    leaves = [near_heads[n].clone().requires_grad_() for n in "qkv"]
    q, k, v = (x[None] for x in leaves)
    out = plain.attention(q, k, v, causal=True, window_size=(window, 0))[0][0]
    rounded = [out, *torch.autograd.grad(out, leaves, near_heads["dout"])]
    for name, y, z in zip(("out", "dq", "dk", "dv"), rounded, true, strict=True):
        if name in actual:
            near(name, actual[name].detach()[-compared:, list(LOOKED_AT)], y[-compared:], z[-compared:].detach())


def ways(far: Far) -> Iterator[tuple[str, tuple[int, int], int]]:
    """Name, how the tokens are cut (sequences, tokens of each), and the window."""
    yield "one sequence", (1, far.tokens), far.window
    yield "many sequences", (far.tokens // far.length, far.length), -1
    yield "packed", (far.tokens // far.length, far.length), -1


def tokens_beyond_32_bits(far: Far, device: str, backward: bool = True) -> None:
    """Forward and backward, dense and packed, and decoding from pages."""
    if free_bytes(device) < far.bytes:
        raise SkipTest(f"needs {far.bytes / 1e9:.0f} GB free on the device")
    rng = torch.Generator(device).manual_seed(0)
    shape = (far.tokens, far.heads, far.dim)
    inputs = {
        name: torch.randn(shape, dtype=far.dtype, device=device, generator=rng).requires_grad_(
            backward and name in "qkv"
        )
        for name in ("q", "k", "v", "dout")
    }
    for x in inputs.values():
        assert x[-far.length].data_ptr() - x.data_ptr() >= far.beyond * x.element_size()
    for name, cut, window in ways(far):
        try:
            hold_a_way(name, cut, window, far, inputs, backward)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    hold_pages(far, {name: x.detach() for name, x in inputs.items()})


def hold_a_way(
    name: str, cut: tuple[int, int], window: int, far: Far, inputs: dict[str, Tensor], backward: bool
) -> None:
    tokens = [inputs[n] for n in "qkv"]
    if name == "packed":
        ends = torch.arange(cut[0] + 1, dtype=torch.int32, device=tokens[0].device) * cut[1]
        out = attention.flash_attn_varlen_func(*tokens, ends, ends, cut[1], cut[1], causal=True)
    else:
        q, k, v = (x.view(*cut, *x.shape[1:]) for x in tokens)
        out = attention.flash_attn_func(q, k, v, causal=True, window_size=(window, 0)).flatten(0, 1)
    results = {"out": out}
    if backward:
        results |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, tokens, inputs["dout"]), strict=True))
    # In one long sequence, the first tokens of its end see tokens before the end, which a call with the end alone
    # lacks.
    compared = far.length - window if window >= 0 else far.length
    hold_the_end(*({n: x[-far.length :] for n, x in of.items()} for of in (results, inputs)), window, compared)


def hold_pages(far: Far, inputs: dict[str, Tensor]) -> None:
    """A few queries against the last pages of a pool."""
    assert far.length % PAGE == 0
    count, queries = far.length // PAGE, 4
    end = {name: x[-far.length :] for name, x in inputs.items()}
    pools = [inputs[n].view(-1, PAGE, *inputs[n].shape[1:]) for n in "kv"]
    table = torch.arange(len(pools[0]) - count, len(pools[0]), dtype=torch.int32, device=end["q"].device)[None]
    out = attention.flash_attn_with_kvcache(
        end["q"][None, -queries:], *pools, cache_seqlens=far.length, block_table=table, causal=True
    )
    hold_the_end({"out": out[0]}, end, -1, queries)


SMALL = replace(Far(), beyond=2**15, heads=3, dim=16, length=80, window=30, dtype=torch.float32)  # the same on a CPU


def memory_back() -> None:
    """Frees the memory of a check of this size before the next check."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
