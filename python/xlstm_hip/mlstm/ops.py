# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and gradients of the mLSTM ops. kernels.py calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._core import checks
from .._core.ops import OPS, OpFunction, first_order

# ---- shapes, for torch.compile and fake tensors


def _tokens(q: Tensor, features: Any, bshd: bool) -> Tensor:
    b, nh, s, _ = q.shape
    return q.new_empty(b, s, nh, features).transpose(1, 2) if bshd else q.new_empty(b, nh, s, features)


def _gates(like: Tensor, bshd: bool) -> Tensor:
    b, nh, s = like.shape
    return like.new_empty(b, s, nh).transpose(1, 2) if bshd else like.new_empty(b, nh, s)


def _states(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    b, nh, _, dqk = q.shape
    n = b if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wide = checks.accumulate_dtype(q.dtype)
    return (
        q.new_empty(n, nh, dqk, v.shape[-1], dtype=wide),
        q.new_empty(n, nh, dqk, dtype=wide),
        q.new_empty(n, nh, 1, dtype=wide),
    )


def _h_and_l(q: Tensor, v: Tensor, bshd: bool) -> tuple[Tensor, Tensor]:
    return _tokens(q, v.shape[-1], bshd), q.new_empty(q.shape[:3], dtype=checks.accumulate_dtype(q.dtype))


@torch.library.register_fake("xlstm_hip::mlstm_chunkwise")
def _(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd, segments=0, walk_chunk=0):
    return _h_and_l(q, v, bshd)


@torch.library.register_fake("xlstm_hip::mlstm_chunkwise_states")
def _(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd, segments=0, walk_chunk=0):
    return *_h_and_l(q, v, bshd), *_states(q, v, cu_seqlens)


@torch.library.register_fake("xlstm_hip::mlstm_sequence")
def _(q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, bshd, step_columns=0):
    return *_h_and_l(q, v, bshd), *_states(q, v, cu_seqlens)


def _gradients(q: Tensor, v: Tensor, i: Tensor, f: Tensor, bshd: bool) -> tuple[Tensor, ...]:
    dqk = q.shape[-1]
    return _tokens(q, dqk, bshd), _tokens(q, dqk, bshd), _tokens(q, v.shape[-1], bshd), _gates(i, bshd), _gates(f, bshd)


@torch.library.register_fake("xlstm_hip::mlstm_backward")
def _(q, k, v, i, f, *options):
    return _gradients(q, v, i, f, bshd=options[15])


@torch.library.register_fake("xlstm_hip::mlstm_backward_states")
def _(q, k, v, i, f, c, n, m, cu_seqlens, *options):
    return *_gradients(q, v, i, f, bshd=options[11]), *_states(q, v, cu_seqlens)


@torch.library.register_fake("xlstm_hip::mlstm_step")
def _(q, k, v, i, f, c, n, m, sigmoid_gate, normalize, eps, step_columns=0, gate_soft_cap=0.0):
    return q.new_empty(*q.shape[:2], v.shape[-1]), torch.empty_like(c), torch.empty_like(n), torch.empty_like(m)


@torch.library.register_fake("xlstm_hip::mlstm_step_")
def _(q, k, v, i, f, c, n, m, sigmoid_gate, normalize, eps, step_columns=0, gate_soft_cap=0.0):
    return q.new_empty(*q.shape[:2], v.shape[-1])


# ---- gradients


def _unit_last_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _zeros_for_none(xs: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(y) if x is None else x.contiguous() for x, y in zip(xs, like, strict=True)]


class Cut(NamedTuple):
    """Launch configuration of a chunkwise call or its backward pass. 0 leaves a value to the plan."""

    chunk_size: int
    segments: int = 0
    walk_chunk: int = 0


class SequenceFunction(OpFunction):
    """Chunkwise or token by token forward; both use the chunkwise backward pass."""

    @staticmethod
    def forward(ctx, q, k, v, i, f, c, n, m, cu_seqlens, recurrent, options, cuts):
        sigmoid_gate, normalize, normalizer_grad, eps, bshd = options
        if recurrent:
            h, l, *last = OPS.mlstm_sequence(
                q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, bshd, cuts[0]
            )
        else:
            chunk_size, *cut = cuts[0]
            h, l, *last = OPS.mlstm_chunkwise_states(
                q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd, *cut
            )
        ctx.save_for_backward(q, k, v, i, f, c, n, m, cu_seqlens, h, l)
        ctx.options, ctx.cut = options, cuts[1]
        ctx.set_materialize_grads(False)
        return h, *last

    @staticmethod
    @first_order
    def backward(ctx, dh, dc, dn, dm):
        return *_backward(ctx, dh, (dc, dn, dm)), None, None, None, None


class HiddenFunction(OpFunction):
    @staticmethod
    def forward(ctx, q, k, v, i, f, c, n, m, cu_seqlens, options, cuts):
        sigmoid_gate, normalize, normalizer_grad, eps, bshd = options
        chunk_size, *cut = cuts[0]
        h, l = OPS.mlstm_chunkwise(
            q, k, v, i, f, c, n, m, cu_seqlens, sigmoid_gate, normalize, eps, chunk_size, bshd, *cut
        )
        ctx.save_for_backward(q, k, v, i, f, c, n, m, cu_seqlens, h, l)
        ctx.options, ctx.cut = options, cuts[1]
        return h

    @staticmethod
    @first_order
    def backward(ctx, dh):
        return *_backward(ctx, dh, (None, None, None)), None, None, None


def _backward(ctx, dh: Tensor | None, dlast: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    q, k, v, i, f, c, n, m, cu_seqlens, h, l = ctx.saved_tensors
    sigmoid_gate, normalize, normalizer_grad, eps, bshd = ctx.options
    chunk_size, *cut = ctx.cut
    dh = torch.zeros_like(h) if dh is None else _unit_last_stride(dh)
    if any(x is not None for x in dlast):
        dlast = _zeros_for_none(dlast, _states(q, v, cu_seqlens))
    flags = (sigmoid_gate, normalize, normalizer_grad, eps, chunk_size, bshd, *cut)
    if c is None:
        return *OPS.mlstm_backward(q, k, v, i, f, c, n, m, cu_seqlens, h, l, dh, *dlast, *flags), None, None, None
    return tuple(OPS.mlstm_backward_states(q, k, v, i, f, c, n, m, cu_seqlens, h, l, dh, *dlast, *flags))


class StepFunction(OpFunction):
    @staticmethod
    def forward(ctx, q, k, v, i, f, c, n, m, options, columns):
        sigmoid_gate, normalize, eps = options
        h, *last = OPS.mlstm_step(q, k, v, i, f, c, n, m, sigmoid_gate, normalize, eps, columns)
        ctx.save_for_backward(q, k, v, i, f, c, n, m)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return h, *last

    @staticmethod
    @first_order
    def backward(ctx, dh, dc, dn, dm):
        # One token is a sequence of one: made again with its l, then the sequence's backward.
        q, k, v, i, f, c, n, m = ctx.saved_tensors
        sigmoid_gate, normalize, eps = ctx.options
        one = (q[:, :, None], k[:, :, None], v[:, :, None], i, f, c, n, m, None)
        h, l = OPS.mlstm_chunkwise(*one, sigmoid_gate, normalize, eps, 1, False)
        dh = torch.zeros_like(h) if dh is None else _unit_last_stride(dh)[:, :, None]
        dlast = [dc, dn, dm]
        if any(x is not None for x in dlast):
            dlast = [
                torch.zeros_like(y) if x is None else x.contiguous() for x, y in zip(dlast, (c, n, m), strict=True)
            ]
        dq, dk, dv, *gradients = OPS.mlstm_backward_states(
            *one, h, l, dh, *dlast, sigmoid_gate, normalize, True, eps, 1, False
        )
        return dq[:, :, 0], dk[:, :, 0], dv[:, :, 0], *gradients, None, None
