# SPDX-License-Identifier: Apache-2.0
"""slstm_interface and slstm_step_interface: check arguments, call the kernel of the tensors' device."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core import checks, logging
from .._core.environment import plain_torch_forced
from .._core.ops import OPS, devices_with_kernels
from ..reference.slstm import CellStates, slstm_sequence
from . import ops

FUNCTIONS = ("slstm", "lstm")
FORGET_GATES = ("sigmoid", "exp")
GPU_UNITS, GPU_VECTOR = 512, 8  # of a head: at most, and a multiple of it, to which heads are padded
_STATES = {"slstm": ("h", "c", "n", "m"), "lstm": ("h", "c")}
_DEVICES = devices_with_kernels("slstm_forward")


def _cell(function: str, forget_gate: str) -> int:
    checks.one_of("function", function, FUNCTIONS)
    checks.one_of("forget_gate", forget_gate, FORGET_GATES)
    if function == "lstm" and forget_gate != "sigmoid":
        raise ValueError(f"forget_gate: expected 'sigmoid', the only one of an LSTM, got {forget_gate!r}")
    return ops.CELLS[function, forget_gate]


def _checked(
    x: Any, recurrent: Any, bias: Any, states: Any, function: str, cu_seqlens: Any
) -> tuple[Tensor, Tensor, Tensor | None, CellStates | None]:
    """The arguments as the kernels take them: matrix in x's dtype, bias and states but h wide."""
    checks.has_rank("x", x, 5, "(B, S, 4, NH, U)")
    if x.dtype not in checks.IO_DTYPES:
        raise TypeError(f"x: expected float32, bfloat16, float16 or float64, got {x.dtype}")
    batch, length, gates, heads, units = x.shape
    if gates != len(ops.GATES):
        raise ValueError(f"x: expected 4 gates {', '.join(ops.GATES)} in its third dimension, got {gates}")
    for name, size in (("B", batch), ("S", length), ("NH", heads), ("U", units)):
        if size < 1:
            raise ValueError(f"x: expected {name} >= 1, got shape {checks.shape_text(x)}")
    checks.has_shape("recurrent", recurrent, (gates, heads, units, units), "(4, NH, U, U)")
    if bias is not None:
        checks.has_shape("bias", bias, (gates, heads, units), "(4, NH, U)")
    checks.same_device("x", x, recurrent=recurrent, bias=bias)
    sequences = batch
    if cu_seqlens is not None:
        checks.is_cu_seqlens("cu_seqlens", cu_seqlens, "x", x)
        if not torch.compiler.is_compiling() and cu_seqlens.device.type == "cpu":
            checks.ends_of(cu_seqlens, length)
        sequences = cu_seqlens.shape[0] - 1
    wide = checks.accumulate_dtype(x.dtype)
    names = _STATES[function]
    if states is not None:
        if not isinstance(states, (tuple, list)) or len(states) != len(names):
            raise TypeError(f"states: expected ({', '.join(names)}) of a {function}, got {type(states).__name__}")
        for name, state in zip(names, states, strict=True):
            checks.has_shape(f"states, {name}", state, (sequences, heads, units), "(N, NH, U)")
            checks.same_device("x", x, **{name: state})
        states = tuple(s.to(x.dtype if n == 0 else wide).contiguous() for n, s in enumerate(states))
    return x, recurrent.to(x.dtype), None if bias is None else bias.to(wide).contiguous(), states


def _has_kernel(x: Tensor) -> bool:
    device = x.device.type
    has = device in _DEVICES and not plain_torch_forced()
    if has and device == "cuda":
        if x.dtype not in checks.GPU_DTYPES:
            raise TypeError(f"x: expected float32, bfloat16 or float16 on a GPU, got {x.dtype}; the CPU takes float64")
        if x.shape[-1] > GPU_UNITS:
            raise ValueError(f"x: expected at most {GPU_UNITS} units in a head on a GPU, got {x.shape[-1]}")
    if logging.DISPATCH and not has:
        logging.chosen("slstm", "plain torch", {"x": x})
    return has


def _readable(x: Tensor) -> Tensor:
    """x as the kernels read it: units next to each other, on a GPU vectors of 16 bytes."""
    if x.stride(-1) != 1:
        return x.contiguous()
    if x.device.type == "cpu" or torch.compiler.is_compiling():
        return x
    is_aligned = x.data_ptr() % 16 == 0 and all(n % GPU_VECTOR == 0 for n in x.stride()[:-1])
    return x if is_aligned else x.clone(memory_format=torch.contiguous_format)


def _with_more_units(more: int, x: Tensor, recurrent: Tensor, bias: Tensor | None, states: CellStates | None) -> Any:
    """Heads with units that no other unit reads, and that stay 0."""
    one, both = (0, more), (0, more, 0, more)
    return (
        F.pad(x, one),
        F.pad(recurrent, both),
        None if bias is None else F.pad(bias, one),
        None if states is None else tuple(F.pad(s, one) for s in states),
    )


