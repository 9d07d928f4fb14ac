# SPDX-License-Identifier: Apache-2.0
"""mlstm_kernels' forward and backward passes by themselves, of its plain-torch kernels.

They are those of reference/core.py: sums and states in float32, or float64 for float64, and any length. As in
mlstm_kernels, backward holds the normaliser, n and m constant, so that dn and dm are 0; unlike there, df has the part
that comes through the last c. It makes the forward pass again: what it is given of that must be what the forward pass
returns. Parallel kernels begin without an m, not at m = 0.

Shapes: q, k (B, NH, S, DHQK), v, h (B, NH, S, DHHV), i, f, vecN, vecM (B, NH, S); states c (B, NH, DHQK, DHHV),
n (B, NH, DHQK), m (B, NH, 1); all states of NC chunks c (B, NH, (NC + 1) * DHQK, DHHV), n (B, NH, (NC + 1) * DHQK),
m (B, NH, NC + 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._core.checks import check_sequence_inputs, has_shape
from ..reference.core import Forward, Variant, backward, forward, last_states
from ..reference.inputs import from_chunks, wide_states
from .mlstm_calls import with_scale

States = tuple[Tensor, Tensor, Tensor]


def _done(
    tokens: tuple[Tensor, ...],
    states: tuple[Tensor | None, Tensor | None, Tensor | None],
    eps: float,
    chunk: int,
    variant: Variant,
) -> tuple[Forward, Tensor]:
    """The forward pass, and the m that it begins with."""
    q, k, v, i, f = tokens
    check_sequence_inputs(q, k, v, i, f, *states, eps, chunk)
    c, n, m = wide_states(q, v, *states)
    if variant.one_chunk:
        m = torch.full_like(m, -torch.inf)
    return forward(q, k, v, i, f, c, n, m, eps, chunk, variant), m


def _normaliser(done: Forward, length: int) -> tuple[Tensor, Tensor]:
    """vecN, without eps, and vecM."""
    m = done.gates.m
    largest = torch.maximum(done.normalizer_sum.abs(), torch.exp(-m).unsqueeze(-1))
    return from_chunks(largest.squeeze(-1), length), from_chunks(m, length)


def _all_states(done: Forward, m: Tensor) -> States:
    c = torch.cat((done.c_entering, done.c_last.unsqueeze(2)), 2)
    n = torch.cat((done.n_entering, done.n_last.unsqueeze(2)), 2)
    return c.flatten(2, 3), n.flatten(2, 3), torch.cat((m, done.gates.m[..., -1]), -1)


def _is_the_forwards(**pairs: tuple[Tensor | None, Tensor]) -> None:
    for name, (passed, computed) in pairs.items():
        if passed is None:
            continue
        has_shape(name, passed, tuple(computed.shape), "of the forward pass")
        close = torch.finfo(passed.dtype).eps ** 0.5
        if not torch.allclose(passed.to(computed.dtype), computed, rtol=close, atol=close):
            raise ValueError(
                f"{name}: expected the values that the forward pass returns for these inputs, got other values"
            )


def _gradients(
    done: Forward, tokens: tuple[Tensor, ...], dh: Tensor, dlast: States, eps: float, chunk: int, variant: Variant
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, i and f in their dtypes, and those of the initial c, n and m in the accumulation
    dtype."""
    i, f = tokens[3:]
    dq, dk, dv, di, df, *dstates = backward(done, dh, *dlast, eps, chunk, variant)
    df = df * torch.sigmoid(-f.to(df.dtype))
    if variant.gate == "sigmoid":
        di = di * torch.sigmoid(-i.to(di.dtype))
    return *(x.to(like.dtype) for x, like in zip((dq, dk, dv, di, df), tokens, strict=True)), *dstates


