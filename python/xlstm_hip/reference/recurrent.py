# SPDX-License-Identifier: Apache-2.0
"""mLSTM kernels that work token by token: one step, and a sequence as a loop over steps."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.autocast import in_kernel_dtype
from .._core.checks import (
    accumulate_dtype,
    check_sequence_inputs,
    check_step_inputs,
    gradient_needed,
    keeps_bfloat16_c,
    positive_or_none,
    states_in,
    written_in_place,
)
from .core import States
from .gates import log_gates
from .inputs import SequenceInputs, wide_states, without_autocast
from .layers import soft_cap
from .stochastic_rounding import rounded_c


def _step(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV), accumulation dtype, as n and m
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    m_fixed: Tensor,  # (B, NH, 1): m without its gradient, unless m came from the caller
    eps: float,
    gate: str,
    normalize: bool,
) -> tuple[Tensor, States]:
    """The stabiliser is held constant as in gates.py: c and n come back without their gradient through m."""
    io, wide, scale = q.dtype, accumulate_dtype(q.dtype), q.shape[-1] ** -0.5
    li, lf = log_gates(i, f, gate, wide)
    m = torch.maximum(lf + m, li) if gate == "exp" else torch.zeros_like(m)
    fixed = m.detach()
    carry, weighted_k = torch.exp(lf + (m_fixed - fixed)), torch.exp(li - fixed) * k.to(wide)
    c = carry.unsqueeze(-1) * c + weighted_k.unsqueeze(-1) * v.to(wide).unsqueeze(-2)
    n = carry * n + weighted_k
    h = scale * (q.unsqueeze(-2) @ c.to(io)).squeeze(-2).to(wide)
    if normalize:
        total = scale * (q.to(wide) * n).sum(-1, keepdim=True)
        h = h / (torch.maximum(total.abs(), torch.exp(-fixed)) + eps * torch.exp(m - fixed))
    return h.to(io), (c, n, m)


def _with_gradient_of_m(c: Tensor, n: Tensor, m: Tensor) -> States:
    if not m.requires_grad:
        return c, n, m
    one = torch.exp(m.detach() - m)
    return c * one.unsqueeze(-1), n * one, m


def _one_step(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float,
    gate: str,
    dtype_state: torch.dtype | None,
    normalize: bool,
    in_place: bool,
    gate_soft_cap: float | None,
) -> tuple[Tensor, States]:
    check_step_inputs(q, k, v, i, f, c, n, m, eps)
    if in_place:
        written_in_place(dtype_state, c)
    positive_or_none("gate_soft_cap", gate_soft_cap)
    gradient = gradient_needed(q, k, v, i, f, c, n, m)
    if in_place and gradient:
        raise ValueError("in_place: expected inputs that need no gradient (or torch.no_grad()), got one that does")
    wide = accumulate_dtype(q.dtype)
    with without_autocast(q):
        if gate_soft_cap is not None:
            i, f = soft_cap(i.to(wide), gate_soft_cap), soft_cap(f.to(wide), gate_soft_cap)
        start = m.to(wide)
        h, states = _step(q, k, v, i, f, c.to(wide), n.to(wide), start, start, eps, gate, normalize)
        if keeps_bfloat16_c(c, q, dtype_state, in_place, gradient):
            states = (rounded_c(states[0], i, f, n, m, gate), *states[1:])
    if not in_place:
        return h, states_in(dtype_state, _with_gradient_of_m(*states))
    for target, new in zip((c, n, m), states, strict=True):
        target.copy_(new)
    return h, (c, n, m)


def _steps(
    inputs: SequenceInputs,
    return_last_states: bool,
    eps: float,
    autocast_kernel_dtype: torch.dtype,
    chunk_size: int,
    gate: str,
    dtype_state: torch.dtype | None,
    normalize: bool,
) -> Tensor | tuple[Tensor, States]:
    q, k, v, i, f = in_kernel_dtype(inputs[:5], autocast_kernel_dtype)
    check_sequence_inputs(q, k, v, i, f, *inputs[5:], eps=eps, chunk_size=chunk_size)
    with without_autocast(q):
        c, n, m = wide_states(q, v, *inputs[5:])
        m_fixed = m
        hs = []
        for t in range(q.shape[2]):
            qt, kt, vt = q[:, :, t], k[:, :, t], v[:, :, t]
            it, ft = i[:, :, t, None], f[:, :, t, None]
            h, (c, n, m) = _step(qt, kt, vt, it, ft, c, n, m, m_fixed, eps, gate, normalize)
            m_fixed = m.detach()
            hs.append(h)
        outputs = torch.stack(hs, dim=2)
        return (outputs, states_in(dtype_state, _with_gradient_of_m(c, n, m))) if return_last_states else outputs


def mlstm_recurrent_step__native(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float = 1e-6,
    dtype_state: torch.dtype | None = None,
    *,
    in_place: bool = False,
    gate_soft_cap: float | None = None,
) -> tuple[Tensor, States]:  # h (B, NH, DHHV), (c, n, m)
    """One token, exponential input gate. in_place writes the new states over c, n, m and returns those; else they are
    in dtype_state, float32 by default, m never below."""
    return _one_step(q, k, v, i, f, c, n, m, eps, "exp", dtype_state, True, in_place, gate_soft_cap)


def mlstm_siging_recurrent_step__native(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float = 1e-6,
    dtype_state: torch.dtype | None = None,
    *,
    normalize: bool = True,
    in_place: bool = False,
    gate_soft_cap: float | None = None,
) -> tuple[Tensor, States]:  # h (B, NH, DHHV), (c, n, m)
    """One token, sigmoid input gate. in_place writes the new states over c, n, m and returns those; else they are
    in dtype_state, float32 by default, m never below."""
    return _one_step(q, k, v, i, f, c, n, m, eps, "sigmoid", dtype_state, normalize, in_place, gate_soft_cap)


def mlstm_recurrent_sequence__native_fw(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    *,
    dtype_state: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """A loop over steps, exponential input gate. chunk_size is part of the shared call: no meaning here."""
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return _steps(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, "exp", dtype_state, True)


def mlstm_siging_recurrent_sequence__native_fw(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    normalize: bool = True,
    *,
    dtype_state: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """A loop over steps, sigmoid input gate. chunk_size is part of the shared call: no meaning here."""
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return _steps(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, "sigmoid", dtype_state, normalize)
