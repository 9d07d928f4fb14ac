# SPDX-License-Identifier: Apache-2.0
"""The truth that every kernel is measured against: the definition of the mLSTM, token by token, in float64.

Nothing here comes from the package under test. Gradients are autograd's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

States = tuple[Tensor, Tensor, Tensor]

TINY = 1e-30  # what is smaller counts as zero: float32 cannot hold much less
LARGE = 1 << 29  # bytes: where the states of all tokens are more, backward makes them again, so many tokens at a time
TOKENS_AT_A_TIME = 256


def recurrence(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float,
    gate: str,
    normalize: bool,
    normalizer_grad: bool,
) -> tuple[Tensor, States]:
    state_bytes = c.numel() * c.element_size()
    settings = (eps, gate, normalize, normalizer_grad)
    if q.shape[2] <= TOKENS_AT_A_TIME or state_bytes * q.shape[2] <= LARGE:
        return _tokens(q, k, v, i, f, c, n, m, *settings)
    hs = []
    for parts in zip(*(x.split(TOKENS_AT_A_TIME, dim=2) for x in (q, k, v, i, f)), strict=True):
        h, (c, n, m) = checkpoint(_tokens, *parts, c, n, m, *settings, use_reentrant=False, preserve_rng_state=False)
        hs.append(h)
    return torch.cat(hs, dim=2), (c, n, m)


def _tokens(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    eps: float,
    gate: str,
    normalize: bool,
    normalizer_grad: bool,
) -> tuple[Tensor, States]:
    # normalizer_grad=False is the gradient of mlstm_kernels: normaliser, n and m count as constants
    constant: Callable[[Tensor], Tensor] = (lambda x: x) if normalizer_grad else torch.Tensor.detach
    n, m = constant(n), constant(m)
    hs = []
    # Unbound, not indexed: the gradient of an index is as long as the sequence.
    for qt, kt, vt, it, ft in zip(*(x.unbind(2) for x in (q, k, v, i, f)), strict=True):
        qt, it, lf = qt * q.shape[-1] ** -0.5, it[..., None], F.logsigmoid(ft[..., None])
        if gate == "exp":
            m_next = constant(torch.maximum(lf + m, it))
        else:
            it, m_next = F.logsigmoid(it), torch.zeros_like(m)
        forget, enter = torch.exp(lf + m - m_next), torch.exp(it - m_next)
        c = forget[..., None] * c + enter[..., None] * kt[..., :, None] * vt[..., None, :]
        n = constant(forget * n + enter * kt)
        m = m_next
        num = (qt[..., :, None] * c).sum(-2)
        size = (qt * n).sum(-1, keepdim=True).abs()
        hs.append(num / constant(torch.maximum(size, torch.exp(-m)) + eps) if normalize else num)
    return torch.stack(hs, dim=2), (c, n, m)


def truth(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (N, NH, DHQK, DHHV), N = B, or the number of packed sequences
    n_initial: Tensor | None = None,  # (N, NH, DHQK)
    m_initial: Tensor | None = None,  # (N, NH, 1)
    *,
    eps: float = 1e-6,
    gate: str = "exp",
    normalize: bool = True,
    normalizer_grad: bool = True,
    cu_seqlens: Tensor | Sequence[int] | None = None,  # (N + 1), B = 1
) -> tuple[Tensor, States]:
    """h (B, NH, S, DHHV) and the last states, in float64 whatever the dtype of the inputs."""
    q, k, v, i, f = (x.double() for x in (q, k, v, i, f))
    ends = [0, q.shape[2]] if cu_seqlens is None else [int(e) for e in cu_seqlens]
    sequences = q.shape[0] if cu_seqlens is None else len(ends) - 1
    heads, dqk, dhv = q.shape[1], q.shape[3], v.shape[3]
    c = q.new_zeros(sequences, heads, dqk, dhv) if c_initial is None else c_initial.double()
    n = q.new_zeros(sequences, heads, dqk) if n_initial is None else n_initial.double()
    m = q.new_zeros(sequences, heads, 1) if m_initial is None else m_initial.double()
    settings = (eps, gate, normalize, normalizer_grad)
    if cu_seqlens is None:
        return recurrence(q, k, v, i, f, c, n, m, *settings)
    hs, lasts = [], []
    for x, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        qx, kx, vx, ix, fx = (y[:, :, start:end] for y in (q, k, v, i, f))
        h, last = recurrence(qx, kx, vx, ix, fx, c[x : x + 1], n[x : x + 1], m[x : x + 1], *settings)
        hs.append(h)
        lasts.append(last)
    c, n, m = (torch.cat(same) for same in zip(*lasts, strict=True))
    return torch.cat(hs, dim=2), (c, n, m)


def outputs_and_gradients(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    cotangents: Sequence[Tensor],
    **options: Any,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Runs function(**inputs, **options) -> (h, (c, n, m)) and sends the cotangents of h, c, n, m back.

    -> outputs by name (h, c, n, m) and gradients by input name, zeros where autograd found no path.
    """
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    h, states = function(**leaves, **options)
    outputs = {"h": h, **dict(zip("cnm", states, strict=True))}
    sent = [(x, g.to(x.dtype)) for x, g in zip(outputs.values(), cotangents, strict=True) if x.requires_grad]
    xs, gs = zip(*sent, strict=True)
    found = torch.autograd.grad(xs, list(leaves.values()), gs, allow_unused=True)
    gradients = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), found, strict=True))
    return {name: x.detach() for name, x in outputs.items()}, dict(zip(leaves, gradients, strict=True))


def doubled(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values in float64, for truth: its gradients are then float64 too."""
    return {name: x.detach().double() for name, x in inputs.items()}


def relative_error(x: Tensor, expected: Tensor) -> float:
    """||x - expected|| / ||expected||, in float64."""
    x, expected = x.detach().double(), expected.detach().double()
    return float((x - expected).norm() / expected.norm().clamp(min=TINY))


def max_error(x: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value."""
    x, expected = x.detach().double(), expected.detach().double()
    return float((x - expected).abs().max() / expected.abs().max().clamp(min=TINY))
