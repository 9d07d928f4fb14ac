# SPDX-License-Identifier: Apache-2.0
"""mLSTM kernels that work on chunks of the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import States, Variant, run


def mlstm_chunkwise__native_autograd(
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
    variant = Variant(normalizer_grad=normalizer_grad)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_chunkwise__native_custbw(
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
    """Exponential input gate; exact gradient by formula, nothing but the inputs kept for it."""
    variant = Variant(normalizer_grad=normalizer_grad, custom_backward=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_siging_chunkwise__native_autograd(
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
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Sigmoid input gate; the gradient is autograd's."""
    variant = Variant(gate="sigmoid", normalize=normalize, normalizer_grad=normalizer_grad)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)


def mlstm_siging_chunkwise__native_custbw(
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
    normalizer_grad: bool = True,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Sigmoid input gate; exact gradient by formula, nothing but the inputs kept for it."""
    variant = Variant(gate="sigmoid", normalize=normalize, normalizer_grad=normalizer_grad, custom_backward=True)
    inputs = (q, k, v, i, f, c_initial, n_initial, m_initial)
    return run(inputs, return_last_states, eps, autocast_kernel_dtype, chunk_size, variant)
