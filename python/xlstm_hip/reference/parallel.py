# SPDX-License-Identifier: Apache-2.0
"""mLSTM kernels that work on the whole sequence at once: one chunk of S tokens.

chunk_size is checked and has no further meaning here: it is part of the call that all sequence kernels share.
"stablef" kernels sum each entry of the log-forget matrix on its own, the others take float64 differences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .core import States, Variant, run


def mlstm_parallel__native_autograd(
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
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Exponential input gate; the gradient is autograd's."""
    variant = Variant(stable=False, normalizer_grad=normalizer_grad, one_chunk=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_parallel__native_custbw(
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
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Exponential input gate; exact gradient by formula."""
    variant = Variant(stable=False, normalizer_grad=normalizer_grad, custom_backward=True, one_chunk=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_parallel__native_stablef_autograd(
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
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Exponential input gate, entries of the forget matrix summed one by one; the gradient is autograd's."""
    variant = Variant(stable=True, normalizer_grad=normalizer_grad, one_chunk=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_parallel__native_stablef_custbw(
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
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Exponential input gate, entries of the forget matrix summed one by one; exact gradient by formula."""
    variant = Variant(stable=True, normalizer_grad=normalizer_grad, custom_backward=True, one_chunk=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_siging_parallel__native_autograd(
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
    stable_fgate: bool = True,
    normalize: bool = True,
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Sigmoid input gate; the gradient is autograd's."""
    variant = Variant("sigmoid", normalize, normalizer_grad, stable_fgate, one_chunk=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_siging_parallel__native_custbw(
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
    stable_fgate: bool = True,
    normalize: bool = True,
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Sigmoid input gate; exact gradient by formula."""
    variant = Variant("sigmoid", normalize, normalizer_grad, stable_fgate, custom_backward=True, one_chunk=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)
