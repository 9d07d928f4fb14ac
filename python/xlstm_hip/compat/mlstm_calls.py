# SPDX-License-Identifier: Apache-2.0
"""mlstm_kernels' functions: our kernels behind its argument order, defaults and return values.

Its kernels differ from ours, and from each other, in what comes after eps: most know no autocast_kernel_dtype, or have
it after chunk_size, and the sigmoid kernel has no m. Each function here has the signature of the one that it stands
for, and hands its arguments to our kernel by name. `stands_for` is that kernel: wrappers and mLSTMBackend call it
directly, since they call by name, and a sigmoid kernel needs its m there.

mlstm_kernels ignores keywords that a kernel does not know; here an unknown keyword is an error.

Shapes: q, k (B, NH, S, DHQK), v (B, NH, S, DHHV), i, f (B, NH, S), c (B, NH, DHQK, DHHV), n (B, NH, DHQK),
m (B, NH, 1); of a step q, k (B, NH, DHQK), v (B, NH, DHHV), i, f (B, NH, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..mlstm import backend, registry, triton_peers

Kernel = Callable[..., Any]
Sequences = Tensor | tuple[Tensor, tuple[Tensor, ...]]  # h (B, NH, S, DHHV), and the last states if asked for
Step = tuple[Tensor, tuple[Tensor, Tensor, Tensor]]  # h (B, NH, DHHV), (c, n, m)


def _chunkwise_autograd(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int = 64,
        **kwargs: Any,
    ) -> Sequences:
        return kernel(
            q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, chunk_size=chunk_size, **kwargs
        )

    return call


def _chunkwise(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int = 64,
        autocast_kernel_dtype: torch.dtype = torch.float32,
    ) -> Sequences:
        return kernel(
            q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, autocast_kernel_dtype, chunk_size
        )

    return call


def _tuned(**tuning: Any) -> dict[str, Any]:
    """The launch options of xl_chunk that a caller set: they change no result, and our kernels recompute states,
    too."""
    if tuning["recompute_states_in_bw"]:
        del tuning["recompute_states_in_bw"]
    return {name: value for name, value in tuning.items() if value is not None}


def _xl_chunk(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int = 128,
        chunk_size_inter: int | None = None,
        chunk_size_intra: int | None = None,
        siz_b_L_parallel: int | None = None,
        siz_b_L_loop: int | None = None,
        siz_b_DH_parallel: int | None = None,
        siz_b_DH_loop: int | None = None,
        num_warps_intra: int | None = None,
        num_warps_inter: int | None = None,
        num_stages_intra: int | None = None,
        num_stages_inter: int | None = None,
        recompute_states_in_bw: bool = True,
        autocast_kernel_dtype: torch.dtype = torch.float32,
    ) -> Sequences:
        tuning = _tuned(
            chunk_size_inter=chunk_size_inter, chunk_size_intra=chunk_size_intra, siz_b_L_parallel=siz_b_L_parallel,
            siz_b_L_loop=siz_b_L_loop, siz_b_DH_parallel=siz_b_DH_parallel, siz_b_DH_loop=siz_b_DH_loop,
            num_warps_intra=num_warps_intra, num_warps_inter=num_warps_inter, num_stages_intra=num_stages_intra,
            num_stages_inter=num_stages_inter, recompute_states_in_bw=recompute_states_in_bw,
        )  # fmt: skip
        states = (c_initial, n_initial, m_initial)
        return kernel(q, k, v, i, f, *states, return_last_states, eps, autocast_kernel_dtype, chunk_size, **tuning)

    return call


def _xl_chunk_siging(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        normalize: bool = True,
        chunk_size: int = 128,
        chunk_size_inter: int | None = None,
        chunk_size_intra: int | None = None,
        siz_b_L_parallel: int | None = None,
        siz_b_L_loop: int | None = None,
        siz_b_DH_parallel: int | None = None,
        siz_b_DH_loop: int | None = None,
        num_warps_intra: int | None = None,
        num_warps_inter: int | None = None,
        num_stages_intra: int | None = None,
        num_stages_inter: int | None = None,
        recompute_states_in_bw: bool = True,
        autocast_kernel_dtype: torch.dtype = torch.float32,
    ) -> Sequences:
        """The states are (c, n), with m counting as 0. An m_initial is what c_initial and n_initial are scaled by, as
        everywhere in this package."""
        tuning = _tuned(
            chunk_size_inter=chunk_size_inter, chunk_size_intra=chunk_size_intra, siz_b_L_parallel=siz_b_L_parallel,
            siz_b_L_loop=siz_b_L_loop, siz_b_DH_parallel=siz_b_DH_parallel, siz_b_DH_loop=siz_b_DH_loop,
            num_warps_intra=num_warps_intra, num_warps_inter=num_warps_inter, num_stages_intra=num_stages_intra,
            num_stages_inter=num_stages_inter, recompute_states_in_bw=recompute_states_in_bw,
        )  # fmt: skip
        if m_initial is None and c_initial is not None and n_initial is not None:
            m_initial = torch.zeros_like(n_initial[..., :1])
        out = kernel(
            q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, autocast_kernel_dtype, chunk_size,
            normalize=normalize, **tuning,
        )  # fmt: skip
        return (out[0], out[1][:2]) if return_last_states else out

    return call


def _parallel_autograd(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> Sequences:
        return kernel(q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, **kwargs)

    return call


def _parallel(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        autocast_kernel_dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Sequences:
        states = (c_initial, n_initial, m_initial)
        return kernel(q, k, v, i, f, *states, return_last_states, eps, autocast_kernel_dtype, **kwargs)

    return call


def _parallel_siging_autograd(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        stable_fgate: bool = True,
        normalize: bool = True,
        **kwargs: Any,
    ) -> Sequences:
        options = {"stable_fgate": stable_fgate, "normalize": normalize}
        return kernel(q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, **options, **kwargs)

    return call


def _parallel_siging(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        stable_fgate: bool = True,
        normalize: bool = True,
        autocast_kernel_dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Sequences:
        return kernel(
            q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, autocast_kernel_dtype,
            stable_fgate=stable_fgate, normalize=normalize, **kwargs,
        )  # fmt: skip

    return call


def _sequence(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        dtype_state: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Sequences:
        states = (c_initial, n_initial, m_initial)
        return kernel(q, k, v, i, f, *states, return_last_states, eps, dtype_state=dtype_state, **kwargs)

    return call


def _sequence_alternate(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> Sequences:
        return kernel(q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, eps, **kwargs)

    return call


def _step(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c: Tensor,
        n: Tensor,
        m: Tensor,
        eps: float = 1e-6,
        dtype_state: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Step:
        return kernel(q, k, v, i, f, c, n, m, eps, dtype_state, **kwargs)

    return call


def _step_alternate(kernel: Kernel) -> Kernel:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c: Tensor,
        n: Tensor,
        m: Tensor,
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> Step:
        """The new c and n are in c's dtype."""
        return kernel(q, k, v, i, f, c, n, m, eps, c.dtype, **kwargs)

    return call