def mlstm_chunkwise_fw(
    matQ: Tensor,
    matK: Tensor,
    matV: Tensor,
    vecI: Tensor,
    vecF: Tensor,
    matC_initial: Tensor | None = None,
    vecN_initial: Tensor | None = None,
    scaM_initial: Tensor | None = None,
    qk_scale: float | None = None,
    return_last_states: bool = False,
    return_all_states: bool = False,
    chunk_size: int = 64,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor, States | None, States | None]:
    """h, the normaliser without eps and m of each token, and if asked for the last states and all between chunks."""
    tokens, initial = (with_scale(matQ, qk_scale), matK, matV, vecI, vecF), (matC_initial, vecN_initial, scaM_initial)
    done, m = _done(tokens, initial, eps, chunk_size, Variant())
    length = matQ.shape[2]
    return (
        from_chunks(done.h, length).to(matQ.dtype),
        *_normaliser(done, length),
        last_states(done, Variant()) if return_last_states else None,
        _all_states(done, m) if return_all_states else None,
    )


def mlstm_chunkwise(
    matQ: Tensor,
    matK: Tensor,
    matV: Tensor,
    vecI: Tensor,
    vecF: Tensor,
    matC_initial: Tensor | None = None,
    vecN_initial: Tensor | None = None,
    scaM_initial: Tensor | None = None,
    qk_scale: float | None = None,
    return_last_states: bool = False,
    chunk_size: int = 64,
    eps: float = 1e-6,
) -> Tensor | tuple[Tensor, States]:
    """h, and if asked for the last states."""
    h, _, _, last, _ = mlstm_chunkwise_fw(
        matQ, matK, matV, vecI, vecF, matC_initial, vecN_initial, scaM_initial, qk_scale, return_last_states,
        chunk_size=chunk_size, eps=eps,
    )  # fmt: skip
    return h if last is None else (h, last)


