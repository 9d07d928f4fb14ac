# SPDX-License-Identifier: Apache-2.0
"""The gates of the mLSTM: from pre-activations to the weights that scale the matrix products, and back.

Within a chunk of L tokens, entered with stabiliser m_prev and left with m_next (all sums over log gates):

    log_decay[t, s] = lf_(s+1) + ... + lf_t + li_s   (s <= t)      prefix[t] = lf_1 + ... + lf_t
    m_t = max(prefix[t] + m_prev, max_s log_decay[t, s])           m_next = m_L

    intra[t, s] = e^(log_decay[t, s] - m_t)        token s in the output of token t
    inter[t]    = e^(prefix[t] + m_prev - m_t)     the entering state in the output of token t
    update[s]   = e^(log_decay[L, s] - m_next)     token s in the leaving state
    carry       = e^(prefix[L] + m_prev - m_next)  the entering state in the leaving state

The stabiliser cancels between numerator and normaliser, so these four hold it constant (all but m_initial,
which scales the initial state), and its gradient is taken only where it does not cancel: in eps and in the
last states. Letting autograd find the cancellation would leave its rounding errors in the gate gradients.

With the sigmoid gate li = logsigmoid(i), no exponent is positive and every m but m_initial is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class ChunkGates(NamedTuple):
    intra: Tensor  # (B, NH, NC, L, L)
    inter: Tensor  # (B, NH, NC, L)
    update: Tensor  # (B, NH, NC, L)
    carry: Tensor  # (B, NH, NC)
    m: Tensor  # (B, NH, NC, L), the stabiliser of each token
    m_last: Tensor  # (B, NH, 1)
    carried: Tensor  # (B, NH, NC, L) bool: m came in with the state ...
    source: Tensor  # (B, NH, NC, L) ... or else from this token of the chunk


def log_gates(i: Tensor, f: Tensor, gate: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pre-activations (...) -> log input gate, log forget gate, in the accumulation dtype."""
    li = i.to(dtype)
    return (li if gate == "exp" else F.logsigmoid(li)), F.logsigmoid(f.to(dtype))


def log_forget_matrix(
    lf: Tensor,  # (B, NH, NC, L)
    stable: bool,
) -> Tensor:  # (B, NH, NC, L, L): lf_(s+1) + ... + lf_t at [t, s], 0 for s >= t
    """A difference of two float32 prefix sums of f = -60 tokens has lost the digits that a later f = 0 needs.

    So either every entry is summed on its own (stable), or prefix sums are float64, which Apple's GPU lacks.
    """
    if stable or lf.device.type == "mps":
        return lf.unsqueeze(-1).expand(*lf.shape, lf.shape[-1]).tril(-1).cumsum(-2)
    prefix = lf.double().clamp(min=-1e4).cumsum(-1)  # e^-1e4 is 0 as e^-inf is, but -inf - -inf would be NaN
    return (prefix.unsqueeze(-1) - prefix.unsqueeze(-2)).tril(-1).to(lf.dtype)


def chunk_gates(
    li: Tensor,  # (B, NH, NC, L)
    lf: Tensor,  # (B, NH, NC, L)
    m_initial: Tensor,  # (B, NH, 1)
    gate: str,
    stable: bool,
) -> ChunkGates:
    chunks, length = lf.shape[2:]
    causal = torch.ones(length, length, dtype=torch.bool, device=lf.device).tril()
    log_decay = torch.where(causal, log_forget_matrix(lf, stable) + li.unsqueeze(-2), -torch.inf)
    prefix = lf.cumsum(-1)
    chunk_max, source = log_decay.max(-1)

    borders = [m_initial]  # the stabiliser between chunks
    for x in range(chunks):
        passed_on = torch.maximum(prefix[:, :, x, -1:] + borders[-1], chunk_max[:, :, x, -1:])
        borders.append(passed_on if gate == "exp" else torch.zeros_like(passed_on))
    passing = prefix + torch.stack(borders[:-1], dim=2)
    m = torch.maximum(passing, chunk_max) if gate == "exp" else torch.zeros_like(chunk_max)

    # Added in this order, e^(prefix + (entering - m)) makes good the rounding of m = prefix + entering.
    fixed = m.detach()
    entering = torch.cat([m_initial, *(b.detach() for b in borders[1:-1])], dim=-1)  # (B, NH, NC)
    leaving = fixed[..., -1]
    return ChunkGates(
        intra=torch.exp(log_decay - fixed.unsqueeze(-1)),
        inter=torch.exp(prefix + (entering.unsqueeze(-1) - fixed)),
        update=torch.exp(log_decay[..., -1, :] - leaving.unsqueeze(-1)),
        carry=torch.exp(prefix[..., -1] + (entering - leaving)),
        m=m,
        m_last=borders[-1],
        carried=passing > chunk_max,
        source=source,
    )


def chunk_gates_backward(
    gates: ChunkGates,
    d_intra: Tensor,  # (B, NH, NC, L, L), like the next three with respect to the exponent
    d_inter: Tensor,  # (B, NH, NC, L)
    d_update: Tensor,  # (B, NH, NC, L)
    d_carry: Tensor,  # (B, NH, NC)
    dm: Tensor,  # (B, NH, NC, L)
    dm_last: Tensor,  # (B, NH, 1)
) -> tuple[Tensor, Tensor, Tensor]:
    """-> gradients of li, lf (B, NH, NC, L) and of m_initial (B, NH, 1).

    lf_j weighs whatever crosses token j: the tokens before j and the entering state, in the outputs from j on
    and in the leaving state. Summed as these four terms, nothing cancels.
    """
    d_intra, d_inter, dm_initial = _hand_to_picked(gates, d_intra, d_inter, dm, dm_last)
    across = d_intra.cumsum(-1).tril(-1).sum(-2)
    dlf = _shifted(across) + d_inter.flip(-1).cumsum(-1).flip(-1) + _shifted(d_update.cumsum(-1))
    dlf = dlf + d_carry.unsqueeze(-1)
    dli = d_intra.sum(-2) + d_update
    return dli, dlf, dm_initial


def _hand_to_picked(
    gates: ChunkGates, d_intra: Tensor, d_inter: Tensor, dm: Tensor, dm_last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of each m belongs to the one exponent that its maximum picked; the rest is m_initial's."""
    nothing = torch.zeros_like(dm)
    from_chunk = torch.where(gates.carried, dm, nothing).sum(-1, keepdim=True)
    at_border = dm_last
    borders = []
    for x in reversed(range(dm.shape[2])):
        borders.append(at_border)
        passed_on = torch.where(gates.carried[:, :, x, -1:], at_border, nothing[:, :, x, -1:])
        at_border = from_chunk[:, :, x] + passed_on
    dm = torch.cat([dm[..., :-1], dm[..., -1:] + torch.stack(borders[::-1], dim=2)], dim=-1)
    picked = torch.where(gates.carried, nothing, dm).unsqueeze(-1)
    d_intra = d_intra.scatter_add(-1, gates.source.unsqueeze(-1), picked)
    return d_intra, d_inter + torch.where(gates.carried, dm, nothing), at_border


def _shifted(x: Tensor) -> Tensor:
    """(..., L): one token later, 0 first."""
    return F.pad(x[..., :-1], (1, 0))
