# SPDX-License-Identifier: Apache-2.0
"""The sLSTM and the LSTM with heads in plain torch, token by token. The kernels are measured by this.

The maths is csrc/slstm/recurrence.h's. The products and the cell are computed in float32 (float64 for float64); h is
rounded to x's dtype before the next token reads it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.checks import accumulate_dtype

CellStates = tuple[Tensor, ...]  # h, c, n, m; of an LSTM h, c


def without_past(like: Tensor, lstm: bool) -> CellStates:
    """The states before a first token: like is (N, NH, U)."""
    zero = torch.zeros_like(like, dtype=accumulate_dtype(like.dtype))
    return (torch.zeros_like(like), zero) if lstm else (torch.zeros_like(like), zero, zero, zero)


def cell_token(
    x: Tensor,  # (B, 4, NH, U) wide, with the bias
    recurrent: Tensor,  # (4, NH, U, previous U) wide
    states: CellStates,  # each (B, NH, U); m is -infinity where there is no past
    lstm: bool,
    exp_forget: bool,
) -> CellStates:
    """The states after one token; h is wide."""
    h, c, *n_m = states
    i, f, z, o = (x + torch.einsum("bhp,ghup->bghu", h.to(x.dtype), recurrent)).unbind(1)
    if lstm:
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
        return torch.sigmoid(o) * torch.tanh(c), c
    n, m = n_m
    from_past = (f if exp_forget else F.logsigmoid(f)) + m
    m = torch.maximum(from_past, i)
    keep, add = torch.exp(from_past - m), torch.exp(i - m)
    c, n = keep * c + add * torch.tanh(z), keep * n + add
    return torch.sigmoid(o) * c / n, c, n, m


def slstm_sequence(
    x: Tensor,  # (B, S, 4, NH, U)
    recurrent: Tensor,  # (4, NH, U, previous U)
    bias: Tensor | None,  # (4, NH, U)
    states: CellStates | None,
    cu_seqlens: Tensor | None = None,
    lstm: bool = False,
    exp_forget: bool = False,
) -> tuple[list[Tensor], CellStates]:
    """The states of every token, each (B, S, NH, U), and those after the last one, each (N, NH, U)."""
    if cu_seqlens is not None:
        ends = cu_seqlens.tolist()
        each = [
            slstm_sequence(
                x[:, begin:end], recurrent, bias, None if states is None else tuple(s[n : n + 1] for s in states),
                None, lstm, exp_forget,
            )
            for n, (begin, end) in enumerate(zip(ends, ends[1:], strict=False))
        ]  # fmt: skip
        tokens = [torch.cat(parts, 1) for parts in zip(*(all_states for all_states, _ in each), strict=True)]
        return tokens, tuple(torch.cat(parts) for parts in zip(*(last for _, last in each), strict=True))
    wide = accumulate_dtype(x.dtype)
    matrix, gates = recurrent.to(x.dtype).to(wide), x.to(wide)
    if bias is not None:
        gates = gates + bias.to(wide)
    now = without_past(x[:, 0, 0], lstm) if states is None else states
    if not lstm:
        h, c, n, m = now
        has_past = n != 0
        now = h, torch.where(has_past, c, 0.0), n, torch.where(has_past, m, -torch.inf)
    states_of_tokens: list[CellStates] = []
    for gate in gates.unbind(1):
        h, *rest = cell_token(gate, matrix, now, lstm, exp_forget)
        now = (h.to(x.dtype), *rest)
        states_of_tokens.append(now)
    return [torch.stack(parts, 1) for parts in zip(*states_of_tokens, strict=True)], now
