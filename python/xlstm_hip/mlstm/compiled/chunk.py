# SPDX-License-Identifier: Apache-2.0
"""The maths of one chunk in plain torch, written to be compiled: no loop, no branch on a size.

Exponential input gate. N counts chunks that are worked on side by side (of batch entries and heads, and of
one sequence too where the states between them are known), L the tokens of a chunk. Everything is in the
accumulation dtype.

chunk_output, chunk_update and next_state are for autograd. chunk_step has its backward written out. Were it
derived, a deadlock: it is compiled in a worker while autograd's one thread for the GPU waits for the workers,
and deriving it needs that thread.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from ...reference.gates import log_forget_matrix

State = tuple[Tensor, Tensor, Tensor]  # c (N, DHQK, DHHV), n (N, DHQK), m (N, 1)

# h does not depend on its stabiliser, so that may be held above the value where e^-m leaves float32.
LOWEST_STABILISER = -80.0


class _Exponents(NamedTuple):
    from_token: Tensor  # (N, L, L): lf_(s+1) + ... + lf_t + i_s at [t, s], -inf for s > t
    from_state: Tensor  # (N, L): lf_1 + ... + lf_t + m
    m: Tensor  # (N, L): the stabiliser of each token, their maximum


def _exponents(i: Tensor, f: Tensor, m: Tensor) -> _Exponents:
    lf = logsigmoid(f)
    forgets = log_forget_matrix(lf, stable=True)
    causal = torch.ones_like(forgets, dtype=torch.bool).tril()
    from_token = (forgets + i.unsqueeze(1)).masked_fill(~causal, -torch.inf)
    from_state = forgets[:, :, 0] + lf[:, :1] + m
    return _Exponents(from_token, from_state, torch.maximum(from_state, from_token.amax(-1)))


def chunk_output(
    q: Tensor,  # (N, L, DHQK)
    k: Tensor,  # (N, L, DHQK)
    v: Tensor,  # (N, L, DHHV)
    i: Tensor,  # (N, L)
    f: Tensor,  # (N, L)
    c: Tensor,  # (N, DHQK, DHHV)
    n: Tensor,  # (N, DHQK)
    m: Tensor,  # (N, 1)
    eps: Tensor,  # ()
) -> Tensor:
    """h (N, L, DHHV) of chunks that the state (c, n, m) enters."""
    from_token, from_state, m_t = _exponents(i, f, m)
    m_t = m_t.clamp(min=LOWEST_STABILISER)
    q = q * q.shape[-1] ** -0.5
    scores = ((q @ k.mT) * torch.exp(from_token - m_t.unsqueeze(-1))).tril()  # 0 times a later nan is nan
    q_state = q * torch.exp(from_state - m_t).unsqueeze(-1)
    numerator = q_state @ c + scores @ v
    normaliser = (q_state @ n.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    return numerator / (torch.maximum(normaliser.abs(), torch.exp(-m_t)) + eps).unsqueeze(-1)


def chunk_update(
    k: Tensor,  # (N, L, DHQK)
    v: Tensor,  # (N, L, DHHV)
    i: Tensor,  # (N, L)
    f: Tensor,  # (N, L)
) -> tuple[Tensor, State]:
    """The effect of chunks on any state that enters: its log decay (N, 1), and the state that they leave if none
    enters."""
    lf = logsigmoid(f)
    forgets = log_forget_matrix(lf, stable=True)
    to_end = forgets[:, -1] + i
    m = to_end.amax(-1, keepdim=True)
    weighted_k = k * torch.exp(to_end - m).unsqueeze(-1)
    return forgets[:, -1, :1] + lf[:, :1], (weighted_k.mT @ v, weighted_k.sum(1), m)


def next_state(state: State, log_decay: Tensor, added: State) -> State:
    """The state after a chunk, from the one before it and chunk_update's two results."""
    c, n, m = state
    c_added, n_added, m_added = added
    m_next = torch.maximum(log_decay + m, m_added)
    keep, add = torch.exp(log_decay + m - m_next), torch.exp(m_added - m_next)
    return keep.unsqueeze(-1) * c + add.unsqueeze(-1) * c_added, keep * n + add * n_added, m_next


