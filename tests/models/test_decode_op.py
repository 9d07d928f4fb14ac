# SPDX-License-Identifier: Apache-2.0
"""The op of the decode engine, called by itself: as torch has it checked, and with arguments that are wrong."""

from __future__ import annotations

import pytest
import torch

from support.engine_calls import state_after
from support.peer_models import small_model, tokens
from xlstm_hip._core import ops
from xlstm_hip.models import decode_engine


def call_of(batch: int = 2) -> tuple[list, dict]:
    """The arguments of the op for a model's step."""
    model = small_model(use_bias=True)
    begun = state_after(model, tokens(batch, 5))
    engine = decode_engine.engine_of(model, model._new_engine)
    states = [x for n in sorted(begun) for x in begun[n]]
    weights = [x.detach() for x in engine._parts.tensors]
    out = torch.empty(batch, 97)
    x = tokens(batch, 1, seed=2)[:, 0]
    return [
        out,
        x,
        torch.tensor([True] * batch),
        weights,
        engine._weight_index,
        states,
        4,
        1e-6,
        1e-6,
        15.0,
        30.0,
    ], begun


def test_opcheck() -> None:
    arguments, _ = call_of()
    torch.library.opcheck(ops.OPS.decode_step_, tuple(arguments), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("index", "value", "words"),
    [
        (0, torch.empty(2, 96), r"out: expected shape \( 2 97 \), got \( 2 96 \)"),
        (1, torch.tensor([3, 97]), "tokens: expected 0 to 96, got 97"),
        (1, torch.tensor([3, -1]), "tokens: expected 0 to 96, got -1"),
        (1, torch.tensor([3, 4], dtype=torch.int32), "tokens: expected a contiguous int64 vector"),
        (2, torch.tensor([True]), r"keep: expected shape \( 2 \), got \( 1 \)"),
        (4, torch.zeros(5, dtype=torch.int64), "weight_index: expected 46 for each block and 7, got 5"),
        (6, 3, r"head_norm: expected 96 elements, got 128"),
        (7, -1.0, "norm_eps: expected a finite number >= 0"),
        (9, float("nan"), "gate_cap: expected a finite number >= 0"),
    ],
)
def test_wrong_calls(index: int, value: object, words: str) -> None:
    arguments, _ = call_of()
    arguments[index] = value
    with pytest.raises(RuntimeError, match=words):
        ops.OPS.decode_step_(*arguments)


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1, "weight_index: expected one of an embedding, got -1"), (1 << 40, "weight_index: expected -1 to")],
)
def test_an_embedding_that_is_not_there(value: int, words: str) -> None:
    arguments, _ = call_of()
    arguments[4] = arguments[4].clone()
    arguments[4][-7] = value  # the last seven: embedding, norm of the output with its bias, output's four
    with pytest.raises(RuntimeError, match=words):
        ops.OPS.decode_step_(*arguments)


def test_wrong_tensors() -> None:
    arguments, _ = call_of()
    weights, states = arguments[3], arguments[5]
    for number, value, words in (
        (0, weights[0][:-1], "norm_mlstm: expected 128 elements, got 127"),
        (6, weights[6].double(), "q: expected float32, bfloat16 or float16"),
        (6, weights[6][:, :-1].contiguous(), r"projections: expected shape"),
        (6, weights[6].t(), "weights: expected contiguous tensors"),
    ):
        arguments[3] = [*weights[:number], value, *weights[number + 1 :]]
        with pytest.raises(RuntimeError, match=words):
            ops.OPS.decode_step_(*arguments)
    arguments[3] = weights
    arguments[5] = [states[0].double(), *states[1:]]
    with pytest.raises(RuntimeError, match="c: expected a contiguous float32 tensor"):
        ops.OPS.decode_step_(*arguments)
    arguments[5] = states[:-1]
    with pytest.raises(RuntimeError, match="states: expected c, n, m of 3 blocks, got 8 tensors"):
        ops.OPS.decode_step_(*arguments)


def test_wrong_steps() -> None:
    model = small_model()
    state = state_after(model, tokens(2, 5))
    with pytest.raises(ValueError, match="tokens: expected 1 dimension"):
        model.step(tokens(2, 1), state)
    with pytest.raises(ValueError, match=r"mask: expected .* got"):
        model.step(tokens(2, 1)[:, 0], state, torch.tensor([True]))
    with pytest.raises(ValueError, match="state: expected blocks 0 to 2, got"):
        model.step(tokens(2, 1)[:, 0], {0: state[0]})
