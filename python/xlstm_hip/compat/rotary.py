# SPDX-License-Identifier: Apache-2.0
"""The replacement of flash_attn.layers.rotary and flash_attn.ops.triton.rotary, in plain torch on any device.

Each function rotates x in float32 or wider and returns it in its dtype. Gradients go to x, none to the tables. If a
tensor is rotated in place, its gradient is that of the tensor that the function returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.checks import gradient_needed, has_rank, is_tensor, shape_text
from .._core.index_tensors import in_range, offsets_fit
from .._core.ops import OpFunction
from ..attention import checks
from ..reference.attention_ops import rotated

Turn = tuple[Any, Tensor, Tensor]  # which part of a tensor, and the angles (..., 1, rotary_dim / 2) of its tokens


def _angles(
    x: Tensor,  # (B, S, H, D), or with cu_seqlens (T, H, D)
    cos: Tensor,  # (S_rotary, rotary_dim / 2)
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,  # (B): the first token's position
    cu_seqlens: Tensor | None = None,  # (B + 1)
    max_seqlen: int | None = None,
    name: str = "x",
    suffix: str = "",
) -> tuple[Tensor, Tensor]:
    """The rows of both tables at every token's position."""
    packed = cu_seqlens is not None
    rank, meaning = (3, "(T, H, D) with cu_seqlens") if packed else (4, "(B, S, H, D)")
    has_rank(name, x, rank, meaning)
    for table_name, table in ((f"cos{suffix}", cos), (f"sin{suffix}", sin)):
        is_tensor(table_name, table)
        if table.dim() != 2 or table.shape != cos.shape or not 2 <= 2 * table.shape[1] <= x.shape[-1]:
            raise ValueError(
                f"{table_name}: expected shape (S, rotary_dim / 2), rotary_dim from 2 to {x.shape[-1]}, "
                f"got {shape_text(table)}"
            )
        checks.on_device(table_name, table, x)
    if packed and max_seqlen is None:
        raise ValueError("max_seqlen: expected with cu_seqlens")
    if cu_seqlens is None:
        if max_seqlen is not None:
            raise ValueError("max_seqlen: expected None without cu_seqlens")
        batch, steps = x.shape[0], torch.arange(x.shape[1], device=x.device)
        sequence = torch.arange(batch, device=x.device)[:, None]
    else:
        ends = checks.offsets("cu_seqlens", cu_seqlens, x)
        if checks.readable(ends):
            offsets_fit("cu_seqlens", ends, checks.length("max_seqlen", max_seqlen), x.shape[0])
        batch, tokens = ends.shape[0] - 1, torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
        sequence = torch.searchsorted(ends[1:].contiguous(), tokens, right=True).clamp(max=batch - 1)
        steps = tokens - ends[sequence]
    if isinstance(seqlen_offsets, int) and not isinstance(seqlen_offsets, bool):
        seqlen_offsets = torch.full((batch,), seqlen_offsets, device=x.device)
    first = checks.indices("seqlen_offsets", seqlen_offsets, x, (batch,), f"(B) = ({batch},)")
    if first is None:
        raise TypeError("seqlen_offsets: expected an integer or a tensor (B), got None")
    positions = first[sequence] + steps
    if checks.readable(positions):
        for position in (int(positions.min()), int(positions.max())):
            in_range("seqlen_offsets: a rotary position", position, 0, cos.shape[0] - 1)
    positions = positions.long().clamp(0, cos.shape[0] - 1)
    return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)


def _turned(x: Tensor, turns: list[Turn], interleaved: bool, inplace: bool, back: bool = False) -> Tensor:
    if not inplace and turns[0][0] is ...:  # all of it
        return rotated(x, turns[0][1], -turns[0][2] if back else turns[0][2], interleaved)
    y = x if inplace else x.clone()
    for where, cos, sin in turns:
        y[where] = rotated(x[where], cos, -sin if back else sin, interleaved)
    return y


