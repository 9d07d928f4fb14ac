# SPDX-License-Identifier: Apache-2.0
"""Argument checks shared by all public functions.

Every public function checks its tensors here before a kernel sees them. An error names the argument, what was expected
and what was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

IO_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)  # of attention's keys and values
GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of the fused kernels; float64 is the CPU's alone
# Beyond this head dim the chunkwise kernels of a GPU move their states through memory (chunk_walk_wide.h).
GPU_HEAD_DIM = 512
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)  # under torch.compile a number may be symbolic
STATE_NAMES = ("c_initial", "n_initial", "m_initial")
LAYOUTS = ("bhsd", "bshd")
GATES = ("exp", "sigmoid")


def by_name(dtypes: Iterable[torch.dtype]) -> dict[str, torch.dtype]:
    return {str(dtype).removeprefix("torch."): dtype for dtype in dtypes}


def shape_text(x: Tensor) -> str:
    return "(" + ", ".join(str(n) for n in x.shape) + ")"


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """States and sums are float32, or float64 when the inputs are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def promoted_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype of an operation of these by torch's promotion, where each has axes."""
    first, *dtypes = (x.dtype for x in tensors if x is not None)
    for dtype in dtypes:
        first = torch.promote_types(first, dtype)
    return first


def states_in(dtype_state: torch.dtype | None, states: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """c and n in dtype_state; m as the kernel has it, never below float32, as bfloat16 would round small steps away."""
    if dtype_state is None:
        return states
    one_of("dtype_state", dtype_state, IO_DTYPES)
    c, n, m = states
    return c.to(dtype_state), n.to(dtype_state), m.to(accumulate_dtype(m.dtype))


def keeps_bfloat16_c(c: Tensor, q: Tensor, dtype_state: torch.dtype | None, in_place: bool, gradient: bool) -> bool:
    """Whether a step returns its bfloat16 c in bfloat16, rounded stochastically, and n and m wide."""
    asked = dtype_state is None or (in_place and dtype_state == torch.bfloat16)
    return c.dtype == torch.bfloat16 and q.dtype != torch.float64 and asked and not gradient


def written_in_place(dtype_state: torch.dtype | None, c: Tensor) -> None:
    if dtype_state is not None and dtype_state != c.dtype:
        raise ValueError(f"dtype_state: expected {c.dtype}, which in_place writes over c, n and m, got {dtype_state}")


def is_tensor(name: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    return x


def has_shape(name: str, x: Any, shape: tuple[int, ...], meaning: str) -> Tensor:
    is_tensor(name, x)
    if x.shape != shape:
        raise ValueError(f"{name}: expected shape {meaning} = {shape}, got {shape_text(x)}")
    return x


def has_rank(name: str, x: Any, rank: int, meaning: str) -> Tensor:
    is_tensor(name, x)
    if x.dim() != rank:
        raise ValueError(f"{name}: expected {rank} dimensions {meaning}, got {x.dim()}: {shape_text(x)}")
    return x


def has_integers(name: str, x: Any) -> Tensor:
    if is_tensor(name, x).dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: expected int32 or int64, got {x.dtype}")
    return x


def one_of(name: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def non_negative(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a finite number >= 0, got {value!r}")


def positive_or_none(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, _NUMBERS) or not 0 < value < math.inf):
        raise ValueError(f"{name}: expected a finite number > 0 or None, got {value!r}")


def positive_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)) or value < 1:
        raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")


def no_unknown_keywords(function: str, kwargs: dict[str, Any], known: tuple[str, ...] = ()) -> None:
    unknown = [k for k in kwargs if k not in known]
    if unknown:
        hint = f" (it takes {', '.join(known)})" if known else ""
        raise TypeError(f"{function}: unexpected keyword argument {', '.join(map(repr, unknown))}{hint}")


def gradient_needed(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def same_device(of: str, first: Tensor, **tensors: Tensor | None) -> None:
    device = first.device
    for name, x in tensors.items():
        if x is not None and x.device != device:
            raise ValueError(f"{name}: expected device {device} as {of} has, got {x.device}")


def _dtypes(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, states: dict[str, Tensor]) -> None:
    dtype = q.dtype
    if dtype not in IO_DTYPES:
        raise TypeError(f"q: expected float32, bfloat16, float16 or float64, got {dtype}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != dtype:
            raise TypeError(f"{name}: expected {dtype} as q has, got {x.dtype}")
    gate_dtypes = (dtype, accumulate_dtype(dtype))
    for name, x in (("i", i), ("f", f)):
        if x.dtype not in gate_dtypes:
            raise TypeError(f"{name}: expected {dtype} as q has, or {gate_dtypes[1]}, got {x.dtype}")
    for name, x in states.items():
        if x.dtype not in IO_DTYPES:
            raise TypeError(f"{name}: expected a floating dtype, got {x.dtype}")


def _unit_last_stride(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise ValueError(
                f"{name}: expected the last dimension to be contiguous (stride 1), got strides {tuple(x.stride())}; "
                f"call {name}.contiguous() first"
            )


def fused_dtype(q: Tensor) -> None:
    """Raises for float64 on a GPU, which the fused kernels do not support."""
    if q.device.type == "cuda" and q.dtype not in GPU_DTYPES:
        raise TypeError(f"q: expected float32, bfloat16 or float16 on a GPU, got {q.dtype}; the CPU takes float64")


def is_cu_seqlens(name: str, cu_seqlens: Any, of: str, like: Tensor) -> Tensor:
    """Checks offsets (N + 1) of sequences in the tensor `like`, named `of`, but for their values."""
    has_integers(name, cu_seqlens)
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"{name}: expected shape (N + 1) with N >= 1, got {shape_text(cu_seqlens)}")
    if like.shape[0] != 1:
        raise ValueError(f"{name}: expected packed sequences in one row, got a batch of {like.shape[0]}")
    same_device(of, like, **{name: cu_seqlens})
    return cu_seqlens


def check_cu_seqlens(cu_seqlens: Any, q: Tensor) -> int:
    """Checks cu_seqlens (N + 1) and returns N. Offsets start at 0, increase and end at S; the batch is one packed row.

    The values are checked on the CPU only. Reading them on a GPU would force a device sync and prevent graph capture.
    Under torch.compile the values are unknown here; the CPU op checks them when it runs.
    """
    is_cu_seqlens("cu_seqlens", cu_seqlens, "q", q)
    if not torch.compiler.is_compiling() and cu_seqlens.device.type == "cpu":
        ends_of(cu_seqlens, q.shape[2])
    return cu_seqlens.shape[0] - 1


def ends_of(cu_seqlens: Tensor, length: int) -> list[int]:
    """The values of cu_seqlens, which must start at 0, rise, and end at S = length."""
    return rising_ends([int(e) for e in cu_seqlens.tolist()], length)


def rising_ends(ends: list[int], length: int) -> list[int]:
    if not ends or ends[0] != 0:
        raise ValueError(f"cu_seqlens: expected to start at 0, got {ends[0] if ends else 'no offsets'}")
    for n in range(1, len(ends)):
        if ends[n] <= ends[n - 1]:
            raise ValueError(f"cu_seqlens: expected values that rise, got {ends[n - 1]} then {ends[n]} at position {n}")
    if ends[-1] != length:
        raise ValueError(f"cu_seqlens: expected to end at S = {length}, got {ends[-1]}")
    return ends


def check_states(
    q: Tensor, c: Any, n: Any, m: Any, batch: int, heads: int, dqk: int, dhv: int, names: tuple[str, str, str]
) -> dict[str, Tensor]:
    """Checks that all three states are given, or none. Returns the given ones by name."""
    if c is n is m is None:
        return {}
    states = {name: x for name, x in zip(names, (c, n, m), strict=True) if x is not None}
    if states and len(states) != 3:
        missing = [name for name in names if name not in states]
        raise ValueError(f"{', '.join(missing)}: expected all three states or none, got only {', '.join(states)}")
    if states:
        has_shape(names[0], c, (batch, heads, dqk, dhv), "(B, NH, DHQK, DHHV)")
        has_shape(names[1], n, (batch, heads, dqk), "(B, NH, DHQK)")
        has_shape(names[2], m, (batch, heads, 1), "(B, NH, 1)")
        same_device("q", q, **states)
    return states


def transposed(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Tensor, ...]:
    """Views of the inputs of a sequence as (B, NH, S, ...), of (B, S, NH, ...)."""
    return tuple(is_tensor(name, x).transpose(1, 2) for name, x in zip("qkvif", (q, k, v, i, f), strict=True))


def check_sequence_inputs(
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    c_initial: Any = None,
    n_initial: Any = None,
    m_initial: Any = None,
    eps: Any = 1e-6,
    chunk_size: Any = 64,
    cu_seqlens: Any = None,
) -> None:
    """q, k (B, NH, S, DHQK)  v (B, NH, S, DHHV)  i, f (B, NH, S)  states (N, NH, ...), N the number of sequences."""
    has_rank("q", q, 4, "(B, NH, S, DHQK)")
    batch, heads, length, dqk = q.shape
    for axis, size in (("B", batch), ("NH", heads), ("S", length), ("DHQK", dqk)):
        if size < 1:
            raise ValueError(f"q: expected {axis} >= 1, got shape {shape_text(q)}")
    has_shape("k", k, (batch, heads, length, dqk), "(B, NH, S, DHQK)")
    has_rank("v", v, 4, "(B, NH, S, DHHV)")
    dhv = v.shape[-1]
    if tuple(v.shape[:3]) != (batch, heads, length) or dhv < 1:
        raise ValueError(
            f"v: expected shape (B, NH, S, DHHV) = ({batch}, {heads}, {length}, DHHV >= 1), got {shape_text(v)}"
        )
    has_shape("i", i, (batch, heads, length), "(B, NH, S)")
    has_shape("f", f, (batch, heads, length), "(B, NH, S)")
    non_negative("eps", eps)
    positive_int("chunk_size", chunk_size)
    sequences = batch
    if cu_seqlens is not None:
        sequences = check_cu_seqlens(cu_seqlens, q)
    states = check_states(q, c_initial, n_initial, m_initial, sequences, heads, dqk, dhv, STATE_NAMES)
    _dtypes(q, k, v, i, f, states)
    same_device("q", q, k=k, v=v, i=i, f=f)
    _unit_last_stride(q=q, k=k, v=v)


def check_step_inputs(q: Any, k: Any, v: Any, i: Any, f: Any, c: Any, n: Any, m: Any, eps: Any = 1e-6) -> None:
    """q, k (B, NH, DHQK)  v (B, NH, DHHV)  i, f (B, NH, 1)  c (B, NH, DHQK, DHHV)  n (B, NH, DHQK)  m (B, NH, 1)."""
    has_rank("q", q, 3, "(B, NH, DHQK)")
    batch, heads, dqk = q.shape
    for axis, size in (("B", batch), ("NH", heads), ("DHQK", dqk)):
        if size < 1:
            raise ValueError(f"q: expected {axis} >= 1, got shape {shape_text(q)}")
    has_shape("k", k, (batch, heads, dqk), "(B, NH, DHQK)")
    has_rank("v", v, 3, "(B, NH, DHHV)")
    dhv = v.shape[-1]
    if tuple(v.shape[:2]) != (batch, heads) or dhv < 1:
        raise ValueError(f"v: expected shape (B, NH, DHHV) = ({batch}, {heads}, DHHV >= 1), got {shape_text(v)}")
    has_shape("i", i, (batch, heads, 1), "(B, NH, 1)")
    has_shape("f", f, (batch, heads, 1), "(B, NH, 1)")
    non_negative("eps", eps)
    for name, x in (("c", c), ("n", n), ("m", m)):
        is_tensor(name, x)
    states = check_states(q, c, n, m, batch, heads, dqk, dhv, ("c", "n", "m"))
    _dtypes(q, k, v, i, f, states)
    same_device("q", q, k=k, v=v, i=i, f=f)
    _unit_last_stride(q=q, k=k, v=v)
