# SPDX-License-Identifier: Apache-2.0
"""Launch plans of calls, as text: what `xlstm-hip plan` prints and XLSTM_HIP_LOGS=plan logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .describe import native
from .device import device_facts

Plan = dict[str, Any]
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


def plan_of_call(op: str, given: Mapping[str, Any]) -> Plan | None:
    """How an op's call is cut up where its tensors lie; given: its arguments by name.

    None for ops that are not planned: the layers, appending and combining, and token by token on a CPU. A GPU that is
    not one of the known ones has its plan made in the library alone, and gets None too.
    """
    built, family = native(), op.split("_")[0]
    if built is None or "q" not in given or (family == "attention" and "backward" in op):
        return None
    q, v = given["q"], given["v"]
    on_cpu = q.device.type == "cpu"
    name = "" if on_cpu else _known_device(built, q.device)
    if name is None:
        return None
    if family == "mlstm":
        return _mlstm(built, op, given, q, v, name)
    if family == "attention":
        return _attention(built, op, given, q, v, name)
    return None


def _known_device(built: Any, device: torch.device) -> str | None:
    here = device_facts(device)
    same = (f for f in built.known_devices() if (f["arch"], f["compute_units"]) == (here.arch, here.compute_units))
    return next((facts["name"] for facts in same), None)


def _mlstm(built: Any, op: str, given: Mapping[str, Any], q: Tensor, v: Tensor, device: str) -> Plan | None:
    one_token = q.dim() == 3
    recurrent = one_token or op == "mlstm_sequence"
    batch, heads, length = q.shape[0], q.shape[1], 1 if one_token else q.shape[2]
    ends = given.get("cu_seqlens")
    sequences = batch if ends is None else ends.shape[0] - 1
    if device:
        dims = (q.shape[-1], v.shape[-1], q.element_size())
        plan = built.plan_mlstm_gpu(device, sequences, heads, length, *dims)
        wanted = ("recurrent",) if recurrent else ("dq", "dk", "dv") if "backward" in op else ("forward",)
        return {"compute_units": plan["compute_units"], **{part: plan[part] for part in wanted}}
    if recurrent:
        return None
    longest = length if ends is None else int(ends.diff().max())
    return built.plan_mlstm_cpu(sequences, heads, longest, given["chunk_size"], torch.get_num_threads())


def _attention(built: Any, op: str, given: Mapping[str, Any], q: Tensor, v: Tensor, device: str) -> Plan:
    k, packed = given["k"], given["cu_seqlens_q"]
    batch = q.shape[0] if packed is None else packed.shape[0] - 1
    queries = q.shape[1] if packed is None else given["max_seqlen_q"]
    table = given.get("block_table")
    if given["cu_seqlens_k"] is not None:
        keys = given["max_seqlen_k"]
    else:
        keys = k.shape[1] * (1 if table is None else table.shape[1])
    heads_q, heads_k, dims = q.shape[-2], k.shape[-2], (q.shape[-1], v.shape[-1])
    block_size, splits = given["block_size"], given.get("splits", 0)
    rows = queries * heads_q // heads_k
    if not device:
        return built.plan_attention_cpu(batch, heads_k, rows, keys, torch.get_num_threads(), block_size, splits)
    if dims in MLA_DIMS and k.data_ptr() == v.data_ptr():
        facts = device_facts(q.device)
        return built.plan_mla_gpu(
            facts.arch, facts.compute_units, facts.lds_bytes, batch, heads_k, rows, keys, dims[0], splits
        )
    shape = (device, batch, heads_q, heads_k, queries, keys, *dims, q.element_size())
    if "probs" not in op and given["dropout_p"] == 0 and block_size == 0:
        few = built.plan_decode_gpu(*shape, splits)
        if few["few_rows"]:
            return few
    bent = given["softcap"] > 0 or given["alibi_slopes"] is not None or given["dropout_p"] > 0
    return built.plan_attention_gpu(*shape, bent, block_size, splits)
