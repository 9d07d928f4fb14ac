# SPDX-License-Identifier: Apache-2.0
"""torch.library.opcheck on every mLSTM op: schema, fakes, and tracing with dynamic shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import xlstm_hip.ops  # noqa: F401  loads the op library

FLAGS: dict[str, Any] = {"normalize": True, "eps": 1e-6}


def registered_ops() -> list[str]:
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.partition("::")[2] for name in names if name.startswith("xlstm_hip::mlstm_"))


def arguments(
    op: str, sigmoid_gate: bool, states: bool, packed: bool, bshd: bool, dtype: torch.dtype
) -> dict[str, Any]:
    b, nh, s, dqk, dhv = (1 if packed else 2), 3, 9, 8, 5
    n = 2 if packed else b
    wide = torch.promote_types(dtype, torch.float32)

    def tokens(*features: int) -> Tensor:
        if bshd:
            return torch.randn(b, s, nh, *features, dtype=dtype).transpose(1, 2)
        return torch.randn(b, nh, s, *features, dtype=dtype)

    def state(*shape: int) -> Tensor:
        return torch.randn(n, nh, *shape, dtype=wide)

    flags = FLAGS | {"sigmoid_gate": sigmoid_gate}
    if op.startswith("mlstm_step"):
        one = [torch.randn(b, nh, x, dtype=dtype) for x in (dqk, dqk, dhv, 1, 1)]
        c, last = torch.randn(b, nh, dqk, dhv, dtype=wide), torch.randn(b, nh, dqk, dtype=wide)
        return (
            dict(zip("qkvif", one, strict=True)) | flags | {"c": c, "n": last, "m": torch.randn(b, nh, 1, dtype=wide)}
        )
    made: dict[str, Any] = {"q": tokens(dqk), "k": tokens(dqk), "v": tokens(dhv), "i": tokens(), "f": tokens()}
    made |= {"cu_seqlens": torch.tensor([0, 4, s]) if packed else None, "bshd": bshd} | flags
    for name, shape in (("c", (dqk, dhv)), ("n", (dqk,)), ("m", (1,))):
        made[f"{name}_initial"] = state(*shape) if states else None
        if op.startswith("mlstm_backward"):
            made[f"d{name}_last"] = state(*shape) if states else None
    if op.startswith("mlstm_backward"):
        made |= {"h": tokens(dhv), "dh": tokens(dhv), "l": torch.randn(b, nh, s, dtype=wide), "normalizer_grad": True}
    if op != "mlstm_sequence":
        made["chunk_size"] = 4
    return made


@pytest.mark.parametrize(
    "states, packed, bshd, dtype",
    [
        (True, False, False, torch.float32),
        (False, False, True, torch.bfloat16),
        (True, True, False, torch.float64),
        (False, True, True, torch.float16),
    ],
    ids=["states", "bshd bf16", "packed fp64", "packed bshd fp16"],
)
@pytest.mark.parametrize("sigmoid_gate", [False, True], ids=["exp", "sigmoid"])
@pytest.mark.parametrize("op", registered_ops())
def test_op(op: str, sigmoid_gate: bool, states: bool, packed: bool, bshd: bool, dtype: torch.dtype) -> None:
    if op == "mlstm_backward_states" and not states:
        return  # it exists for calls that have initial states
    given = arguments(op, sigmoid_gate, states, packed, bshd, dtype)
    opcheck(getattr(torch.ops.xlstm_hip, op).default, (), given)


def test_all_ops_are_known() -> None:
    assert len(registered_ops()) == 7
