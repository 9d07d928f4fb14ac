# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and gradients of the recurrent cells' ops. interface.py calls them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.checks import accumulate_dtype
from .._core.ops import OPS, OpFunction, first_order

GATES = ("i", "f", "z", "o")
KEPT = 3  # values of a unit that backward needs of each dtype
UNIT_STEP = 32  # what the kernels pad a head's units to
LSTM = 2  # of CELLS
# xlstm_cell of csrc/include/xlstm_hip.h, by function and forget gate.
CELLS = {("slstm", "sigmoid"): 0, ("slstm", "exp"): 1, ("lstm", "sigmoid"): LSTM}

# ---- the matrix as the kernels read it


def padded(units: int) -> int:
    return (units + UNIT_STEP - 1) // UNIT_STEP * UNIT_STEP


def forward_matrix(recurrent: Tensor) -> Tensor:
    """(4, NH, U, previous U) as (NH, 4, P, P)."""
    more = padded(recurrent.shape[-1]) - recurrent.shape[-1]
    matrix = recurrent.transpose(0, 1)
    return (F.pad(matrix, (0, more, 0, more)) if more else matrix).contiguous()


def backward_matrix(recurrent: Tensor) -> Tensor:
    """(4, NH, U, previous U) as (NH, previous P, 4, P)."""
    more = padded(recurrent.shape[-1]) - recurrent.shape[-1]
    matrix = recurrent.permute(1, 3, 0, 2)
    return (F.pad(matrix, (0, more, 0, 0, 0, more)) if more else matrix).contiguous()


# ---- shapes, for torch.compile and fake tensors


def _sequences(batch: Any, cu_seqlens: Tensor | None) -> Any:
    return batch if cu_seqlens is None else cu_seqlens.shape[0] - 1


@torch.library.register_fake("xlstm_hip::slstm_forward")
def _(x, recurrent, bias, h, c, n, m, cu_seqlens, cell, keep, stabilisers):
    batch, length, _, heads, units = x.shape
    wide = accumulate_dtype(x.dtype)
    state = (_sequences(batch, cu_seqlens), heads, units)
    kept = (batch, length, KEPT, heads, units) if keep else (0,)
    of_n = (0,) if cell == LSTM else state
    return (
        x.new_empty(batch, length, heads, units),
        x.new_empty(state),
        x.new_empty(state, dtype=wide),
        x.new_empty(of_n, dtype=wide),
        x.new_empty(of_n, dtype=wide),
        x.new_empty(kept, dtype=x.dtype if keep else wide),
        x.new_empty(kept, dtype=wide),
        x.new_empty((batch, length, heads, units) if stabilisers and cell != LSTM else (0,), dtype=wide),
    )


@torch.library.register_fake("xlstm_hip::slstm_step_")
def _(x, recurrent, bias, h, c, n, m, cell):
    batch, length, _, heads, units = x.shape
    return x.new_empty(batch, length, heads, units)


@torch.library.register_fake("xlstm_hip::slstm_backward")
def _(dh, recurrent, gates, memory, c, n, cu_seqlens, dc, dn, dm, dc_last, dn_last, dm_last, cell, bias, initial):
    batch, length, heads, units = dh.shape
    wide = accumulate_dtype(dh.dtype)
    sequences = _sequences(batch, cu_seqlens)
    state = (sequences, heads, units) if initial else (0,)
    of_n = (0,) if cell == LSTM else state
    return (
        dh.new_empty(batch, length, len(GATES), heads, units),
        dh.new_empty((sequences, len(GATES), heads, units) if bias else (0,), dtype=wide),
        dh.new_empty(state, dtype=wide),
        dh.new_empty(state, dtype=wide),
        dh.new_empty(of_n, dtype=wide),
        dh.new_empty(of_n, dtype=wide),
    )


# ---- gradients


def _previous_hidden(h: Tensor, h_initial: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """The hidden state that each token's gates have read."""
    previous = torch.empty_like(h)
    previous[:, 1:] = h[:, :-1]
    first = 0 if h_initial is None else h_initial
    if cu_seqlens is None:
        previous[:, 0] = first
    elif h_initial is None:
        previous[0].index_fill_(0, cu_seqlens[:-1], 0)
    else:
        previous[0].index_copy_(0, cu_seqlens[:-1], h_initial)
    return previous


def _matrix_gradient(dx: Tensor, previous: Tensor) -> Tensor:
    """(4, NH, U, previous U): the outer products of all tokens, summed in float32 or float64."""
    heads, units = previous.shape[-2:]
    if dx.device.type == "cpu":  # which has no fast products of 16 bits everywhere
        dx, previous = dx.to(accumulate_dtype(dx.dtype)), previous.to(accumulate_dtype(dx.dtype))
    of_tokens = previous.reshape(-1, heads, units).transpose(0, 1)  # (NH, tokens, U)
    gates = dx.reshape(-1, len(GATES), heads, units).permute(1, 2, 3, 0)  # (4, NH, U, tokens)
    return torch.stack([torch.bmm(gate, of_tokens) for gate in gates])


class CellFunction(OpFunction):
    """h, the last states, and with `all_states` c, n and m of every token. An LSTM has no n and m: None."""

    @staticmethod
    def forward(ctx, x, recurrent, bias, h0, c0, n0, m0, cu_seqlens, cell, all_states):
        h, *last, gates, memory, m = OPS.slstm_forward(
            x, forward_matrix(recurrent), bias, h0, c0, n0, m0, cu_seqlens, cell, True, all_states
        )
        ctx.save_for_backward(recurrent, h0, c0, n0, cu_seqlens, h, gates, memory)
        ctx.cell = cell
        ctx.set_materialize_grads(False)
        states = [None if cell == LSTM and n > 1 else s for n, s in enumerate(last)]
        if not all_states:
            return h, *states
        c, n = memory[:, :, 1].clone(), None if cell == LSTM else memory[:, :, 2].clone()
        return h, *states, c, n, None if cell == LSTM else m

    @staticmethod
    @first_order
    def backward(ctx, dh, dh_last, dc_last, dn_last, dm_last, dc=None, dn=None, dm=None):
        recurrent, h0, c0, n0, cu_seqlens, h, gates, memory = ctx.saved_tensors
        dh = torch.zeros_like(h) if dh is None else dh.contiguous()
        if dh_last is not None:  # the last token's h once more
            dh = dh.clone()
            if cu_seqlens is None:
                dh[:, -1] += dh_last
            else:
                dh[0].index_add_(0, cu_seqlens[1:] - 1, dh_last)
        needs = ctx.needs_input_grad
        initial = any(needs[3:7])
        states = [None if s is None else s.contiguous() for s in (dc, dn, dm, dc_last, dn_last, dm_last)]
        dx, d_bias, *d_initial = OPS.slstm_backward(
            dh, backward_matrix(recurrent), gates, memory, c0, n0, cu_seqlens, *states, ctx.cell, needs[2], initial
        )
        d_recurrent = None
        if needs[1]:
            d_recurrent = _matrix_gradient(dx, _previous_hidden(h, h0, cu_seqlens)).to(recurrent.dtype)
        d_bias = d_bias.sum(0) if needs[2] else None
        d_states = [d.to(h.dtype) if n == 0 else d for n, d in enumerate(d_initial)]
        d_states = [d if wanted else None for d, wanted in zip(d_states, needs[3:7], strict=True)]
        return dx if needs[0] else None, d_recurrent, d_bias, *d_states, None, None, None
