# SPDX-License-Identifier: Apache-2.0
"""The chunkwise mLSTM in plain torch, forward and exact backward, for both gates.

Chunks of L tokens are worked on side by side; only the states between them are walked in order. One chunk of
S tokens is the parallel form. Matrix products run in the dtype of q, k, v (the state is cast to it); gates,
stabiliser, normaliser and the state itself are float32, or float64 with float64 inputs.

    num = s inter Q C + (s Q K^T * intra) V        l = the same with n and row sums        s = DHQK^-1/2
    h   = num / (max(|l|, e^-m) + eps)             C_next = carry C + (update K)^T V       n_next likewise
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._core.autocast import in_kernel_dtype
from .._core.checks import accumulate_dtype, check_sequence_inputs
from .gates import ChunkGates, chunk_gates, chunk_gates_backward, log_gates
from .inputs import SequenceInputs, from_chunks, to_chunks, wide_states, without_autocast

States = tuple[Tensor, Tensor, Tensor]


class Variant(NamedTuple):
    """The options that select a member of the family."""

    gate: str = "exp"
    normalize: bool = True
    normalizer_grad: bool = True  # False: normaliser, n and m are constants, as mlstm_kernels has them
    stable: bool = True  # how the log-forget matrix is summed
    one_chunk: bool = False
    custom_backward: bool = False


class Forward(NamedTuple):
    """All that the backward needs, chunked."""

    q: Tensor  # (B, NH, NC, L, DHQK)
    k: Tensor  # (B, NH, NC, L, DHQK)
    v: Tensor  # (B, NH, NC, L, DHHV)
    gates: ChunkGates
    weights: Tensor  # (B, NH, NC, L, L): s Q K^T * intra
    c_entering: Tensor  # (B, NH, NC, DHQK, DHHV)
    n_entering: Tensor  # (B, NH, NC, DHQK)
    c_last: Tensor  # (B, NH, DHQK, DHHV), the stabiliser held constant, as in n_last
    n_last: Tensor  # (B, NH, DHQK)
    normalizer: Tensor  # (B, NH, NC, L, 1)
    normalizer_sum: Tensor  # (B, NH, NC, L, 1): l
    h: Tensor  # (B, NH, NC, L, DHHV), accumulation dtype


def forward(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float,
    chunk: int,
    variant: Variant,
) -> Forward:
    io, wide, scale = q.dtype, accumulate_dtype(q.dtype), q.shape[-1] ** -0.5
    li, lf = log_gates(i, f, variant.gate, wide)
    q, k, v = (to_chunks(x, chunk) for x in (q, k, v))
    gates = chunk_gates(
        to_chunks(li, chunk, fill=-torch.inf),  # the filled tail neither enters
        to_chunks(lf, chunk),  # nor forgets
        m if variant.normalizer_grad else m.detach(),
        variant.gate,
        variant.stable,
    )

    weighted_k = k.to(wide) * gates.update.unsqueeze(-1)
    update_c = (weighted_k.to(io).mT @ v).to(wide)
    update_n = weighted_k.sum(-2)
    cs, ns = [], []
    for x in range(q.shape[2]):
        cs.append(c)
        ns.append(n)
        carry = gates.carry[:, :, x, None]
        c = carry.unsqueeze(-1) * c + update_c[:, :, x]
        n = carry * n + update_n[:, :, x]
    c_entering, n_entering = torch.stack(cs, dim=2), torch.stack(ns, dim=2)

    inter = (scale * gates.inter).unsqueeze(-1)
    weights = ((q @ k.mT).to(wide) * scale * gates.intra).tril()
    num = inter * (q @ c_entering.to(io)).to(wide) + (weights.to(io) @ v).to(wide)
    total = inter * (q.to(wide) @ n_entering.unsqueeze(-1)) + weights.sum(-1, keepdim=True)
    if variant.normalize:
        fixed = gates.m.detach()
        eps_of_m = eps * torch.exp(gates.m - fixed)  # eps, with the gradient it has through m
        normalizer = torch.maximum(total.abs(), torch.exp(-fixed).unsqueeze(-1)) + eps_of_m.unsqueeze(-1)
    else:
        normalizer = torch.ones_like(total)
    h = num / (normalizer if variant.normalizer_grad else normalizer.detach())
    return Forward(q, k, v, gates, weights, c_entering, n_entering, c, n, normalizer, total, h)


def last_states(done: Forward, variant: Variant) -> States:
    c, n, m = done.c_last, done.n_last, done.gates.m_last
    if not variant.normalizer_grad:
        return c, n.detach(), m.detach()
    one = torch.exp(m.detach() - m)  # with the gradient that c and n have through m
    return c * one.unsqueeze(-1), n * one, m


def backward(
    done: Forward,
    dh: Tensor,  # (B, NH, S, DHHV)
    dc_last: Tensor,  # (B, NH, DHQK, DHHV)
    dn_last: Tensor,  # (B, NH, DHQK)
    dm_last: Tensor,  # (B, NH, 1)
    eps: float,
    chunk: int,
    variant: Variant,
) -> tuple[Tensor, ...]:
    """Gradients of q k v (B, NH, S, D), li lf (B, NH, S) and the initial c n m, in the accumulation dtype."""
    q, k, v, gates, weights = done.q, done.k, done.v, done.gates, done.weights
    io, wide, scale, length = q.dtype, weights.dtype, q.shape[-1] ** -0.5, dh.shape[2]
    dh = to_chunks(dh, chunk).to(wide)

    dnum = dh / done.normalizer
    dh_h = (dh * done.h).sum(-1, keepdim=True)
    dl = torch.zeros_like(dh_h)
    dm = torch.zeros_like(gates.m)
    if variant.normalizer_grad and variant.normalize:
        in_use = done.normalizer_sum.abs() > torch.exp(-gates.m).unsqueeze(-1)
        dl = torch.where(in_use, -dh_h / done.normalizer * done.normalizer_sum.sign(), dl)
        dm = -(dh_h * eps / done.normalizer).squeeze(-1)
    if variant.normalizer_grad:
        dm_last = dm_last - (_dot(dc_last, done.c_last, 2) + _dot(dn_last, done.n_last, 1)).unsqueeze(-1)
    else:
        dn_last, dm_last = torch.zeros_like(dn_last), torch.zeros_like(dm_last)
    if variant.gate == "sigmoid":  # m is the constant 0
        dm, dm_last = torch.zeros_like(dm), torch.zeros_like(dm_last)

    # the states, back in time: the outputs of each chunk add what they ask of the state that entered it
    inter = (scale * gates.inter).unsqueeze(-1)
    weighted_q = inter * q.to(wide)
    query_dc = (weighted_q.to(io).mT @ dnum.to(io)).to(wide)
    query_dn = (weighted_q * dl).sum(-2)
    dc, dn = dc_last, dn_last
    leaving_c, leaving_n = [], []
    for x in reversed(range(q.shape[2])):
        leaving_c.append(dc)
        leaving_n.append(dn)
        carry = gates.carry[:, :, x, None]
        dc = carry.unsqueeze(-1) * dc + query_dc[:, :, x]
        dn = carry * dn + query_dn[:, :, x]
    dc_next, dn_next = torch.stack(leaving_c[::-1], dim=2), torch.stack(leaving_n[::-1], dim=2)
    dc_next_io, c_io = dc_next.to(io), done.c_entering.to(io)

    dweights = ((dnum.to(io) @ v.mT).to(wide) + dl).tril()
    dscores = (dweights * gates.intra * scale).to(io)
    dq_state = (dnum.to(io) @ c_io.mT).to(wide) + dl * done.n_entering.unsqueeze(-2)
    dk_state = (v @ dc_next_io.mT).to(wide) + dn_next.unsqueeze(-2)
    update = gates.update.unsqueeze(-1)
    weighted_k = (update * k.to(wide)).to(io)
    dq = (dscores @ k).to(wide) + inter * dq_state
    dk = (dscores.mT @ q).to(wide) + update * dk_state
    dv = (weights.to(io).mT @ dnum.to(io)).to(wide) + (weighted_k @ dc_next_io).to(wide)

    d_inter = _dot(weighted_q, dq_state, 1)
    d_carry = gates.carry * (_dot(dc_next, done.c_entering, 2) + _dot(dn_next, done.n_entering, 1))
    dli, dlf, dm_initial = chunk_gates_backward(
        gates,
        dweights * weights,
        d_inter,
        gates.update * _dot(k.to(wide), dk_state, 1),
        d_carry,
        dm,
        dm_last,
    )
    if variant.normalizer_grad:  # m_initial also scales the initial state
        dm_initial = dm_initial + d_inter[:, :, 0].sum(-1, keepdim=True) + d_carry[:, :, :1]
    return *(from_chunks(x, length) for x in (dq, dk, dv, dli, dlf)), dc, dn, dm_initial


def _dot(x: Tensor, y: Tensor, dims: int) -> Tensor:
    """The inner product over the last dims dimensions, without a product of that size in between."""
    return (x.flatten(-dims).unsqueeze(-2) @ y.flatten(-dims).unsqueeze(-1)).squeeze(-1).squeeze(-1)


class _ExactBackward(torch.autograd.Function):
    """Keeps the inputs only: the backward makes the rest again."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,  # (B, NH, S, DHQK)
        k: Tensor,  # (B, NH, S, DHQK)
        v: Tensor,  # (B, NH, S, DHHV)
        i: Tensor,  # (B, NH, S)
        f: Tensor,  # (B, NH, S)
        c: Tensor,  # (B, NH, DHQK, DHHV)
        n: Tensor,  # (B, NH, DHQK)
        m: Tensor,  # (B, NH, 1)
        eps: float,
        chunk: int,
        variant: Variant,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(q, k, v, i, f, c, n, m)
        ctx.settings = eps, chunk, variant
        done = forward(q, k, v, i, f, c, n, m, eps, chunk, variant)
        # A copy: torch 2.11 loses the gradient of an output that is a view, where the function is part of a graph.
        return from_chunks(done.h, q.shape[2]).to(q.dtype, copy=True), *last_states(done, variant)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor, dn: Tensor, dm: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        i, f = inputs[3:5]
        gate = ctx.settings[-1].gate
        with without_autocast(dh):
            done = forward(*inputs, *ctx.settings)
            dq, dk, dv, di, df, dc, dn, dm = backward(done, dh, dc, dn, dm, *ctx.settings)
        df = df * torch.sigmoid(-f.to(df.dtype))
        if gate == "sigmoid":
            di = di * torch.sigmoid(-i.to(di.dtype))
        grads = (dq, dk, dv, di, df, dc, dn, dm)
        return *(g.to(x.dtype) for g, x in zip(grads, inputs, strict=True)), None, None, None


def run(
    inputs: SequenceInputs,
    return_last_states: bool,
    eps: float,
    autocast_kernel_dtype: torch.dtype,
    chunk_size: int,
    variant: Variant,
) -> Tensor | tuple[Tensor, States]:
    """Runs a chunkwise or parallel kernel of this package with its arguments."""
    q, k, v, i, f = in_kernel_dtype(inputs[:5], autocast_kernel_dtype)
    check_sequence_inputs(q, k, v, i, f, *inputs[5:], eps=eps, chunk_size=chunk_size)
    length = q.shape[2]
    chunk = length if variant.one_chunk else chunk_size
    with without_autocast(q):
        c, n, m = wide_states(q, v, *inputs[5:])
        if variant.custom_backward:
            h, c, n, m = _ExactBackward.apply(q, k, v, i, f, c, n, m, eps, chunk, variant)
        else:
            done = forward(q, k, v, i, f, c, n, m, eps, chunk, variant)
            h, (c, n, m) = from_chunks(done.h, length).to(q.dtype), last_states(done, variant)
    return (h, (c, n, m)) if return_last_states else h
