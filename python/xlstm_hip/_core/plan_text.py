# SPDX-License-Identifier: Apache-2.0
"""Launch plans as text, for `xlstm-hip plan` and XLSTM_HIP_LOGS=plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .device import device_facts
from .environment import gpu_schedule
from .native import native

Plan = dict[str, Any]
Gpu = tuple[str, int, int]  # arch, compute units, bytes of LDS
MLA_DIMS = ((576, 512), (512, 512))


def plan_lines(plan: Plan) -> list[str]:
    """A line for the plan itself, and one for each part of it."""
    plain = {name: value for name, value in plan.items() if not isinstance(value, dict)}
    parts = {"": plain, **{name: value for name, value in plan.items() if isinstance(value, dict)}}
    return [
        (f"{name}: " if name else "") + ", ".join(f"{key} {value}" for key, value in part.items())
        for name, part in parts.items()
        if part
    ]


def plan_of_call(op: str, arguments: Mapping[str, Any]) -> Plan | None:
    """The launch plan of an op's call on the device of its tensors. given: the arguments by name.

    None for ops without a plan: layers, append and combine ops, and the token-by-token kernel on a CPU.
    """
    built, family = native(), op.split("_")[0]
    if built is None or "q" not in arguments:
        return None
    q, v = arguments["q"], arguments["v"]
    gpu = None if q.device.type == "cpu" else _gpu(q.device)
    if family == "mlstm":
        return _mlstm(built, op, arguments, q, v, gpu)
    if family == "attention":
        return _attention(built, op, arguments, q, v, gpu)
    return None


def _gpu(device: torch.device) -> Gpu:
    facts = device_facts(device)
    return facts.arch, facts.compute_units, facts.lds_bytes


def _hopper_schedule_allowed() -> bool:
    return gpu_schedule() != "common"


def _mlstm(built: Any, op: str, arguments: Mapping[str, Any], q: Tensor, v: Tensor, gpu: Gpu | None) -> Plan | None:
    one_token = q.dim() == 3
    recurrent = one_token or op == "mlstm_sequence"
    batch, heads, length = q.shape[0], q.shape[1], 1 if one_token else q.shape[2]
    ends = arguments.get("cu_seqlens")
    sequences = batch if ends is None else ends.shape[0] - 1
    overrides = {name: arguments[name] for name in ("walk_chunk", "segments", "step_columns") if name in arguments}
    if gpu:
        dims = (q.shape[-1], v.shape[-1], q.element_size())
        hopper_schedule = q.dtype == torch.bfloat16 and _hopper_schedule_allowed()
        stateless = not op.endswith("_states") and all(arguments.get(name) is None for name in ("c", "dc"))
        options = {"panels": hopper_schedule, "stateless": stateless, "packed": ends is not None}
        plan = built.plan_mlstm_gpu(gpu, sequences, heads, length, *dims, **overrides, **options)
        parts = ("recurrent",) if recurrent else ("dq", "dk", "dv") if "backward" in op else ("forward",)
        return {"compute_units": plan["compute_units"], **{part: plan[part] for part in parts}}
    if recurrent:
        return None
    longest = length if ends is None else int(ends.diff().max())
    cut = (sequences, heads, longest, arguments["chunk_size"], torch.get_num_threads(), overrides.get("segments", 0))
    return built.plan_mlstm_cpu(*cut)


def _attention(built: Any, op: str, arguments: Mapping[str, Any], q: Tensor, v: Tensor, gpu: Gpu | None) -> Plan | None:
    k, packed = arguments["k"], arguments["cu_seqlens_q"]
    batch = q.shape[0] if packed is None else packed.shape[0] - 1
    queries = q.shape[1] if packed is None else arguments["max_seqlen_q"]
    table = arguments.get("block_table")
    if arguments["cu_seqlens_k"] is not None:
        keys = arguments["max_seqlen_k"]
    else:
        keys = k.shape[1] * (1 if table is None else table.shape[1])
    call = AttentionCall(
        batch, q.shape[-2], k.shape[-2], queries, keys, q.shape[-1], v.shape[-1], q.element_size(),
        arguments["block_size"], arguments.get("splits", 0),
    )  # fmt: skip
    threads = torch.get_num_threads()
    ruled = arguments["softcap"] > 0 or arguments["alibi_slopes"] is not None or arguments["dropout_p"] > 0
    if "backward" in op:
        parts = arguments.get("parts", 0)
        if gpu:
            common = bool(arguments.get("common_schedule", 0))
            deterministic = arguments.get("deterministic", True)
            bounds = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "leftpad_k")
            even = all(arguments.get(name) is None for name in bounds)
            even = even and max(arguments["window_left"], arguments["window_right"]) < 0
            return attention_backward_gpu(built, gpu, call, ruled, parts, common, deterministic, even)
        return attention_backward_cpu(built, call, threads, arguments.get("row_panels", 0), parts)
    if not gpu:
        return attention_cpu(built, call, threads)
    if (call.dqk, call.dv) in MLA_DIMS and k.data_ptr() == v.data_ptr():
        return mla_gpu(built, gpu, call)
    has_score_mod = ruled or not arguments["softmax_scale"] > 0
    plain = "probs" not in op and arguments["dropout_p"] == 0
    return attention_gpu(built, gpu, call, has_score_mod, plain, plain and table is None)


class AttentionCall(NamedTuple):
    """The sizes that the plan of an attention call depends on."""

    batch: int
    heads_q: int
    heads_k: int
    queries: int
    keys: int
    dqk: int
    dv: int
    element_bytes: int
    block_size: int = 0
    splits: int = 0

    @property
    def rows(self) -> int:
        """Query rows per key head."""
        return self.queries * self.heads_q // self.heads_k

    @property
    def panels(self) -> bool:
        """Whether rows have two-byte elements and a multiple of 16 bytes, as Hopper's bulk copies require."""
        return self.element_bytes == 2 and self.dqk % 8 == self.dv % 8 == 0 and _hopper_schedule_allowed()