NO_GRADIENT = "cos, sin: expected no gradient to be needed; they get none, as in FlashAttention-2"


def _recorded(x: Tensor, *tables: Tensor | None) -> bool:
    """Whether a call is one of an autograd function. In a compiled graph torch's own operations record it, where they
    can."""
    if gradient_needed(*tables):
        raise ValueError(NO_GRADIENT)
    return gradient_needed(x) and (x.is_leaf or not torch.compiler.is_compiling())


class _Rotation(OpFunction):
    """Writes over a leaf that needs a gradient, too, which torch's own in-place functions refuse."""

    @staticmethod
    def turn(ctx: Any, x: Tensor, turns: list[Turn], interleaved: bool, inplace: bool) -> Tensor:
        if any(ctx.needs_input_grad[1:]):
            raise ValueError(NO_GRADIENT)
        ctx.where, ctx.interleaved = [where for where, *_ in turns], interleaved
        ctx.save_for_backward(*(table for _, *tables in turns for table in tables))
        if inplace and not torch.compiler.is_compiling() and not x.is_leaf and not x._is_view():
            ctx.mark_dirty(x)  # x itself has the gradient, then
        return _turned(x, turns, interleaved, inplace)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        tables = iter(ctx.saved_tensors)
        turns = [(where, next(tables), next(tables)) for where in ctx.where]
        no_gradients = (None,) * (len(ctx.needs_input_grad) - 1)
        return _turned(dy, turns, ctx.interleaved, inplace=False, back=True), *no_gradients


