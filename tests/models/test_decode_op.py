# SPDX-License-Identifier: Apache-2.0
"""The op of the decode engine, called by itself: as torch has it checked, and with arguments that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.engine_calls import state_after
from support.peer_models import small_model, tokens
from xlstm_hip._core import ops
from xlstm_hip.models import decode_engine


def call_of(batch: int = 2, **changes: Any) -> tuple[list, dict]:
    """The arguments of the op for a model's step."""
    model = small_model(use_bias=True, **changes)
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


def parts_of_step(arguments: list) -> torch.Tensor:
    """The logits of a step that its parts make, one op each, for a model of one block."""
    logits, tokens_in, keep, weights, index, states, heads, *numbers = arguments
    x = weights[int(index[-7])][tokens_in]
    for part in (1, 2):
        ops.OPS.decode_part_(x, x, keep, weights, index, states, part, heads, *numbers)
    ops.OPS.decode_part_(logits, x, keep, weights, index, states, 3, heads, *numbers)
    return logits


def test_parts_of_a_step() -> None:
    arguments, _ = call_of(num_blocks=1)
    states = [x.clone() for x in arguments[5]]
    ops.OPS.decode_step_(*arguments)
    whole = arguments[0].clone()
    by_parts = [torch.empty_like(whole), *arguments[1:5], states, *arguments[6:]]
    assert torch.equal(parts_of_step(by_parts), whole)
    assert all(map(torch.equal, states, arguments[5]))


def test_a_part_adds_to_another_tensor() -> None:
    """x is not changed, as on the ranks that add to zeros."""
    arguments, _ = call_of(num_blocks=1)
    _, tokens_in, keep, weights, index, states, heads, *numbers = arguments
    x = weights[int(index[-7])][tokens_in]
    before, added = x.clone(), torch.zeros_like(x)
    ops.OPS.decode_part_(added, x, keep, weights, index, states, 2, heads, *numbers)
    assert torch.equal(x, before)
    ops.OPS.decode_part_(x, x, keep, weights, index, states, 2, heads, *numbers)
    torch.testing.assert_close(before + added, x, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [
        (0, torch.empty(2, 97), r"out: expected shape \( 2 128 \), got \( 2 97 \)"),
        (1, torch.empty(2), r"x: expected a matrix \(B, D\)"),
        (1, torch.empty(2, 127), r"x: expected shape \( 2 128 \), got \( 2 127 \)"),
        (1, torch.empty(2, 128).double(), "x: expected a contiguous float32 tensor"),
        (6, 0, "part: expected 1 to 3, got 0"),
        (6, 4, "part: expected 1 to 3, got 4"),
    ],
)
def test_wrong_parts(number: int, value: object, words: str) -> None:
    arguments, _ = call_of(num_blocks=1)
    x = torch.zeros(2, 128)
    part = [x, x, *arguments[2:6], 1, *arguments[6:]]
    part[number] = value
    with pytest.raises(RuntimeError, match=words):
        ops.OPS.decode_part_(*part)


def test_parts_are_of_one_block() -> None:
    arguments, _ = call_of()
    x = torch.zeros(2, 128)
    with pytest.raises(RuntimeError, match="blocks of a part: expected 1"):
        ops.OPS.decode_part_(x, x, *arguments[2:6], 1, *arguments[6:])


def test_wrong_steps() -> None:
    model = small_model()
    state = state_after(model, tokens(2, 5))
    with pytest.raises(ValueError, match="tokens: expected 1 dimension"):
        model.step(tokens(2, 1), state)
    with pytest.raises(ValueError, match=r"mask: expected .* got"):
        model.step(tokens(2, 1)[:, 0], state, torch.tensor([True]))
    with pytest.raises(ValueError, match="state: expected blocks 0 to 2, got"):
        model.step(tokens(2, 1)[:, 0], {0: state[0]})