def _native_step_fw(kernel: Kernel) -> Kernel:
    def call(
        matC_old: Tensor,
        vecN_old: Tensor,
        scaM_old: Tensor,
        vecQ: Tensor,
        vecK: Tensor,
        vecV: Tensor,
        scaI: Tensor,
        scaF: Tensor,
        eps: float = 1e-6,
        dtype_state: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Step:
        return kernel(
            vecQ, vecK, vecV, scaI, scaF, matC_old, vecN_old, scaM_old, eps, dtype_state=dtype_state, **kwargs
        )

    return call


def _triton_step_fw(kernel: Kernel) -> Kernel:
    def call(
        matC_old: Tensor,
        vecN_old: Tensor,
        scaM_old: Tensor,
        vecQ: Tensor,
        vecK: Tensor,
        vecV: Tensor,
        scaI: Tensor,
        scaF: Tensor,
        matC_new: Tensor | None = None,
        vecN_new: Tensor | None = None,
        scaM_new: Tensor | None = None,
        qk_scale: float | None = None,
        eps: float = 1e-6,
        siz_b_DHQK: int | None = None,
        siz_b_DHHV: int | None = None,
        num_warps: int | None = None,
        num_stages: int | None = None,
        dtype_state: torch.dtype = torch.float32,
    ) -> Step:
        launch = {"siz_b_DHQK": siz_b_DHQK, "siz_b_DHHV": siz_b_DHHV, "num_warps": num_warps, "num_stages": num_stages}
        launch_options = [name for name, value in launch.items() if value is not None]
        if launch_options:  # they change no result
            triton_peers.tell_once(
                "mlstm_recurrent_step__triton_fw", f"alone has a use for {', '.join(launch_options)}"
            )
        q = with_scale(vecQ, qk_scale)
        h, states = kernel(q, vecK, vecV, scaI, scaF, matC_old, vecN_old, scaM_old, eps, dtype_state)
        return h, _written(states, matC_new, vecN_new, scaM_new)

    return call


def _alternate_step_fw(kernel: Kernel) -> Kernel:
    def call(
        matC_old: Tensor,
        vecN_old: Tensor,
        scaM_old: Tensor,
        vecQ: Tensor,
        vecK: Tensor,
        vecV: Tensor,
        scaI: Tensor,
        scaF: Tensor,
        matC_new: Tensor | None = None,
        vecN_new: Tensor | None = None,
        scaM_new: Tensor | None = None,
        qk_scale: float | None = None,
        eps: float = 1e-6,
    ) -> Step:
        q = with_scale(vecQ, qk_scale)
        h, states = kernel(q, vecK, vecV, scaI, scaF, matC_old, vecN_old, scaM_old, eps, matC_old.dtype)
        return h, _written(states, matC_new, vecN_new, scaM_new)

    return call


def with_scale(q: Tensor, qk_scale: float | None) -> Tensor:
    """q with which kernels that scale by DHQK^-1/2 scale by qk_scale."""
    return q if qk_scale is None else q * (qk_scale * q.shape[-1] ** 0.5)


def _written(
    states: tuple[Tensor, Tensor, Tensor], c: Tensor | None, n: Tensor | None, m: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The states in the tensors that were given for them."""
    if c is None and n is None and m is None:
        return states
    if c is None or n is None or m is None:
        raise ValueError("matC_new, vecN_new, scaM_new: expected all three or none")
    return c.copy_(states[0]), n.copy_(states[1]), m.copy_(states[2])


def _call(name: str, shaped: Callable[[Kernel], Kernel], kernel: Kernel) -> Kernel:
    call = shaped(kernel)
    call.__name__ = call.__qualname__ = name
    call.__doc__ = call.__doc__ or f"{name} of mlstm_kernels, by {kernel.__name__}."
    return call


# Name to the shape of its call, and our kernel.
SHAPES: dict[str, tuple[Callable[[Kernel], Kernel], Kernel]] = {
    "mlstm_chunkwise__native_autograd": (_chunkwise_autograd, reference.mlstm_chunkwise__native_autograd),
    "mlstm_chunkwise__native_custbw": (_chunkwise, reference.mlstm_chunkwise__native_custbw),
    "mlstm_chunkwise__limit_chunk": (_chunkwise, triton_peers.limit_chunk),
    "mlstm_chunkwise__xl_chunk": (_xl_chunk, triton_peers.xl_chunk),
    "mlstm_siging_chunkwise__xl_chunk": (_xl_chunk_siging, triton_peers.xl_chunk_siging),
    "mlstm_parallel__native_autograd": (_parallel_autograd, reference.mlstm_parallel__native_autograd),
    "mlstm_parallel__native_custbw": (_parallel, reference.mlstm_parallel__native_custbw),
    "mlstm_parallel__native_stablef_autograd": (
        _parallel_autograd,
        reference.mlstm_parallel__native_stablef_autograd,
    ),
    "mlstm_parallel__native_stablef_custbw": (_parallel, reference.mlstm_parallel__native_stablef_custbw),
    "mlstm_siging_parallel__native_autograd": (
        _parallel_siging_autograd,
        reference.mlstm_siging_parallel__native_autograd,
    ),
    "mlstm_siging_parallel__native_custbw": (_parallel_siging, reference.mlstm_siging_parallel__native_custbw),
    "mlstm_parallel__limit_headdim": (_parallel, triton_peers.limit_headdim),
    "mlstm_recurrent_sequence__native_fw": (_sequence, reference.mlstm_recurrent_sequence__native_fw),
    "mlstm_recurrent_sequence__triton_step_fused_fw": (_sequence, triton_peers.sequence),
    "mlstm_recurrent_step__native": (_step, reference.mlstm_recurrent_step__native),
    "mlstm_recurrent_step__triton": (_step, triton_peers.step),
}
KERNELS = {name: _call(name, shaped, kernel) for name, (shaped, kernel) in SHAPES.items()}
_CALL_OF = {kernel: KERNELS[name] for name, (_, kernel) in SHAPES.items()}
for _kernel, _compat_call in _CALL_OF.items():
    _compat_call.stands_for = _kernel  # type: ignore[attr-defined]

# The same kernels by names that no registry has.
OTHER_CALLS = {
    name: _call(name, shaped, kernel)
    for name, shaped, kernel in (
        ("mlstm_recurrent_sequence__triton_alternate_step_fw", _sequence_alternate, triton_peers.sequence),
        ("mlstm_recurrent_step__triton_alternate", _step_alternate, triton_peers.step),
        ("mlstm_recurrent_step__native_fw", _native_step_fw, reference.mlstm_recurrent_step__native),
        ("mlstm_recurrent_step__triton_fw", _triton_step_fw, triton_peers.step),
        ("mlstm_recurrent_step__triton_alternate_fw", _alternate_step_fw, triton_peers.step),
    )
}


def peers_call(kernel: Kernel) -> Kernel:
    """mlstm_kernels' function for a kernel that it has, too; any other kernel has this package's call."""
    return _CALL_OF.get(kernel, kernel)


def get_mlstm_kernel(name: str) -> Kernel:
    """The chunkwise or parallel kernel "<kind>--<name>", as mlstm_kernels calls it."""
    return peers_call(registry.get_mlstm_kernel(name))


def get_mlstm_sequence_kernel(name: str) -> Kernel:
    """The sequence kernel of that name, as mlstm_kernels calls it."""
    return peers_call(registry.get_mlstm_sequence_kernel(name))


def get_mlstm_step_kernel(name: str) -> Kernel:
    """The step kernel of that name, as mlstm_kernels calls it."""
    return peers_call(registry.get_mlstm_step_kernel(name))


GETTERS = {
    "get_available_mlstm_kernels": registry.get_available_mlstm_kernels,
    "get_mlstm_kernel": get_mlstm_kernel,
    "get_available_mlstm_sequence_kernels": registry.get_available_mlstm_sequence_kernels,
    "get_mlstm_sequence_kernel": get_mlstm_sequence_kernel,
    "get_available_mlstm_step_kernels": registry.get_available_mlstm_step_kernels,
    "get_mlstm_step_kernel": get_mlstm_step_kernel,
}


class mLSTMBackend(backend.mLSTMBackend):
    """In inference it returns h and the states whatever return_last_states says, as code for mlstm_kernels expects."""

    states_always_in_inference = True