class ApplyRotaryEmb(_Rotation):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool = False,
        inplace: bool = False,
        seqlen_offsets: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor:
        angles = _angles(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
        checks.flag("interleaved", interleaved)
        return _Rotation.turn(ctx, x, [(..., *angles)], interleaved, checks.flag("inplace", inplace))


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """conjugate: rotates back."""
    cos, sin = _angles(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
    checks.flag("interleaved", interleaved)
    y = rotated(x, cos, -sin if checks.flag("conjugate", conjugate) else sin, interleaved)
    return x.copy_(y) if checks.flag("inplace", inplace) else y


def apply_rotary_emb(
    x: Tensor,  # (B, S, H, D), or with cu_seqlens (T, H, D)
    cos: Tensor,  # (S_rotary, rotary_dim / 2)
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,  # (B): the first token's position
    cu_seqlens: Tensor | None = None,  # (B + 1)
    max_seqlen: int | None = None,
) -> Tensor:
    if _recorded(x, cos, sin):
        return ApplyRotaryEmb.apply(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen)
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


def _qkv_turns(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None,
    sin_k: Tensor | None,
    seqlen_offsets: int | Tensor,
    num_heads_q: int | None,
) -> list[Turn]:
    is_tensor("qkv", qkv)
    every = slice(None)
    q: tuple[Any, ...]
    k: tuple[Any, ...]
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        if num_heads_q not in (None, qkv.shape[3]):
            raise ValueError(f"num_heads_q: expected None or qkv's {qkv.shape[3]} heads, got {num_heads_q!r}")
        q, k = (every, every, 0), (every, every, 1)
    elif qkv.dim() == 4:
        heads = qkv.shape[2]
        if isinstance(num_heads_q, bool) or not isinstance(num_heads_q, int) or not 1 <= num_heads_q < heads:
            raise ValueError(f"num_heads_q: expected the query heads of qkv's {heads}, got {num_heads_q!r}")
        if (heads - num_heads_q) % 2:
            raise ValueError(f"num_heads_q: expected to leave as many key heads as value heads of {heads}")
        keys = (heads - num_heads_q) // 2
        q, k = (every, every, slice(num_heads_q)), (every, every, slice(num_heads_q, num_heads_q + keys))
    else:
        raise ValueError(f"qkv: expected (B, S, 3, H, D), or (B, S, H_q + 2 H_k, D), got {shape_text(qkv)}")
    tables_k = (cos if cos_k is None else cos_k, sin if sin_k is None else sin_k)
    return [
        (q, *_angles(qkv[q], cos, sin, seqlen_offsets, name="qkv")),
        (k, *_angles(qkv[k], *tables_k, seqlen_offsets, name="qkv", suffix="_k")),
    ]


class ApplyRotaryEmbQKV_(_Rotation):  # noqa: N801
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cos_k: Tensor | None = None,
        sin_k: Tensor | None = None,
        interleaved: bool = False,
        seqlen_offsets: int | Tensor = 0,
        num_heads_q: int | None = None,
    ) -> Tensor:
        turns = _qkv_turns(qkv, cos, sin, cos_k, sin_k, seqlen_offsets, num_heads_q)
        return _Rotation.turn(ctx, qkv, turns, checks.flag("interleaved", interleaved), inplace=True)


def apply_rotary_emb_qkv_(
    qkv: Tensor,  # (B, S, 3, H, D), or (B, S, H_q + 2 H_k, D)
    cos: Tensor,  # (S_rotary, rotary_dim / 2)
    sin: Tensor,
    cos_k: Tensor | None = None,  # of the keys, if they have other tables
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,  # H_q of a qkv of 4 dimensions
) -> Tensor:
    """Rotates q and k where they are. Returns qkv."""
    if _recorded(qkv, cos, sin, cos_k, sin_k):
        return ApplyRotaryEmbQKV_.apply(qkv, cos, sin, cos_k, sin_k, interleaved, seqlen_offsets, num_heads_q)
    turns = _qkv_turns(qkv, cos, sin, cos_k, sin_k, seqlen_offsets, num_heads_q)
    return _turned(qkv, turns, checks.flag("interleaved", interleaved), inplace=True)


def _kv_turns(kv: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor) -> list[Turn]:
    if is_tensor("kv", kv).dim() != 5 or kv.shape[2] != 2:
        raise ValueError(f"kv: expected (B, S, 2, H, D), got {shape_text(kv)}")
    k = (slice(None), slice(None), 0)
    return [(k, *_angles(kv[k], cos, sin, seqlen_offsets, name="kv"))]


class ApplyRotaryEmbKV_(_Rotation):  # noqa: N801
    @staticmethod
    def forward(
        ctx: Any,
        kv: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool = False,
        seqlen_offsets: int | Tensor = 0,
    ) -> Tensor:
        turns = _kv_turns(kv, cos, sin, seqlen_offsets)
        return _Rotation.turn(ctx, kv, turns, checks.flag("interleaved", interleaved), inplace=True)


def apply_rotary_emb_kv_(
    kv: Tensor,  # (B, S, 2, H, D)
    cos: Tensor,  # (S_rotary, rotary_dim / 2)
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """Rotates k where it is. Returns kv."""
    if _recorded(kv, cos, sin):
        return ApplyRotaryEmbKV_.apply(kv, cos, sin, interleaved, seqlen_offsets)
    turns = _kv_turns(kv, cos, sin, seqlen_offsets)
    return _turned(kv, turns, checks.flag("interleaved", interleaved), inplace=True)


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Each pair (a, b) of features as (-b, a)."""
    if checks.flag("interleaved", interleaved):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([-b, a], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rotary_emb_torch(
    x: Tensor,  # (B, S, H, D)
    cos: Tensor,  # (S, rotary_dim / 2) or (B, S, rotary_dim / 2)
    sin: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """The same rotation in the tensors' own dtype, with a gradient for the tables."""
    features = 2 * cos.shape[-1]
    if features > x.shape[-1]:
        raise ValueError(f"cos: expected rotary_dim / 2 of at most {x.shape[-1] // 2}, got {shape_text(cos)}")
    if checks.flag("interleaved", interleaved):
        cos, sin = (table.repeat_interleave(2, dim=-1).unsqueeze(-2) for table in (cos, sin))
    else:
        cos, sin = (torch.cat([table, table], dim=-1).unsqueeze(-2) for table in (cos, sin))
    turned, unrotated = x[..., :features], x[..., features:]
    return torch.cat([turned * cos + rotate_half(turned, interleaved) * sin, unrotated], dim=-1)


class RotaryEmbedding(torch.nn.Module):
    """Holds the tables of apply_rotary_emb_qkv_ and apply_rotary_emb_kv_, as long as the longest call needed.

    With scale_base the queries and keys are scaled by their distance from the middle of the tables, as in XPos.
    """

    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2 or dim % 2:
            raise ValueError(f"dim: expected an even number from 2, got {dim!r}")
        self.dim, self.base = dim, checks.finite("base", base)
        self.interleaved = checks.flag("interleaved", interleaved)
        self.scale_base = None if scale_base is None else checks.finite("scale_base", scale_base)
        self.register_buffer("inv_freq", self._frequencies(device), persistent=False)
        even = torch.arange(0, dim, 2, dtype=torch.float32, device=device)
        scale = None if scale_base is None else (even + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._tables: tuple[Tensor, ...] = ()  # cos and sin, with a scale also the keys'

    def _frequencies(self, device: Any) -> Tensor:
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim
        return self.base**-exponents

    def _tables_for(self, length: int, like: Tensor) -> None:
        if self._tables:
            now = self._tables[0]
            usable = not (self.training and now.is_inference())
            if now.shape[0] >= length and now.device == like.device and now.dtype == like.dtype and usable:
                return
        frequencies = self.inv_freq.to(like.device)
        if frequencies.dtype != torch.float32:  # a model that was moved to another dtype: positions need float32
            frequencies = self._frequencies(like.device)
        positions = torch.arange(length, dtype=torch.float32, device=like.device)
        angles = torch.outer(positions, frequencies)
        tables = [angles.cos(), angles.sin()]
        if self.scale is not None and self.scale_base is not None:
            scale = self.scale.to(like.device, torch.float32) ** ((positions - length // 2) / self.scale_base)[:, None]
            tables = [x * scale for x in tables] + [x / scale for x in tables]
        self._tables = tuple(x.to(like.dtype) for x in tables)

    def forward(
        self,
        qkv: Tensor,  # (B, S, 3, H, D) or (B, S, H_q + 2 H_k, D); with kv the queries alone (B, S, H, D)
        kv: Tensor | None = None,  # (B, S, 2, H, D)
        seqlen_offset: int | Tensor = 0,  # (B)
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotates in place. Returns qkv, or with kv the queries and kv. max_seqlen: how long the tables have to be,
        for a tensor of offsets."""
        is_tensor("qkv", qkv)
        if kv is not None:
            has_rank("qkv", qkv, 4, "(B, S, H, D) beside kv")
        if max_seqlen is not None:
            if checks.length("max_seqlen", max_seqlen) < qkv.shape[1]:
                raise ValueError(f"max_seqlen: expected at least qkv's {qkv.shape[1]} tokens, got {max_seqlen}")
            self._tables_for(max_seqlen, qkv)
        elif isinstance(seqlen_offset, int):
            self._tables_for(qkv.shape[1] + seqlen_offset, qkv)
        elif not self._tables:
            raise ValueError("max_seqlen: expected beside a tensor of offsets, for the length of the tables")
        cos, sin, *of_keys = self._tables
        cos_k, sin_k = of_keys or (None, None)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offsets=seqlen_offset, num_heads_q=num_heads_q
            )
        if num_heads_q is not None:
            raise ValueError(f"num_heads_q: expected None beside kv, got {num_heads_q!r}")
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, inplace=True, seqlen_offsets=seqlen_offset)
        cos_k, sin_k = of_keys or (cos, sin)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
