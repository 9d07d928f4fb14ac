# SPDX-License-Identifier: Apache-2.0
"""mlstm_kernels' wrappers, which allow any S for kernels that require a multiple of chunk_size.

Kernels registered here take any S, so for them a wrapper is a plain call. An unregistered callable, or one registered
with any_length=False, is assumed to need multiples and gets them by splitting or padding. All wrappers pass on eps,
chunk_size, autocast_kernel_dtype and the keywords of sigmoid kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.autocast import in_kernel_dtype
from .._core.checks import check_sequence_inputs, has_rank, positive_int, states_in
from ..reference.inputs import wide_states, without_autocast
from .registry import KernelInfo, check_kernel_accepts, info_of, with_gate

logger = logging.getLogger("xlstm_hip")

States = tuple[Tensor, Tensor, Tensor]

# Gate pre-activations of a padded token: it forgets nothing and takes nothing in, so the states pass it
# unchanged. logsigmoid(1e4) is 0 and exp(-1e4) is 0 in every dtype, and both values fit in float16.
PADDED_FORGET_GATE, PADDED_INPUT_GATE = 1e4, -1e4

# Keywords that change the result, so every kernel of a call must have them; the rest is a chunkwise kernel's
# own tuning.
MATHS_KEYWORDS = ("normalize", "normalizer_grad")


@dataclass(eq=False)  # not frozen: made inside graphs, where older torch.compile loses a frozen one's fields
class Kernel:
    """A kernel function and what is registered for it, if anything."""

    function: Callable
    info: KernelInfo | None

    @property
    def any_length(self) -> bool:
        return self.info is not None and self.info.any_length

    @property
    def states(self) -> bool:
        return self.info is None or self.info.states

    def check(self, q: Tensor, *tensors: Tensor | None) -> None:
        """Raises where a registered kernel cannot do what these tensors ask of it."""
        if self.info is not None:
            needs_gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, *tensors))
            check_kernel_accepts(self.info, q, needs_gradient)


@dataclass(eq=False)
class Call:
    """The arguments that a wrapper hands on."""

    c: Tensor | None  # (B, NH, DHQK, DHHV), as n and m: initial states
    n: Tensor | None  # (B, NH, DHQK)
    m: Tensor | None  # (B, NH, 1)
    eps: float
    autocast_kernel_dtype: torch.dtype
    chunk_size: int
    keywords: dict[str, Any]

    def layer(self, kernel: Kernel, last_states: bool, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor) -> Any:
        kernel.check(q, k, v, i, f, self.c, self.n, self.m)
        return kernel.function(
            q=q, k=k, v=v, i=i, f=f, c_initial=self.c, n_initial=self.n, m_initial=self.m,
            return_last_states=last_states, eps=self.eps, autocast_kernel_dtype=self.autocast_kernel_dtype,
            chunk_size=self.chunk_size, **self.keywords,
        )  # fmt: skip

    def sequence(
        self, kernel: Kernel, states: States | None, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor
    ) -> Any:
        c, n, m = states or (self.c, self.n, self.m)
        kernel.check(q, k, v, i, f, c, n, m)
        return kernel.function(
            q=q, k=k, v=v, i=i, f=f, c_initial=c, n_initial=n, m_initial=m, return_last_states=True,
            eps=self.eps, autocast_kernel_dtype=self.autocast_kernel_dtype, chunk_size=self.chunk_size,
            **self.maths,
        )  # fmt: skip

    @property
    def maths(self) -> dict[str, Any]:
        return {name: self.keywords[name] for name in MATHS_KEYWORDS if name in self.keywords}


def bind(function: Callable, gate_of: Kernel | None = None) -> Kernel:
    """A function with its registry entry; with gate_of, a chunkwise kernel, the counterpart that has its gate.

    For mlstm_kernels' call of a kernel of ours (compat/mlstm_calls.py) it is that kernel.
    """
    function = getattr(function, "stands_for", function)
    info = info_of(function)
    if info is not None and gate_of is not None and gate_of.info is not None:
        info = with_gate(info, gate_of.info.gate)
        function = info.function
    return Kernel(function, info)


@overload
def wrap_chunkwise__pad_zeros(
    mlstm_chunkwise_kernel: Callable, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor,
    c_initial: Tensor | None = ..., n_initial: Tensor | None = ..., m_initial: Tensor | None = ..., *,
    return_last_states: Literal[False] = ..., eps: float = ..., autocast_kernel_dtype: torch.dtype = ...,
    chunk_size: int = ..., **kwargs: Any,
) -> Tensor: ...  # fmt: skip
@overload
def wrap_chunkwise__pad_zeros(
    mlstm_chunkwise_kernel: Callable, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor,
    c_initial: Tensor | None = ..., n_initial: Tensor | None = ..., m_initial: Tensor | None = ..., *,
    return_last_states: Literal[True], eps: float = ..., autocast_kernel_dtype: torch.dtype = ...,
    chunk_size: int = ..., **kwargs: Any,
) -> tuple[Tensor, States]: ...  # fmt: skip
@overload
def wrap_chunkwise__pad_zeros(
    mlstm_chunkwise_kernel: Callable, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor,
    c_initial: Tensor | None = ..., n_initial: Tensor | None = ..., m_initial: Tensor | None = ...,
    return_last_states: bool = ..., eps: float = ..., autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ...,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, States]: ...  # fmt: skip
def wrap_chunkwise__pad_zeros(
    mlstm_chunkwise_kernel: Callable,
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    f: Tensor,  # (B, NH, S)
    i: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """Pads the inputs to a multiple of chunk_size if the kernel needs that. The padding affects neither h nor the last
    states.
    """
    kernel = bind(mlstm_chunkwise_kernel)
    call = _call(q, c_initial, n_initial, m_initial, eps, autocast_kernel_dtype, chunk_size, kwargs)
    return padded(kernel, call, q, k, v, f, i, return_last_states)


@overload
def wrap_chunkwise__arbitrary_sequence_length(
    mlstm_chunkwise_kernel: Callable, mlstm_sequence_kernel: Callable, mlstm_step_kernel: Callable, q: Tensor,
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
    m_initial: Tensor | None = ..., *, return_last_states: Literal[True] = ..., eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., dtype_state: torch.dtype = ...,
    enable_logging: bool = ..., **kwargs: Any,
) -> tuple[Tensor, States]: ...  # fmt: skip
@overload
def wrap_chunkwise__arbitrary_sequence_length(
    mlstm_chunkwise_kernel: Callable, mlstm_sequence_kernel: Callable, mlstm_step_kernel: Callable, q: Tensor,
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
    m_initial: Tensor | None = ..., *, return_last_states: Literal[False], eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., dtype_state: torch.dtype = ...,
    enable_logging: bool = ..., **kwargs: Any,
) -> Tensor: ...  # fmt: skip
@overload
def wrap_chunkwise__arbitrary_sequence_length(
    mlstm_chunkwise_kernel: Callable, mlstm_sequence_kernel: Callable, mlstm_step_kernel: Callable, q: Tensor,
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
    m_initial: Tensor | None = ..., return_last_states: bool = ..., eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., dtype_state: torch.dtype = ...,
    enable_logging: bool = ..., **kwargs: Any,
) -> Tensor | tuple[Tensor, States]: ...  # fmt: skip
def wrap_chunkwise__arbitrary_sequence_length(
    mlstm_chunkwise_kernel: Callable,
    mlstm_sequence_kernel: Callable,
    mlstm_step_kernel: Callable,
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    f: Tensor,  # (B, NH, S)
    i: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = True,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    dtype_state: torch.dtype = torch.float32,
    enable_logging: bool = False,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """One token goes to the step kernel, more to the chunkwise kernel: all tokens if it takes any S, else the largest
    multiple of chunk_size, and the rest to the sequence kernel. c and n are returned in dtype_state, m never below
    float32. With a registered sigmoid kernel, a registered exponential sequence or step kernel is replaced by its
    sigmoid counterpart.
    """
    chunkwise = bind(mlstm_chunkwise_kernel)
    sequence, step = bind(mlstm_sequence_kernel, chunkwise), bind(mlstm_step_kernel, chunkwise)
    call = _call(q, c_initial, n_initial, m_initial, eps, autocast_kernel_dtype, chunk_size, kwargs)
    return arbitrary_length(
        chunkwise, sequence, step, call, q, k, v, f, i, return_last_states, dtype_state, enable_logging
    )


@overload
def wrap_chunkwise__arbitrary_sequence_length_with_padding(
    mlstm_chunkwise_kernel: Callable, mlstm_sequence_kernel: Callable, mlstm_step_kernel: Callable, q: Tensor,
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
    m_initial: Tensor | None = ..., *, return_last_states: Literal[True] = ..., eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., dtype_state: torch.dtype = ..., **kwargs: Any,
) -> tuple[Tensor, States]: ...  # fmt: skip
@overload
def wrap_chunkwise__arbitrary_sequence_length_with_padding(
    mlstm_chunkwise_kernel: Callable, mlstm_sequence_kernel: Callable, mlstm_step_kernel: Callable, q: Tensor,
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
    m_initial: Tensor | None = ..., *, return_last_states: Literal[False], eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., dtype_state: torch.dtype = ..., **kwargs: Any,
) -> Tensor: ...  # fmt: skip
@overload
def wrap_chunkwise__arbitrary_sequence_length_with_padding(
    mlstm_chunkwise_kernel: Callable, mlstm_sequence_kernel: Callable, mlstm_step_kernel: Callable, q: Tensor,
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
    m_initial: Tensor | None = ..., return_last_states: bool = ..., eps: float = ...,
    autocast_kernel_dtype: torch.dtype = ..., chunk_size: int = ..., dtype_state: torch.dtype = ..., **kwargs: Any,
) -> Tensor | tuple[Tensor, States]: ...  # fmt: skip
def wrap_chunkwise__arbitrary_sequence_length_with_padding(
    mlstm_chunkwise_kernel: Callable,
    mlstm_sequence_kernel: Callable,
    mlstm_step_kernel: Callable,
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    f: Tensor,  # (B, NH, S)
    i: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = True,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    dtype_state: torch.dtype = torch.float32,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
    """The same, but a chunkwise kernel that needs multiples gets a padded tail; the sequence kernel serves
    the kernels that keep no states, when states are asked for."""
    chunkwise = bind(mlstm_chunkwise_kernel)
    sequence, step = bind(mlstm_sequence_kernel, chunkwise), bind(mlstm_step_kernel, chunkwise)
    call = _call(q, c_initial, n_initial, m_initial, eps, autocast_kernel_dtype, chunk_size, kwargs)
    return arbitrary_length(
        chunkwise, sequence, step, call, q, k, v, f, i, return_last_states, dtype_state, pad_tail=True
    )


def padded(
    kernel: Kernel,
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor,
    return_last_states: bool,
) -> Any:
    length = q.shape[2]
    missing = 0 if kernel.any_length else -length % call.chunk_size
    if missing == 0:
        return call.layer(kernel, return_last_states, q, k, v, f, i)
    q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
    f, i = F.pad(f, (0, missing), value=PADDED_FORGET_GATE), F.pad(i, (0, missing), value=PADDED_INPUT_GATE)
    out = call.layer(kernel, return_last_states, q, k, v, f, i)
    return (out[0][:, :, :length], out[1]) if return_last_states else out[:, :, :length]


def arbitrary_length(
    chunkwise: Kernel,
    sequence: Kernel,
    step: Kernel,
    call: Call,
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    f: Tensor,  # (B, NH, S)
    i: Tensor,  # (B, NH, S)
    return_last_states: bool,
    dtype_state: torch.dtype,
    enable_logging: bool = False,
    pad_tail: bool = False,
) -> Any:
    length = q.shape[2]
    stateful = return_last_states or call.c is not None
    tail = 0 if chunkwise.any_length or pad_tail else length % call.chunk_size
    if stateful and not chunkwise.states:
        tail = length
    states: States | None = None
    if length == 1:
        h, states = _one_token(step, call, q, k, v, f, i)
    elif tail == 0:
        out = padded(chunkwise, call, q, k, v, f, i, return_last_states)
        h, states = out if return_last_states else (out, None)
    else:
        h, states = _split(chunkwise, sequence, call, q, k, v, f, i, length - tail)
    if enable_logging:
        by = "step" if length == 1 else f"chunkwise for {length - tail} and sequence for {tail} tokens"
        logger.info("sequence length %d, chunk_size %d: %s", length, call.chunk_size, by)
    if states is None or not return_last_states:
        return h
    return h, states_in(dtype_state, states)


def _call(
    q: Tensor,  # (B, NH, S, DHQK)
    c: Tensor | None,  # (B, NH, DHQK, DHHV)
    n: Tensor | None,  # (B, NH, DHQK)
    m: Tensor | None,  # (B, NH, 1)
    eps: float,
    autocast_kernel_dtype: torch.dtype,
    chunk_size: int,
    keywords: dict[str, Any],
) -> Call:
    has_rank("q", q, 4, "(B, NH, S, DHQK)")
    if q.shape[2] < 1:
        raise ValueError(f"q: expected S >= 1, got shape {tuple(q.shape)}")
    positive_int("chunk_size", chunk_size)
    for name in ("layout", "cu_seqlens", "in_place"):
        if name in keywords:
            raise TypeError(f"{name}: the wrappers have no such keyword; mlstm_interface has")
    return Call(c, n, m, eps, autocast_kernel_dtype, chunk_size, keywords)


def _one_token(
    step: Kernel, call: Call, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor
) -> tuple[Tensor, States]:
    # The step kernel gets tensors without S, and states that are never None, so its own checks do not cover the call.
    check_sequence_inputs(q, k, v, i, f, call.c, call.n, call.m, call.eps, call.chunk_size)
    step.check(q, k, v, i, f, call.c, call.n, call.m)
    q, k, v, i, f = in_kernel_dtype((q, k, v, i, f), call.autocast_kernel_dtype)
    c, n, m = wide_states(q, v, call.c, call.n, call.m)
    with without_autocast(q):  # the casts are done; a kernel that does its own would undo them
        h, states = step.function(
            q=q[:, :, 0], k=k[:, :, 0], v=v[:, :, 0], i=i, f=f, c=c, n=n, m=m, eps=call.eps, **call.maths
        )
    return h.unsqueeze(2), states


def _split(
    chunkwise: Kernel,
    sequence: Kernel,
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor,
    full_chunks: int,
) -> tuple[Tensor, States]:
    """The first `full_chunks` tokens, a multiple of chunk_size, to the chunkwise kernel and the rest to the
    sequence kernel."""
    tokens = (q, k, v, f, i)
    if full_chunks == 0:
        return call.sequence(sequence, None, *tokens)
    h_chunks, states = call.layer(chunkwise, True, *(x[:, :, :full_chunks] for x in tokens))
    h_tail, states = call.sequence(sequence, states, *(x[:, :, full_chunks:] for x in tokens))
    with without_autocast(h_chunks):  # which knows no float16 on a CPU
        return torch.cat((h_chunks, h_tail), dim=2), states