def cell_sequence(
    x: Tensor, recurrent: Tensor, bias: Tensor | None, states: Any, function: str, forget_gate: str,
    cu_seqlens: Tensor | None, all_states: bool,
) -> tuple[list[Tensor], CellStates]:  # fmt: skip
    """The states of every token, h alone unless all_states, and those after the last one."""
    cell = _cell(function, forget_gate)
    x, recurrent, bias, states = _checked(x, recurrent, bias, states, function, cu_seqlens)
    if not _has_kernel(x):
        tokens, last = slstm_sequence(x, recurrent, bias, states, cu_seqlens, cell == ops.LSTM, forget_gate == "exp")
        return tokens if all_states else tokens[:1], last
    units = x.shape[-1]
    more = -units % GPU_VECTOR if x.device.type == "cuda" else 0
    if more:
        x, recurrent, bias, states = _with_more_units(more, x, recurrent, bias, states)
    x = _readable(x)
    offsets = None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()
    initial = [*(states or ()), None, None, None, None][:4]
    size = len(_STATES[function])
    if all_states or checks.gradient_needed(x, recurrent, bias, *initial):
        h, *found = ops.CellFunction.apply(x, recurrent, bias, *initial, offsets, cell, all_states)
        last, tokens = found[:size], found[4 : 4 + size - 1]
    else:
        h, *last = OPS.slstm_forward(x, ops.forward_matrix(recurrent), bias, *initial, offsets, cell, False, False)
        last, tokens = last[:size], []
    if more:
        return [s[..., :units] for s in (h, *tokens)], tuple(s[..., :units] for s in last)
    return [h, *tokens], tuple(last)


# A type checker knows h from (h, states) by the keyword return_last_states.
@overload
def slstm_interface(
    x: Tensor, recurrent: Tensor, bias: Tensor | None = ..., states: Any = ..., *,
    return_last_states: Literal[False] = ..., function: str = ..., forget_gate: str = ...,
    cu_seqlens: Tensor | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def slstm_interface(
    x: Tensor, recurrent: Tensor, bias: Tensor | None = ..., states: Any = ..., *,
    return_last_states: Literal[True], function: str = ..., forget_gate: str = ..., cu_seqlens: Tensor | None = ...,
) -> tuple[Tensor, CellStates]: ...  # fmt: skip
def slstm_interface(
    x: Tensor,  # (B, S, 4, NH, U), what the input adds to the gates i, f, z, o
    recurrent: Tensor,  # (4, NH, U, U), of each gate and head: its unit, and the previous token's unit that it reads
    bias: Tensor | None = None,  # (4, NH, U)
    states: Any = None,  # (h, c, n, m), each (N, NH, U)
    *,
    return_last_states: bool = False,
    function: str = "slstm",
    forget_gate: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, CellStates]:
    """The sLSTM over a sequence: h (B, S, NH, U), with return_last_states also (h, c, n, m) after the last token.

    states       before the first token; a unit whose n is zero has no past. Default: none has
    function     "slstm", or "lstm", whose states are (h, c)
    forget_gate  of the sLSTM: "sigmoid", or "exp"
    cu_seqlens   (N + 1) int offsets 0 .. S of N sequences packed in one row (B = 1), on x's device; states are then per
                 sequence. On a GPU the kernels do not check its values

    h has x's dtype, c, n and m are float32 (float64 for float64), in which everything but h is computed. Every argument
    has its exact gradient, the states too.
    """
    tokens, last = cell_sequence(x, recurrent, bias, states, function, forget_gate, cu_seqlens, False)
    return (tokens[0], last) if return_last_states else tokens[0]


def slstm_step_interface(
    x: Tensor,  # (B, 4, NH, U)
    recurrent: Tensor,  # (4, NH, U, U)
    bias: Tensor | None = None,  # (4, NH, U)
    states: Any = None,  # (h, c, n, m), each (B, NH, U)
    *,
    function: str = "slstm",
    forget_gate: str = "sigmoid",
    in_place: bool = False,
) -> tuple[Tensor, CellStates]:
    """One token: h (B, NH, U) and the states after it. in_place: they are written over `states`, which must have the
    dtypes that slstm_interface returns, and no gradient is computed."""
    checks.has_rank("x", x, 4, "(B, 4, NH, U)")
    if not in_place:
        tokens, last = cell_sequence(x[:, None], recurrent, bias, states, function, forget_gate, None, False)
        return tokens[0][:, 0], last
    cell = _cell(function, forget_gate)
    if states is None:
        raise ValueError("states: expected the states to write over with in_place, got None")
    x, recurrent, bias, given = _checked(x[:, None], recurrent, bias, states, function, None)
    for name, state, as_taken in zip(_STATES[function], states, given or (), strict=True):
        if state is not as_taken:
            raise ValueError(
                f"states, {name}: expected a contiguous tensor of {as_taken.dtype} to write over, got {state.dtype} "
                f"with strides {tuple(state.stride())}"
            )
    if checks.gradient_needed(x, recurrent, bias, *states):
        raise ValueError("in_place: expected no gradient to be asked for; call it in torch.no_grad()")
    if not _has_kernel(x) or (x.device.type == "cuda" and x.shape[-1] % GPU_VECTOR):
        _, last = cell_sequence(x, recurrent, bias, given, function, forget_gate, None, False)
        for state, new in zip(states, last, strict=True):
            state.copy_(new)
        return states[0].clone(), tuple(states)
    h, c, n, m = [*states, None, None][:4]
    return OPS.slstm_step_(_readable(x), ops.forward_matrix(recurrent), bias, h, c, n, m, cell)[:, 0], tuple(states)