@torch.no_grad()
def mlstm_chunkwise_bw(
    matQ: Tensor,
    matK: Tensor,
    matV: Tensor,
    vecI: Tensor,
    vecF: Tensor,
    matC_initial: Tensor | None = None,
    vecN_initial: Tensor | None = None,
    scaM_initial: Tensor | None = None,
    matC_all: Tensor | None = None,
    vecN_all: Tensor | None = None,
    scaM_all: Tensor | None = None,
    vecN_out: Tensor | None = None,
    vecM_out: Tensor | None = None,
    matDeltaH: Tensor | None = None,
    matDeltaC_last: Tensor | None = None,
    vecDeltaN_last: Tensor | None = None,
    scaDeltaM_last: Tensor | None = None,
    qk_scale: float | None = None,
    CHUNK_SIZE: int = 64,
    EPS: float = 1e-6,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, i, f and of the initial c, n, m, which are None without initial states."""
    tokens, initial = (with_scale(matQ, qk_scale), matK, matV, vecI, vecF), (matC_initial, vecN_initial, scaM_initial)
    variant = Variant(normalizer_grad=False)
    done, m = _done(tokens, initial, EPS, CHUNK_SIZE, variant)
    c_all, n_all, m_all = _all_states(done, m)
    normaliser, m_of_token = _normaliser(done, matQ.shape[2])
    _is_the_forwards(
        matC_all=(matC_all, c_all), vecN_all=(vecN_all, n_all), scaM_all=(scaM_all, m_all),
        vecN_out=(vecN_out, normaliser), vecM_out=(vecM_out, m_of_token),
    )  # fmt: skip
    has_shape("matDeltaH", matDeltaH, tuple(matV.shape), "that of matV")
    last: list[Tensor] = []
    for name, passed, like in (
        ("matDeltaC_last", matDeltaC_last, done.c_last),
        ("vecDeltaN_last", vecDeltaN_last, done.n_last),
        ("scaDeltaM_last", scaDeltaM_last, done.gates.m_last),
    ):
        shaped = (
            torch.zeros_like(like) if passed is None else has_shape(name, passed, tuple(like.shape), "of the state")
        )
        last.append(shaped.to(like.dtype))
    dlast = (last[0], last[1], last[2])
    dq, *gradients = _gradients(done, tokens, matDeltaH, dlast, EPS, CHUNK_SIZE, variant)  # type: ignore[arg-type]
    wide = (None if passed is None else x.to(passed.dtype) for x, passed in zip(gradients[4:], initial, strict=True))
    return with_scale(dq, qk_scale), *gradients[:4], *wide


def _parallel_fw(stable: bool) -> Callable[..., Any]:
    def mlstm_parallel_fw(
        matQ: Tensor, matK: Tensor, matV: Tensor, vecI: Tensor, vecF: Tensor, eps: float = 1e-6
    ) -> States:
        """h, the normaliser without eps and m of each token."""
        length = matQ.shape[2]
        variant = Variant(stable=stable, one_chunk=True)
        done, _ = _done((matQ, matK, matV, vecI, vecF), (None, None, None), eps, length, variant)
        return from_chunks(done.h, length).to(matQ.dtype), *_normaliser(done, length)

    return mlstm_parallel_fw


def _parallel_bw(stable: bool) -> Callable[..., Any]:
    @torch.no_grad()
    def mlstm_parallel_bw(
        matDeltaHtilde: Tensor,
        matQ: Tensor,
        matK: Tensor,
        matV: Tensor,
        vecI: Tensor,
        vecF: Tensor,
        vecN: Tensor,
        vecM: Tensor,
        eps: float = 1e-6,
    ) -> tuple[Tensor, ...]:
        """Gradients of q, k, v, i and f."""
        variant = Variant(normalizer_grad=False, stable=stable, one_chunk=True)
        return _one_chunk_back(matDeltaHtilde, (matQ, matK, matV, vecI, vecF), eps, variant, vecN=vecN, vecM=vecM)

    return mlstm_parallel_bw


def mlstm_siging_parallel_fw(
    matQ: Tensor,
    matK: Tensor,
    matV: Tensor,
    vecI: Tensor,
    vecF: Tensor,
    eps: float = 1e-6,
    stable_fgate: bool = True,
    normalize: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """h and the normaliser of each token without eps, None without normalize."""
    length = matQ.shape[2]
    variant = Variant("sigmoid", normalize, stable=stable_fgate, one_chunk=True)
    done, _ = _done((matQ, matK, matV, vecI, vecF), (None, None, None), eps, length, variant)
    return from_chunks(done.h, length).to(matQ.dtype), _normaliser(done, length)[0] if normalize else None


@torch.no_grad()
def mlstm_siging_parallel_bw(
    matDeltaHtilde: Tensor,
    matQ: Tensor,
    matK: Tensor,
    matV: Tensor,
    vecI: Tensor,
    vecF: Tensor,
    vecN: Tensor | None,
    eps: float = 1e-6,
    stable_fgate: bool = True,
    normalize: bool = True,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, i and f."""
    if vecN is not None and not normalize:
        raise ValueError("vecN: expected None without normalize, for which the forward pass has none")
    variant = Variant("sigmoid", normalize, normalizer_grad=False, stable=stable_fgate, one_chunk=True)
    return _one_chunk_back(matDeltaHtilde, (matQ, matK, matV, vecI, vecF), eps, variant, vecN=vecN)


def _one_chunk_back(
    dh: Tensor,
    tokens: tuple[Tensor, ...],
    eps: float,
    variant: Variant,
    vecN: Tensor | None,
    vecM: Tensor | None = None,
) -> tuple[Tensor, ...]:
    length = tokens[0].shape[2]
    done, m = _done(tokens, (None, None, None), eps, length, variant)
    normaliser, m_of_token = _normaliser(done, length)
    _is_the_forwards(vecN=(vecN, normaliser), vecM=(vecM, m_of_token))
    has_shape("matDeltaHtilde", dh, tuple(tokens[2].shape), "that of matV")
    dlast = (torch.zeros_like(done.c_last), torch.zeros_like(done.n_last), torch.zeros_like(m))
    return _gradients(done, tokens, dh, dlast, eps, length, variant)[:5]


CHUNKWISE_FW = {"mlstm_chunkwise": mlstm_chunkwise, "mlstm_chunkwise_fw": mlstm_chunkwise_fw}
CHUNKWISE_BW = {"mlstm_chunkwise_bw": mlstm_chunkwise_bw}
PARALLEL = {
    "native": ({"mlstm_parallel_fw": _parallel_fw(False)}, {"mlstm_parallel_bw": _parallel_bw(False)}),
    "native_stablef": ({"mlstm_parallel_fw": _parallel_fw(True)}, {"mlstm_parallel_bw": _parallel_bw(True)}),
    "native_siging": (
        {"mlstm_siging_parallel_fw": mlstm_siging_parallel_fw},
        {"mlstm_siging_parallel_bw": mlstm_siging_parallel_bw},
    ),
}