def chunk_step(
    q: Tensor,  # (N, L, DHQK)
    k: Tensor,  # (N, L, DHQK)
    v: Tensor,  # (N, L, DHHV)
    i: Tensor,  # (N, L)
    f: Tensor,  # (N, L)
    c: Tensor,  # (N, DHQK, DHHV)
    n: Tensor,  # (N, DHQK)
    m: Tensor,  # (N, 1)
    eps: Tensor,  # ()
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One chunk: h (N, L, DHHV) and the state after it, (c, n, m)."""
    return chunk_output(q, k, v, i, f, c, n, m, eps), *next_state((c, n, m), *chunk_update(k, v, i, f))


def chunk_step_backward(
    q: Tensor,  # (N, L, DHQK)
    k: Tensor,  # (N, L, DHQK)
    v: Tensor,  # (N, L, DHHV)
    i: Tensor,  # (N, L)
    f: Tensor,  # (N, L)
    c: Tensor,  # (N, DHQK, DHHV)
    n: Tensor,  # (N, DHQK)
    m: Tensor,  # (N, 1)
    eps: Tensor,  # ()
    dh: Tensor,  # (N, L, DHHV)
    dc: Tensor,  # (N, DHQK, DHHV), like the next two of the state after the chunk
    dn: Tensor,  # (N, DHQK)
    dm: Tensor,  # (N, 1)
) -> tuple[Tensor, ...]:
    """Exact gradients of q, k, v, i, f, c, n, m, given those of chunk_step's results."""
    from_token, from_state, m_t = _exponents(i, f, m)
    m_next, m_h = m_t[:, -1:], m_t.clamp(min=LOWEST_STABILISER)
    scale = q.shape[-1] ** -0.5
    weights = torch.exp(from_token - m_h.unsqueeze(-1)) * scale
    scores = ((q @ k.mT) * weights).tril()
    q_state = q * torch.exp(from_state - m_h).unsqueeze(-1) * scale
    k_next = k * torch.exp(from_token[:, -1] - m_next).unsqueeze(-1)
    keep = torch.exp(from_state[:, -1:] - m_next)
    total = (q_state @ n.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    floor = torch.exp(-m_h)
    normaliser = torch.maximum(total.abs(), floor) + eps

    # h = numerator / normaliser
    dnumerator = dh / normaliser.unsqueeze(-1)
    dnormaliser = -((q_state @ c + scores @ v) * dnumerator).sum(-1) / normaliser
    dtotal = torch.where(total.abs() > floor, dnormaliser * total.sign(), 0.0)
    dscores = (dnumerator @ v.mT + dtotal.unsqueeze(-1)).tril()
    dweighted = dscores * weights
    dq_state = dnumerator @ c.mT + dtotal.unsqueeze(-1) * n.unsqueeze(1)
    dk_next = v @ dc.mT + dn.unsqueeze(1)
    dq = dweighted @ k + dq_state * (torch.exp(from_state - m_h) * scale).unsqueeze(-1)
    dk = dweighted.mT @ q + dk_next * torch.exp(from_token[:, -1] - m_next).unsqueeze(-1)
    dv = scores.mT @ dnumerator + k_next @ dc

    # The exponents. Every m cancels, but for m_h beside eps and m_next in the state that is handed on. The state that
    # is passed on has the exponents of the last token.
    last = torch.arange(q.shape[1], device=q.device) == q.shape[1] - 1
    dfrom_token = dscores * scores + last.unsqueeze(-1) * (k_next * dk_next).sum(-1).unsqueeze(1)
    decayed = keep * ((c * dc).sum((-2, -1)) + (n * dn).sum(-1)).unsqueeze(-1)
    dfrom_state = (q_state * dq_state).sum(-1) + last * decayed
    handed_on = decayed + (k_next * dk_next).sum((-2, -1)).unsqueeze(-1)  # <dc, c_next> + <dn, n_next>
    dm_t = dnormaliser * eps + last * (dm - handed_on)
    picked_state = from_state >= from_token.amax(-1)
    picked_token = torch.arange(q.shape[1], device=q.device) == from_token.argmax(-1, keepdim=True)
    dfrom_token = dfrom_token + picked_token * torch.where(picked_state, 0.0, dm_t).unsqueeze(-1)
    dfrom_state = dfrom_state + torch.where(picked_state, dm_t, 0.0)

    # lf_j is in the exponents of tokens t >= j: those from tokens s < j, and those from the state
    across = pad(dfrom_token.cumsum(-1).tril(-1).sum(1)[:, :-1], (1, 0))
    dlf = across + dfrom_state.flip(-1).cumsum(-1).flip(-1)
    dc_entering = keep.unsqueeze(-1) * dc + q_state.mT @ dnumerator
    dn_entering = keep * dn + (q_state * dtotal.unsqueeze(-1)).sum(1)
    di, dm_entering = dfrom_token.sum(1), dfrom_state.sum(-1, keepdim=True)
    return dq, dk, dv, di, dlf * torch.sigmoid(-f), dc_entering, dn_entering, dm_entering
