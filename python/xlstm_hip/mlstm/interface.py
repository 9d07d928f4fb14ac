# SPDX-License-Identifier: Apache-2.0
"""mlstm_interface and mlstm_step_interface: check arguments, choose a kernel, call it.

Options that a kernel lacks are emulated if that changes no result: a layout by a transposed view, packed sequences by
one call each. Any other unsupported option is an error that names it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._core import checks, logging
from .._core.autocast import in_kernel_dtype
from ..reference.packed import one_by_one
from . import registry
from .registry import KernelInfo

States = tuple[Tensor, Tensor, Tensor]
DEFAULT_KERNELS = {
    ("sequence", "exp"): "chunkwise--fused",
    ("sequence", "sigmoid"): "chunkwise--fused_siging",
    ("step", "exp"): "fused",
    ("step", "sigmoid"): "fused_siging",
}
SEQUENCE_KINDS = ("chunkwise", "parallel", "sequence")


def _choose(kernel: str | None, gate: str | None, kinds: tuple[str, ...], normalize: bool | None) -> KernelInfo:
    """The kernel with this name, or the fused kernel with this gate."""
    if gate is not None:
        checks.one_of("gate", gate, checks.GATES)
    if kernel is None:
        kernel = DEFAULT_KERNELS["step" if kinds == ("step",) else "sequence", gate or "exp"]
    elif not isinstance(kernel, str):
        raise TypeError(f"kernel: expected a registry name, got {type(kernel).__name__}")
    info = registry.kernel_info(kernel, kinds)
    if gate is not None and info.gate != gate:
        raise ValueError(f"gate: expected {info.gate!r}, the gate of kernel {info.name!r}, got {gate!r}")
    if normalize is False and info.gate != "sigmoid":
        raise ValueError(
            f"normalize: kernel {info.name!r} has the exp gate, which is always normalised; use gate='sigmoid'"
        )
    return info


def _options(info: KernelInfo, options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in info.options:
            raise ValueError(
                f"{name}: kernel {info.name!r} has no such option (it has {', '.join(info.options) or 'none'})"
            )
    return options


# A type checker knows h from (h, states) by the keyword return_last_states.
@overload
def mlstm_interface(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c_initial: Tensor | None = ...,
    n_initial: Tensor | None = ..., m_initial: Tensor | None = ..., *, return_last_states: Literal[False] = ...,
    eps: float = ..., autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., kernel: str | None = ...,
    gate: str | None = ..., normalize: bool | None = ..., layout: str = ..., cu_seqlens: Tensor | None = ...,
    normalizer_grad: bool | None = ..., cp_group: Any = ..., **kwargs: Any,
) -> Tensor: ...  # fmt: skip
@overload
def mlstm_interface(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c_initial: Tensor | None = ...,
    n_initial: Tensor | None = ..., m_initial: Tensor | None = ..., *, return_last_states: Literal[True],
    eps: float = ..., autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., kernel: str | None = ...,
    gate: str | None = ..., normalize: bool | None = ..., layout: str = ..., cu_seqlens: Tensor | None = ...,
    normalizer_grad: bool | None = ..., cp_group: Any = ..., **kwargs: Any,
) -> tuple[Tensor, States]: ...  # fmt: skip
@overload
def mlstm_interface(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c_initial: Tensor | None = ...,
    n_initial: Tensor | None = ..., m_initial: Tensor | None = ..., return_last_states: bool = ..., eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., *, kernel: str | None = ...,
    gate: str | None = ..., normalize: bool | None = ..., layout: str = ..., cu_seqlens: Tensor | None = ...,
    normalizer_grad: bool | None = ..., cp_group: Any = ..., **kwargs: Any,
) -> Tensor | tuple[Tensor, States]: ...  # fmt: skip
def mlstm_interface(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S) before the gate's activation
    f: Tensor,  # (B, NH, S) before logsigmoid
    c_initial: Tensor | None = None,  # (N, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (N, NH, DHQK)
    m_initial: Tensor | None = None,  # (N, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    *,
    kernel: str | None = None,
    gate: str | None = None,
    normalize: bool | None = None,
    layout: str = "bhsd",
    cu_seqlens: Tensor | None = None,
    normalizer_grad: bool | None = None,
    cp_group: Any = None,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, States]:
    """The mLSTM over a sequence: h (B, NH, S, DHHV), with return_last_states also (c, n, m).

    kernel             a name of get_available_mlstm_kernels() or get_available_mlstm_sequence_kernels(); default: fused
    gate               "exp" or "sigmoid", the input gate; default: the kernel's
    normalize          sigmoid gate only: divide by max(|q n|, 1) + eps; default True
    layout             "bhsd", or "bshd": q, k, v, h are (B, S, NH, D) and the gates (B, S, NH), without copies
    cu_seqlens         (N + 1) int offsets 0 .. S of N sequences packed in one row (B = 1), on q's device; states are
                       then per sequence. On a GPU the fused kernels do not check its values
    normalizer_grad    False: the normaliser counts as a constant in backward, as in mlstm_kernels; default True, exact
    chunk_size         tokens per matrix product; changes speed, not the result
    cp_group           a process group, or a ContextParallel of xlstm_hip.distributed: the tensors have this rank's
                       tokens of a sequence over its ranks, in their order; cu_seqlens and states are the whole one's
    plan               of the fused kernels: how the call is cut up, {"segments": 2, ...}; backward_plan likewise. By
                       default as the table of plans has it, and where that has nothing, as csrc/ plans
    kwargs             further options of the kernel, by its KernelInfo; an unknown one is an error

    Any S >= 1, any head dims, any strides with the last dimension contiguous. States are float32 (float64 for float64).
    """
    info = _choose(kernel, gate, SEQUENCE_KINDS, normalize)
    checks.no_unknown_keywords("mlstm_interface", kwargs, info.options)
    checks.one_of("layout", layout, checks.LAYOUTS)
    options = dict(kwargs)
    if normalize is not None and info.gate == "sigmoid":
        options["normalize"] = normalize
    if normalizer_grad is not None:
        options["normalizer_grad"] = normalizer_grad
    options = _options(info, options)
    if c_initial is not None and not info.states:
        raise ValueError(f"c_initial: kernel {info.name!r} takes no initial states")
    if return_last_states and not info.states:
        raise ValueError(f"return_last_states: kernel {info.name!r} returns no states")
    registry.check_kernel_accepts(
        info, checks.is_tensor("q", q), checks.gradient_needed(q, k, v, i, f, c_initial, n_initial, m_initial)
    )
    if cp_group is not None:
        from ..distributed.mlstm import over_ranks

        if not info.states:
            raise ValueError(
                f"cp_group: kernel {info.name!r} takes no initial states, as parts of a sequence need them"
            )
        call = partial(mlstm_interface, eps=eps, chunk_size=chunk_size, kernel=info.name, layout=layout, **options)
        part = in_kernel_dtype((q, k, v, i, f), autocast_kernel_dtype)
        bhsd = checks.transposed(*part) if layout == "bshd" else part
        checks.check_sequence_inputs(*bhsd)
        whole = (c_initial, n_initial, m_initial)
        return over_ranks(call, info.gate, cp_group, part, bhsd, whole, return_last_states, cu_seqlens)
    if logging.DISPATCH:
        logging.chosen("mlstm_interface", f"{info.kind} kernel {info.name}", {"q": q, "k": k, "v": v})

    common: dict[str, Any] = {
        "eps": eps,
        "autocast_kernel_dtype": autocast_kernel_dtype,
        "chunk_size": chunk_size,
        "return_last_states": return_last_states,
        **options,
    }
    turned = layout == "bshd" and "layout" not in info.options
    if layout == "bshd" and not turned:
        common["layout"] = layout
    if turned:
        q, k, v, i, f = checks.transposed(q, k, v, i, f)
    states = (c_initial, n_initial, m_initial)
    if cu_seqlens is not None and "cu_seqlens" in info.options:
        common["cu_seqlens"] = cu_seqlens
    if cu_seqlens is not None and "cu_seqlens" not in info.options:
        checks.check_sequence_inputs(q, k, v, i, f, *states, eps, chunk_size, cu_seqlens)
        ends = checks.ends_of(cu_seqlens, q.shape[2])  # it is a loop in Python: on a GPU too it waits for the values
        out: Tensor | tuple[Tensor, States] = one_by_one(info.function, (q, k, v, i, f), states, ends, common)
    else:
        out = info.function(q, k, v, i, f, *states, **common)
    if not turned:
        return out
    if isinstance(out, Tensor):
        return out.transpose(1, 2)
    return out[0].transpose(1, 2), out[1]


def mlstm_step_interface(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float = 1e-6,
    *,
    kernel: str | None = None,
    gate: str | None = None,
    normalize: bool | None = None,
    in_place: bool = False,
    gate_soft_cap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, States]:
    """One token: h (B, NH, DHHV) and the next (c, n, m). With in_place c, n and m are overwritten and returned.

    States are float32 (float64 for float64). A c of bfloat16 stays so without gradient: the kernel computes in float32
    and rounds the new c stochastically, so that small updates are kept in the mean (docs/generation.md).

    gate_soft_cap takes i and f as cap * tanh(x / cap), as xLSTM-7B does before this, in the kernel and not rounded.
    kernel, gate and normalize as in mlstm_interface; kernel names are those of get_available_mlstm_step_kernels().
    """
    info = _choose(kernel, gate, ("step",), normalize)
    checks.no_unknown_keywords("mlstm_step_interface", kwargs, info.options)
    options = dict(kwargs)
    if normalize is not None and info.gate == "sigmoid":
        options["normalize"] = normalize
    if in_place:
        options["in_place"] = True
    if gate_soft_cap is not None:
        options["gate_soft_cap"] = gate_soft_cap
    options = _options(info, options)
    registry.check_kernel_accepts(info, checks.is_tensor("q", q), checks.gradient_needed(q, k, v, i, f, c, n, m))
    if logging.DISPATCH:
        logging.chosen("mlstm_step_interface", f"step kernel {info.name}", {"q": q, "k": k, "v": v})
    return info.function(q, k, v, i, f, c, n, m, eps=eps, **options)
