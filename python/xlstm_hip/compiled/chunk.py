# SPDX-License-Identifier: Apache-2.0
"""The maths of one chunk in plain torch, written to be compiled: exponential input gate, no loop, no branch on a size.

N counts chunks that are worked on side by side (of batch entries and heads, and of one sequence too where the states between
them are known), L the tokens of a chunk. Everything is in the accumulation dtype. Autograd of these functions is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..reference.gates import log_forget_matrix

State = tuple[Tensor, Tensor, Tensor]  # c (N, DHQK, DHHV), n (N, DHQK), m (N, 1)

# h does not depend on its stabiliser, so that may be held above the value where e^-m leaves float32.
LOWEST_STABILISER = -80.0


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
    lf = logsigmoid(f)
    forgets = log_forget_matrix(lf, stable=True)
    causal = torch.ones_like(forgets, dtype=torch.bool).tril()
    log_decay = (forgets + i.unsqueeze(1)).masked_fill(~causal, -torch.inf)
    from_state = forgets[:, :, 0] + lf[:, :1] + m
    m_t = torch.maximum(from_state, log_decay.amax(-1)).clamp(min=LOWEST_STABILISER)

    q = q * q.shape[-1] ** -0.5
    scores = (q @ k.mT) * torch.exp(log_decay - m_t.unsqueeze(-1))
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
    """What chunks do to any state that enters: its log decay (N, 1), and the state they would leave had none entered."""
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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    eps: Tensor,
    dh: Tensor,  # (N, L, DHHV)
    dc: Tensor,  # (N, DHQK, DHHV)
    dn: Tensor,  # (N, DHQK)
    dm: Tensor,  # (N, 1)
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, i, f, c, n, m, given those of chunk_step's four results; chunk_step itself is run again."""
    _, pull_back = torch.func.vjp(lambda *x: chunk_step(*x, eps), q, k, v, i, f, c, n, m)
    return pull_back((dh, dc, dn, dm))
