# SPDX-License-Identifier: Apache-2.0
"""The fused kernels as functions, with mlstm_kernels' names and argument order: check, cast, then call one op.

Sequence functions share `_sequence`, step functions share `_step`. They differ in the gate and in whether tokens are
processed in chunks or one by one.

The device of the tensors chooses the CPU or GPU kernel. A GPU call never syncs and reads nothing on the host, including
cu_seqlens: the tensor is on q's device and is converted to int64 there. Offsets that do not increase or that leave the
row are cut off on a GPU; on a CPU they are an error. float64 is an error on a GPU. Head dims above 512 are slow on a
GPU in the chunkwise kernels and in every backward pass: their states go through memory in each chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import checks, logging, plans
from .._core.autocast import in_kernel_dtype
from .._core.environment import plain_torch_forced
from .._core.ops import OPS
from ..layers import soft_cap
from ..reference import mlstm_recurrent_step__native, mlstm_siging_recurrent_step__native
from ..reference.core import Variant, run
from ..reference.packed import one_by_one
from .ops import Cut, HiddenFunction, SequenceFunction, StepFunction

DEFAULT_CHUNK_SIZE = 64  # leaves it to the table of plans, where that has an entry


def _wide_state(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype).contiguous()


def _plan(op: str, q: Tensor, v: Tensor, cu_seqlens: Tensor | None, user_plan: Any) -> plans.Plan:
    """The plan that was given; if None, the table's plan for a call that is not packed."""
    if user_plan is not None:
        return plans.check_fused_plan("backward_plan" if op == "mlstm_backward" else "plan", op, user_plan)
    if cu_seqlens is not None:
        return plans.AS_PLANNED
    batch, heads, length, dqk = q.shape
    return plans.fused_plan_for(
        op, q.device, q.dtype, batch=batch, heads=heads, length=length, dqk=dqk, dhv=v.shape[-1]
    )  # fmt: skip


def _cut(op: str, q: Tensor, v: Tensor, chunk_size: int, cu_seqlens: Tensor | None, user_plan: Any) -> Cut:
    plan = _plan(op, q, v, cu_seqlens, user_plan)
    planned_chunk = plan.get("chunk_size") if user_plan is not None or chunk_size == DEFAULT_CHUNK_SIZE else 0
    return Cut(planned_chunk or chunk_size, plan.get("segments", 0), plan.get("walk_chunk", 0))


def _in_plain_torch(function: str, q: Tensor, k: Tensor, v: Tensor) -> bool:
    if not plain_torch_forced():
        return False
    if logging.DISPATCH:
        logging.chosen(function, "plain torch, for XLSTM_HIP_BACKEND=reference", {"q": q, "k": k, "v": v})
    return True


def _plain_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_size: int,
    eps: float,
    variant: Variant,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    def kernel(*inputs: Tensor | None, return_last_states: bool) -> Any:
        return run(inputs, return_last_states, eps, q.dtype, chunk_size, variant)  # type: ignore[arg-type]

    if cu_seqlens is None:
        return kernel(q, k, v, i, f, c, n, m, return_last_states=True)
    ends = checks.ends_of(cu_seqlens, q.shape[2])
    outputs: Any = one_by_one(kernel, (q, k, v, i, f), (c, n, m), ends, {"return_last_states": True})
    return outputs


