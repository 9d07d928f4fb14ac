# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel names: mlstm_kernels' kernel if it can run, else the fused kernel.

It can run if mlstm_kernels and triton are installed, torch sees a GPU and the tensors are on it. Every other call uses
the fused kernel of the same kind and gate, and logs that once per name. The Triton kernels require lengths that are
multiples of chunk_size or of a block; here any length works: the remainder goes through the native sequence kernel, or
is padded.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._core.checks import gradient_needed, no_unknown_keywords
from .._core.environment import plain_torch_forced
from .._core.graph_constants import constant_in_graphs
from .._core.warn_once import log_once
from . import kernels
from .wrappers import wrap_chunkwise__arbitrary_sequence_length, wrap_chunkwise__pad_zeros

XL_CHUNK_TUNING = (
    "chunk_size_inter", "chunk_size_intra", "siz_b_L_parallel", "siz_b_L_loop", "siz_b_DH_parallel",
    "siz_b_DH_loop", "num_warps_intra", "num_warps_inter", "num_stages_intra", "num_stages_inter",
    "recompute_states_in_bw",
)  # fmt: skip
LIMIT_HEADDIM_SIZES = (16, 32, 64, 128, 256)
LIMIT_HEADDIM_BLOCK = 64  # the largest block its autotuner tries; it checks no bounds
FARTHEST_STATE = 1 << 31  # what offsets of 32 bits reach


def stands_in(module: ModuleType | None) -> bool:
    """Whether this mlstm_kernels module was installed by xlstm_hip.compat."""
    return getattr(module, "__xlstm_hip__", False)


@functools.cache
def _installed_beside_a_gpu() -> bool:
    installed = all(importlib.util.find_spec(name) is not None for name in ("triton", "mlstm_kernels"))
    return installed and torch.cuda.is_available()


