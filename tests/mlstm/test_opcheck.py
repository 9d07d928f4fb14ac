# SPDX-License-Identifier: Apache-2.0
"""torch.library.opcheck on every mLSTM op: schema, fakes, and tracing with dynamic shapes."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from support.op_calls import arguments, registered_ops


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
    call_arguments = arguments(op, sigmoid_gate, states, packed, bshd, dtype)
    opcheck(getattr(torch.ops.xlstm_hip, op).default, (), call_arguments)


def test_all_ops_are_known() -> None:
    assert len(registered_ops()) == 7