def _sequence(
    function: str,
    sigmoid_gate: bool,
    recurrent: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: Tensor | None,
    n_initial: Tensor | None,
    m_initial: Tensor | None,
    return_last_states: bool,
    eps: float,
    autocast_kernel_dtype: torch.dtype,
    chunk_size: int,
    kwargs: dict[str, Any],
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    known: tuple[str, ...] = ("cu_seqlens", "layout", "normalizer_grad", "plan", "backward_plan")
    known += ("normalize",) if sigmoid_gate else ()
    known += ("dtype_state",) if recurrent else ()
    checks.no_unknown_keywords(function, kwargs, known)
    layout = kwargs.get("layout", "bhsd")
    checks.one_of("layout", layout, checks.LAYOUTS)
    bshd = layout == "bshd"
    if bshd:
        q, k, v, i, f = checks.transposed(q, k, v, i, f)
    cu_seqlens = kwargs.get("cu_seqlens")
    checks.check_sequence_inputs(q, k, v, i, f, c_initial, n_initial, m_initial, eps, chunk_size, cu_seqlens)
    q, k, v, i, f = in_kernel_dtype((q, k, v, i, f), autocast_kernel_dtype)
    normalize, normalizer_grad = bool(kwargs.get("normalize", True)), bool(kwargs.get("normalizer_grad", True))
    if _in_plain_torch(function, q, k, v):
        variant = Variant("sigmoid" if sigmoid_gate else "exp", normalize, normalizer_grad)
        states = (c_initial, n_initial, m_initial)
        h, ends = _plain_sequence(q, k, v, i, f, *states, cu_seqlens, chunk_size, eps, variant)
        h = h.transpose(1, 2) if bshd else h
        return (h, checks.states_in(kwargs.get("dtype_state"), ends)) if return_last_states else h
    checks.fused_dtype(q)
    wide = checks.accumulate_dtype(q.dtype)
    c, n, m = (_wide_state(x, wide) for x in (c_initial, n_initial, m_initial))
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.to(torch.int64).contiguous()
    options = (sigmoid_gate, normalize, normalizer_grad, float(eps), bshd)
    user_plan = kwargs.get("plan")
    cut: Cut | int  # of tokens one by one: columns of the state in a block
    if recurrent:
        cut = _plan("mlstm_sequence", q, v, cu_seqlens, user_plan).get("step_columns", 0)
    else:
        cut = _cut("mlstm_chunkwise", q, v, chunk_size, cu_seqlens, user_plan)
    tensors = (q, k, v, i, f, c, n, m)
    last: tuple[Tensor, ...] | list[Tensor]
    if checks.gradient_needed(*tensors):
        cuts = (cut, _cut("mlstm_backward", q, v, chunk_size, cu_seqlens, kwargs.get("backward_plan")))
        if return_last_states or recurrent:
            h, *last = SequenceFunction.apply(*tensors, cu_seqlens, recurrent, options, cuts)
        else:
            h, last = HiddenFunction.apply(*tensors, cu_seqlens, options, cuts), []
    elif isinstance(cut, int):
        h, _, *last = OPS.mlstm_sequence(*tensors, cu_seqlens, sigmoid_gate, normalize, float(eps), bshd, cut)
    else:
        op = OPS.mlstm_chunkwise_states if return_last_states else OPS.mlstm_chunkwise
        h, _, *last = op(*tensors, cu_seqlens, sigmoid_gate, normalize, float(eps), cut.chunk_size, bshd, *cut[1:])
    if bshd:
        h = h.transpose(1, 2)
    return (h, checks.states_in(kwargs.get("dtype_state"), (last[0], last[1], last[2]))) if return_last_states else h


def mlstm_chunkwise_fused(
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
    """The chunkwise mLSTM, exp input gate. Also takes cu_seqlens, layout, normalizer_grad; plan, backward_plan."""
    return _sequence(
        "chunkwise--fused", False, False, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def mlstm_chunkwise_fused_siging(
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
    """mlstm_chunkwise_fused with the sigmoid input gate. Also takes normalize."""
    return _sequence(
        "chunkwise--fused_siging", True, False, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def mlstm_sequence_fused(
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
    """Token by token in one call, for few tokens. chunk_size applies to the backward pass. Takes the options of the
    chunkwise kernel.
    """
    return _sequence(
        "fused", False, True, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def mlstm_sequence_fused_siging(
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
    """mlstm_sequence_fused with the sigmoid input gate. Also takes normalize."""
    return _sequence(
        "fused_siging", True, True, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, kwargs,
    )  # fmt: skip


def _step(
    function: str,
    sigmoid_gate: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    eps: float,
    kwargs: dict[str, Any],
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    known = ("dtype_state", "in_place", "gate_soft_cap", "autocast_kernel_dtype", "plan") + (
        ("normalize",) if sigmoid_gate else ()
    )
    checks.no_unknown_keywords(function, kwargs, known)
    checks.check_step_inputs(q, k, v, i, f, c, n, m, eps)
    cap = kwargs.get("gate_soft_cap")
    checks.positive_or_none("gate_soft_cap", cap)
    q, k, v, i, f = in_kernel_dtype((q, k, v, i, f), kwargs.get("autocast_kernel_dtype", torch.bfloat16))
    plain = _in_plain_torch(function, q, k, v)
    if not plain:
        checks.fused_dtype(q)
    wide = checks.accumulate_dtype(q.dtype)
    options = (sigmoid_gate, bool(kwargs.get("normalize", True)), float(eps))
    in_place, dtype_state = kwargs.get("in_place", False), kwargs.get("dtype_state")
    gradient = checks.gradient_needed(q, k, v, i, f, c, n, m)
    c_dtype = torch.bfloat16 if checks.keeps_bfloat16_c(c, q, dtype_state, in_place, gradient) else wide
    plan = kwargs.get("plan")
    if plan is not None:
        plan = plans.check_fused_plan("plan", "mlstm_step", plan)
    elif c_dtype != wide:  # the table is of wide states
        plan = plans.AS_PLANNED
    else:
        sizes = {"batch": q.shape[0], "heads": q.shape[1], "dqk": q.shape[2], "dhv": v.shape[2]}
        plan = plans.fused_plan_for("mlstm_step", q.device, q.dtype, **sizes)
    columns = plan.get("step_columns", 0)
    if in_place:
        checks.written_in_place(dtype_state, c)
        for name, x, dtype in (("c", c, c_dtype), ("n", n, wide), ("m", m, wide)):
            if x.dtype != dtype or not x.is_contiguous():
                raise ValueError(
                    f"in_place: expected {name} to be contiguous and {dtype}, got {x.dtype} with strides {x.stride()}"
                )
        if gradient:
            raise ValueError(
                "in_place: expected no gradient to be needed; states of a training step must not be overwritten"
            )
    if plain and sigmoid_gate:
        return mlstm_siging_recurrent_step__native(
            q, k, v, i, f, c, n, m, eps, dtype_state, normalize=options[1], in_place=in_place, gate_soft_cap=cap
        )
    if plain:
        return mlstm_recurrent_step__native(
            q, k, v, i, f, c, n, m, eps, dtype_state, in_place=in_place, gate_soft_cap=cap
        )
    if in_place:
        h = OPS.mlstm_step_(q, k, v, i, f, c, n, m, *options, columns, cap or 0.0)
        return h, (c, n, m)
    c, n, m = (x.to(dtype).contiguous() for x, dtype in ((c, c_dtype), (n, wide), (m, wide)))
    if gradient:  # through the cap by its own op
        i, f = (x if cap is None else soft_cap(x.to(wide), cap) for x in (i, f))
        h, c_next, n_next, m_next = StepFunction.apply(q, k, v, i, f, c, n, m, options, columns)
    else:
        h, c_next, n_next, m_next = OPS.mlstm_step(q, k, v, i, f, c, n, m, *options, columns, cap or 0.0)
    return h, checks.states_in(dtype_state, (c_next, n_next, m_next))


def mlstm_step_fused(
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
    """One token. The new c and n are in dtype_state, float32 by default. Takes in_place (c, n and m are overwritten
    and returned), gate_soft_cap (of i and f) and plan.

    Without dtype_state or gradient, a bfloat16 c comes back in bfloat16, rounded stochastically: exact in the mean.
    """
    return _step("fused", False, q, k, v, i, f, c, n, m, eps, {"dtype_state": dtype_state, **kwargs})


def mlstm_step_fused_siging(
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
    """One token with the sigmoid input gate. Also takes normalize, in_place, gate_soft_cap and plan."""
    return _step("fused_siging", True, q, k, v, i, f, c, n, m, eps, {"dtype_state": dtype_state, **kwargs})
