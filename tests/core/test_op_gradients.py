# SPDX-License-Identifier: Apache-2.0
"""Uses of an op's gradient by autograd and torch.compile, for one call of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from xlstm_hip import layers, mlstm_interface, mlstm_step_interface
from xlstm_hip.attention import flash_attn_func

Tensors = tuple[Tensor, ...]
mlstm: Any = mlstm_interface
mlstm_step: Any = mlstm_step_interface
B, NH, S, DQK, DHV = 2, 3, 21, 8, 6
SEQUENCE = ((B, NH, S, DQK), (B, NH, S, DQK), (B, NH, S, DHV), (B, NH, S), (B, NH, S))
STEP = ((B, NH, DQK), (B, NH, DQK), (B, NH, DHV), (B, NH, 1), (B, NH, 1))
STATES = ((B, NH, DQK, DHV), (B, NH, DQK), (B, NH, 1))


def sequence(*tensors: Tensor) -> Tensor:
    return mlstm(*tensors, chunk_size=16)


def sequence_with_states(*tensors: Tensor) -> Tensors:
    h, states = mlstm(*tensors, return_last_states=True, chunk_size=16)
    return h, *states


def step(*tensors: Tensor) -> Tensors:
    h, states = mlstm_step(*tensors)
    return h, *states


def attention(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensors:
    return flash_attn_func(q, k, v, causal=True, softcap=3.0, sink=sink, return_attn_probs=True)[:2]


CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mlstm": (sequence, SEQUENCE),
    "mlstm with states": (sequence_with_states, SEQUENCE + STATES),
    "mlstm step": (step, STEP + STATES),
    "attention": (attention, ((B, S, NH, DQK), (B, S, NH, DQK), (B, S, NH, DQK), (NH,))),
    "rms norm": (layers.rms_norm, ((B, S, DQK), (DQK,))),
    "add and rms norm": (layers.add_rms_norm, ((B, S, DQK), (B, S, DQK), (DQK,))),
    "head norm": (layers.head_norm_gate, ((B, S, NH, DHV), (B, S, NH * DHV), (NH * DHV,))),
    "swiglu": (layers.swiglu, ((B, S, DQK), (B, S, DQK))),
}
calls = pytest.mark.parametrize("call", CALLS)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(call: str) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=rng).requires_grad_() for shape in CALLS[call][1]]


def outputs(function: Callable[..., Any], arguments: list[Tensor]) -> Tensors:
    results = function(*arguments)
    return (results,) if isinstance(results, Tensor) else tuple(results)


def cotangents(results: Tensors) -> list[Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=rng) for x in results]


def gradients(function: Callable[..., Any], arguments: list[Tensor]) -> Tensors:
    results = outputs(function, arguments)
    return torch.autograd.grad(results, arguments, cotangents(results))


def same_bits(actual: Tensors, expected: Tensors) -> None:
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))


@calls
def test_eager_and_compiled_gradients_are_the_same_bits(call: str) -> None:
    function, arguments = CALLS[call][0], inputs(call)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    same_bits(gradients(compiled, arguments), gradients(function, arguments))


@calls
def test_differentiating_twice_is_an_error(call: str) -> None:
    arguments = inputs(call)
    results = outputs(CALLS[call][0], arguments)
    first = torch.autograd.grad(
        results, arguments, [torch.ones_like(x, requires_grad=True) for x in results], create_graph=True
    )
    with pytest.raises(RuntimeError, match="differentiate twice.*once_differentiable"):
        first[0].sum().backward()


@calls
def test_hooks_of_saved_tensors(call: str) -> None:
    """What is kept for the backward pass is kept by whoever packs it, on its way elsewhere."""
    function, arguments = CALLS[call][0], inputs(call)
    packed: list[Tensor] = []

    def pack(x: Tensor) -> int:
        packed.append(x.detach().clone())
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda n: packed[n]):
        actual = gradients(function, arguments)
    assert len(packed) >= 1
    same_bits(actual, gradients(function, arguments))


@calls
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(call: str, reentrant: bool) -> None:
    function, arguments = CALLS[call][0], inputs(call)
    results = outputs(lambda *x: checkpoint(function, *x, use_reentrant=reentrant), arguments)
    torch.autograd.backward(results, cotangents(results))  # the reentrant one takes no autograd.grad
    again = tuple(x.grad for x in arguments if x.grad is not None)
    same_bits(again, gradients(function, arguments))


@calls
def test_gradients_of_some_inputs(call: str) -> None:
    function, arguments = CALLS[call][0], inputs(call)
    expected = gradients(function, arguments)
    for n, leaf in enumerate(arguments):
        alone = [x if x is leaf else x.detach() for x in arguments]
        results = outputs(function, alone)
        pairs = [(x, dx) for x, dx in zip(results, cotangents(results), strict=True) if x.requires_grad]
        (actual,) = torch.autograd.grad([x for x, _ in pairs], leaf, [dx for _, dx in pairs])
        assert torch.equal(actual, expected[n]), n


@calls
def test_transforms_are_refused(call: str) -> None:
    arguments = [x.detach() for x in inputs(call)]
    function = CALLS[call][0]
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: outputs(function, [x, *arguments[1:]])[0].sum())(arguments[0])


@calls
def test_a_tensor_left_over_from_a_transform(call: str) -> None:
    function, arguments = CALLS[call][0], inputs(call)
    left: list[Tensor] = []

    def leave(x: Tensor) -> Tensor:
        left.append(x)
        return x.sum()

    torch.func.grad(leave)(arguments[0].detach())
    expected = outputs(function, arguments)
    with torch.no_grad():
        same_bits(outputs(function, [left[0], *arguments[1:]]), expected)
    same_bits(outputs(function, [left[0], *arguments[1:]]), expected)