def beyond_reach(batch: int, heads: int, length: int, dqk: int, dhv: int, chunk_size: int) -> bool:
    """Whether the chunkwise Triton kernels would write out of bounds: they address a state per chunk with 32-bit
    offsets. (On an H200, limit_chunk ends with an illegal memory access at 64 x 8 heads of 2048 tokens, 256/512, and
    the process loses everything it has on the GPU.)
    """
    return batch * heads * (length // chunk_size + 1) * dqk * dhv >= FARTHEST_STATE


# The three that follow look outside of the tensors, which torch.compile cannot trace: it takes their answers as given.


@constant_in_graphs
def peers_usable() -> bool:
    """Whether mlstm_kernels' Triton kernels can run in this process. False if xlstm_hip.compat replaces the package."""
    return not stands_in(sys.modules.get("mlstm_kernels")) and _installed_beside_a_gpu()


@constant_in_graphs
def _kernel_of_mlstm_kernels(getter: str, name: str) -> Callable:
    return getattr(importlib.import_module("mlstm_kernels.torch"), getter)(name)


def tell_once(name: str, why: str = "cannot run here") -> None:
    log_once(f"{name}: mlstm_kernels' Triton kernel {why}; using the fused kernel of xlstm_hip")


def _peer(getter: str, name: str, q: Tensor) -> Callable | None:
    """mlstm_kernels' kernel for these tensors, or None, with a log line the first time."""
    if plain_torch_forced():
        return None
    if q.is_cuda and peers_usable():
        return _kernel_of_mlstm_kernels(getter, name)
    tell_once(name)
    return None


def _no_gradient(name: str, *tensors: Tensor | None) -> None:
    if gradient_needed(*tensors):
        raise ValueError(f"{name}: mlstm_kernels' Triton kernel has no gradient, but an input requires one")


def _with_sigmoid_states(peer: Callable) -> Callable:
    """The sigmoid peer knows no m: it takes the states scaled by e^m, and returns (c, n)."""

    def kernel(
        q: Tensor,  # (B, NH, S, DHQK)
        c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
        n_initial: Tensor | None = None,  # (B, NH, DHQK)
        m_initial: Tensor | None = None,  # (B, NH, 1)
        return_last_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        if c_initial is not None and n_initial is not None and m_initial is not None:
            scale = m_initial.float().exp()
            c_initial, n_initial = c_initial * scale[..., None], n_initial * scale
        out = peer(q=q, c_initial=c_initial, n_initial=n_initial, return_last_states=return_last_states, **kwargs)
        if not return_last_states:
            return out
        h, states = out
        return h, (states[0], states[1], q.new_zeros(q.shape[:2] + (1,), dtype=torch.float32))

    return kernel


def _chunkwise(name: str, fused_kernel: Callable, tuning: tuple[str, ...] = (), sigmoid: bool = False) -> Callable:
    leftovers: tuple[Callable, Callable] = (
        reference.mlstm_recurrent_sequence__native_fw,
        reference.mlstm_recurrent_step__native,
    )
    if sigmoid:
        leftovers = (
            reference.mlstm_siging_recurrent_sequence__native_fw,
            reference.mlstm_siging_recurrent_step__native,
        )

    def kernel(
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
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        common: dict[str, Any] = {
            "c_initial": c_initial, "n_initial": n_initial, "m_initial": m_initial,
            "return_last_states": return_last_states, "eps": eps,
            "autocast_kernel_dtype": autocast_kernel_dtype, "chunk_size": chunk_size, **kwargs,
        }  # fmt: skip
        peer = _peer("get_mlstm_kernel", name, q)
        batch, heads, length, dqk = q.shape
        if peer is not None and beyond_reach(batch, heads, length, dqk, v.shape[-1], chunk_size):
            tell_once(name, "cannot find so many states")
            peer = None
        if peer is None:
            unused = [keyword for keyword in kwargs if keyword in XL_CHUNK_TUNING and keyword in tuning]
            if unused:  # they change no result
                tell_once(name, f"alone has a use for {', '.join(unused)}")
            return fused_kernel(q, k, v, i, f, **{key: x for key, x in common.items() if key not in unused})
        no_unknown_keywords(name, kwargs, tuning)
        if sigmoid:
            peer = _with_sigmoid_states(peer)
        if length % chunk_size == 0:
            return peer(q=q, k=k, v=v, i=i, f=f, **common)
        return wrap_chunkwise__arbitrary_sequence_length(peer, *leftovers, q=q, k=k, v=v, i=i, f=f, **common)

    return _named(kernel, name)


def _parallel(name: str, fused_kernel: Callable) -> Callable:
    def kernel(
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
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        peer = _peer("get_mlstm_kernel", name, q)
        states = (c_initial, n_initial, m_initial)
        if peer is None:
            return fused_kernel(
                q, k, v, i, f, *states, return_last_states, eps, autocast_kernel_dtype, chunk_size, **kwargs
            )
        no_unknown_keywords(name, kwargs)
        if return_last_states or any(s is not None for s in states):
            raise ValueError(f"{name}: mlstm_kernels' kernel takes no initial states and returns no last ones")
        if q.shape[-1] != v.shape[-1] or q.shape[-1] not in LIMIT_HEADDIM_SIZES:
            raise ValueError(
                f"{name}: expected DHQK == DHHV, one of {LIMIT_HEADDIM_SIZES}, got {q.shape[-1]} and {v.shape[-1]}"
            )
        return wrap_chunkwise__pad_zeros(
            peer, q=q, k=k, v=v, i=i, f=f, eps=eps, autocast_kernel_dtype=autocast_kernel_dtype,
            chunk_size=LIMIT_HEADDIM_BLOCK,
        )  # fmt: skip

    return _named(kernel, name)


def _sequence(name: str, fused_kernel: Callable) -> Callable:
    def kernel(
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
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        peer = _peer("get_mlstm_sequence_kernel", name, q)
        states = (c_initial, n_initial, m_initial)
        if peer is None:
            return fused_kernel(
                q, k, v, i, f, *states, return_last_states, eps, autocast_kernel_dtype, chunk_size, **kwargs
            )
        no_unknown_keywords(name, kwargs, ("dtype_state",))
        _no_gradient(name, q, k, v, i, f, *states)
        return peer(
            q=q, k=k, v=v, i=i, f=f, c_initial=c_initial, n_initial=n_initial, m_initial=m_initial,
            return_last_states=return_last_states, eps=eps, **kwargs,
        )  # fmt: skip

    return _named(kernel, name)


def _step(name: str, fused_kernel: Callable) -> Callable:
    def kernel(
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
        **kwargs: Any,
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        peer = _peer("get_mlstm_step_kernel", name, q)
        if peer is None:
            return fused_kernel(q, k, v, i, f, c, n, m, eps, dtype_state, **kwargs)
        no_unknown_keywords(name, kwargs)
        _no_gradient(name, q, k, v, i, f, c, n, m)
        return peer(q=q, k=k, v=v, i=i, f=f, c=c, n=n, m=m, eps=eps, dtype_state=dtype_state or torch.float32)

    return _named(kernel, name)


def _named(kernel: Callable, name: str) -> Callable:
    kernel.__name__ = kernel.__qualname__ = name
    kernel.__doc__ = f"mlstm_kernels' {name!r} where it can run, else the fused kernel."
    return kernel


limit_chunk = _chunkwise("chunkwise--triton_limit_chunk", kernels.mlstm_chunkwise_fused)
xl_chunk = _chunkwise("chunkwise--triton_xl_chunk", kernels.mlstm_chunkwise_fused, tuning=XL_CHUNK_TUNING)
xl_chunk_siging = _chunkwise(
    "chunkwise--triton_xl_chunk_siging",
    kernels.mlstm_chunkwise_fused_siging,
    (*XL_CHUNK_TUNING, "normalize"),
    sigmoid=True,
)
limit_headdim = _parallel("parallel--triton_limit_headdim", kernels.mlstm_chunkwise_fused)
sequence = _sequence("native_sequence__triton", kernels.mlstm_sequence_fused)
step = _step("triton", kernels.mlstm_step_fused)