def attention_cpu(built: Any, call: AttentionCall, threads: int) -> Plan:
    return built.plan_attention_cpu(
        call.batch, call.heads_k, call.rows, call.keys, threads, call.block_size, call.splits
    )


def attention_backward_cpu(built: Any, call: AttentionCall, threads: int, row_panels: int = 0, parts: int = 0) -> Plan:
    return built.plan_attention_backward_cpu(
        call.batch, call.heads_k, call.rows, threads, call.block_size, row_panels, parts
    )


def attention_gpu(
    built: Any,
    gpu: Gpu,
    call: AttentionCall,
    has_score_mod: bool = False,
    may_be_few: bool = True,
    may_copy: bool = True,
) -> Plan:
    """may_be_few, may_copy: whether the kernel for few rows, and the one for Hopper, support the call's options."""
    *shape, block_size, splits = call
    if may_be_few and block_size == 0:
        few = built.plan_decode_gpu(gpu, *shape, splits)
        if few["few_rows"]:
            return few
    return built.plan_attention_gpu(gpu, *shape, has_score_mod, block_size, splits, may_copy and call.panels)


def attention_backward_gpu(
    built: Any,
    gpu: Gpu,
    call: AttentionCall,
    has_score_mod: bool = False,
    parts: int = 0,
    common_schedule: bool = False,
    deterministic: bool = False,
    even: bool = False,
) -> Plan:
    """even: whether every query of every sequence sees every key."""
    return built.plan_attention_backward_gpu(
        gpu, *call[:-2], has_score_mod, parts, common_schedule, call.panels, deterministic, even
    )


def mla_gpu(built: Any, gpu: Gpu, call: AttentionCall) -> Plan:
    return built.plan_mla_gpu(
        *gpu, call.batch, call.heads_k, call.rows, call.keys, call.dqk, call.splits, _hopper_schedule_allowed(),
        min(call.element_bytes, 2),  # floats of 32 bits have no such kernel
    )  # fmt: skip
