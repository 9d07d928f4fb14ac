# SPDX-License-Identifier: Apache-2.0
"""The plain-torch kernels against the float64 recurrence: outputs, last states, and every gradient."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import xlstm_hip.reference as kernels

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.reference import doubled, max_error, outputs_and_gradients, relative_error, truth  # noqa: E402

STATES = ("c_initial", "n_initial", "m_initial")
EXP = [name for name in kernels.__all__ if "step" not in name and "siging" not in name]
SIGMOID = [name for name in kernels.__all__ if "step" not in name and "siging" in name]
SEQUENCE_LEVEL = EXP + SIGMOID
CUSTOM = [name for name in SEQUENCE_LEVEL if name.endswith("custbw")]
CHUNKED = [name for name in SEQUENCE_LEVEL if "recurrent" not in name]
STEPS = [name for name in kernels.__all__ if "step" in name]

# (B, NH, S, DHQK, DHHV), chunk size
SHAPES = {
    "one token": ((2, 2, 1, 3, 4), 64),
    "one short chunk": ((1, 2, 13, 5, 3), 64),
    "whole chunks": ((1, 2, 48, 8, 8), 16),
    "short tail": ((2, 3, 37, 6, 5), 16),
    "chunks of one": ((1, 1, 5, 4, 4), 1),
    "odd sizes": ((1, 2, 75, 24, 7), 33),
}
SIZES, CHUNK = SHAPES["short tail"]


def gate_of(name: str) -> str:
    return "sigmoid" if "siging" in name else "exp"


def make_inputs(
    batch: int,
    heads: int,
    length: int,
    dqk: int,
    dhv: int,
    states: bool = True,
    dtype: torch.dtype = torch.float64,
    i: Tensor | None = None,
    f: Tensor | None = None,
    seed: int = 0,
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Inputs by name and cotangents of h, c, n, m."""
    rng = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng).to(dtype)

    wide = torch.promote_types(dtype, torch.float32)
    inputs: dict[str, Tensor] = {
        "q": random(batch, heads, length, dqk),
        "k": random(batch, heads, length, dqk),
        "v": random(batch, heads, length, dhv),
        "i": 2 * random(batch, heads, length, dtype=wide) if i is None else i.to(wide),
        "f": 2 * random(batch, heads, length, dtype=wide) + 2 if f is None else f.to(wide),
    }
    c, n, m = ((batch, heads, dqk, dhv), (batch, heads, dqk), (batch, heads, 1))
    if states:
        inputs |= {name: random(*shape, dtype=wide) for name, shape in zip(STATES, (c, n, m), strict=True)}
        inputs["m_initial"] = inputs["m_initial"] + 1
    cotangents = [random(batch, heads, length, dhv), *(random(*shape, dtype=wide) for shape in (c, n, m))]
    return inputs, tuple(cotangents)


def errors_of(
    name: str,
    inputs: dict[str, Tensor],
    cotangents: tuple[Tensor, ...],
    eps: float,
    chunk: int,
    **options: Any,
) -> dict[str, float]:
    """The error of each output and each gradient against the truth."""
    kernel = getattr(kernels, name)
    options |= {"eps": eps}
    expected, expected_gradients = outputs_and_gradients(
        truth, doubled(inputs), cotangents, gate=gate_of(name), **options
    )
    outputs, gradients = outputs_and_gradients(
        kernel, inputs, cotangents, chunk_size=chunk, return_last_states=True, **options
    )
    errors = {x: relative_error(outputs[x], expected[x]) for x in expected}
    return errors | {f"d{x}": relative_error(gradients[x], expected_gradients[x]) for x in expected_gradients}


def assert_small(errors: dict[str, float], limit: float) -> None:
    large = {name: error for name, error in errors.items() if not error <= limit}
    assert not large, f"above {limit}: {large}"


def test_truth_on_one_token_by_hand() -> None:
    inputs, _ = make_inputs(1, 1, 1, 3, 2, states=False)
    q, k, v, i, f = (inputs[x] for x in "qkvif")
    h, (c, n, m) = truth(q, k, v, i, f, eps=0.5)
    stabiliser = max(float(torch.nn.functional.logsigmoid(f)), float(i))
    gain = torch.exp(i - stabiliser)[..., None]
    product = (q * k).sum() * 3**-0.5 * gain
    size = max(float(product.abs()), math.exp(-stabiliser))
    assert torch.allclose(h, product * v / (size + 0.5)) and float(m) == stabiliser
    assert torch.allclose(c, gain * k.mT @ v) and torch.allclose(n, (gain * k)[:, :, 0])
    h, (_, _, m) = truth(q, k, v, i, f, gate="sigmoid", normalize=False)
    product = (q * k).sum() * 3**-0.5 * torch.sigmoid(i)[..., None]
    assert torch.allclose(h, product * v) and float(m) == 0


def test_truth_starts_afresh_in_each_packed_sequence() -> None:
    inputs, _ = make_inputs(1, 2, 9, 3, 4, states=False)
    q, k, v, i, f = (inputs[x] for x in "qkvif")
    packed, (c, n, m) = truth(q, k, v, i, f, cu_seqlens=[0, 4, 9])
    for x, part in enumerate((slice(0, 4), slice(4, 9))):
        h, last = truth(*(y[:, :, part] for y in (q, k, v, i, f)))
        assert torch.equal(packed[:, :, part], h)
        assert all(torch.equal(a[x : x + 1], b) for a, b in zip((c, n, m), last, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("states, eps", [(False, 1e-6), (True, 0.3)], ids=["no states", "states"])
@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_outputs_states_and_gradients(name: str, states: bool, eps: float, shape: str) -> None:
    sizes, chunk = SHAPES[shape]
    inputs, cotangents = make_inputs(*sizes, states=states)
    assert_small(errors_of(name, inputs, cotangents, eps, chunk), 1e-11)


@pytest.mark.parametrize("name", SIGMOID)
def test_sigmoid_without_normaliser(name: str) -> None:
    inputs, cotangents = make_inputs(*SIZES)
    assert_small(errors_of(name, inputs, cotangents, 1e-6, CHUNK, normalize=False), 1e-12)


@pytest.mark.parametrize("name", [n for n in SIGMOID if "parallel" in n])
def test_both_sums_of_the_forget_gate(name: str) -> None:
    inputs, _ = make_inputs(*SIZES)
    kernel = getattr(kernels, name)
    assert max_error(kernel(**inputs, stable_fgate=True), kernel(**inputs, stable_fgate=False)) < 1e-13


@pytest.mark.parametrize("name", CHUNKED)
def test_constant_normaliser_gives_the_peers_gradient(name: str) -> None:
    inputs, cotangents = make_inputs(*SIZES)
    assert_small(errors_of(name, inputs, cotangents, 1e-6, CHUNK, normalizer_grad=False), 1e-11)
    kernel = partial(getattr(kernels, name), return_last_states=True)
    exact = outputs_and_gradients(kernel, inputs, cotangents)[1]
    peers = outputs_and_gradients(kernel, inputs, cotangents, normalizer_grad=False)[1]
    assert relative_error(peers["q"], exact["q"]) > 0.01
    assert not peers["n_initial"].any() and not peers["m_initial"].any()


@pytest.mark.parametrize("output", [0, 1, 2, 3], ids=["h", "c", "n", "m"])
@pytest.mark.parametrize("name", EXP)
def test_gradient_of_each_output_alone(name: str, output: int) -> None:
    inputs, cotangents = make_inputs(*SIZES)
    alone = tuple(x if index == output else torch.zeros_like(x) for index, x in enumerate(cotangents))
    assert_small(errors_of(name, inputs, alone, 0.3, CHUNK), 1e-11)


@pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])
@pytest.mark.parametrize("name", CUSTOM)
def test_gradcheck(name: str, states: bool) -> None:
    inputs, _ = make_inputs(1, 1, 5, 2, 3, states=states, seed=3)
    leaves = {x: y.requires_grad_() for x, y in inputs.items()}

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(leaves, arguments, strict=True))
        h, (c, n, m) = getattr(kernels, name)(**named, return_last_states=True, eps=0.2, chunk_size=2)
        return (h, c, n) if gate_of(name) == "sigmoid" else (h, c, n, m)  # the sigmoid gate's m is constant

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))


@pytest.mark.parametrize("dtype, limit", [(torch.float64, 1e-9), (torch.float32, 1e-3)], ids=str)
@pytest.mark.parametrize("gates", ["anything", "forget all", "forget nothing", "shut", "wide open"])
@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_extreme_gates(name: str, gates: str, dtype: torch.dtype, limit: float) -> None:
    shape = SIZES[:3]
    rng = torch.Generator().manual_seed(1)
    anything = 120 * torch.rand(2, *shape, generator=rng) - 60
    usual = torch.randn(shape, generator=rng)
    i, f = {
        "anything": (anything[0], anything[1]),
        "forget all": (usual, torch.full(shape, -60.0)),
        "forget nothing": (usual, torch.full(shape, 60.0)),
        "shut": (usual - 60, usual),
        "wide open": (usual + 60, usual),
    }[gates]
    inputs, cotangents = make_inputs(*SIZES, dtype=dtype, i=i, f=f)
    assert_small(errors_of(name, inputs, cotangents, 1e-6, CHUNK), limit)


@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_forgetting_much_then_nothing_keeps_its_digits(name: str) -> None:
    """Prefix sums reach -60 * 150 here; their differences in float32 would be off by 1e-3."""
    f = torch.where(torch.arange(300) % 4 < 2, -60.0, 0.5).expand(1, 2, 300)
    inputs, cotangents = make_inputs(1, 2, 300, 16, 8, states=False, dtype=torch.float32, f=f)
    assert_small(errors_of(name, inputs, cotangents, 1e-6, 64), 2e-6)


@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_closed_gates_of_minus_infinity(name: str) -> None:
    inputs, cotangents = make_inputs(1, 2, 20, 4, 3)
    inputs["i"][..., 3:7] = -torch.inf
    inputs["f"][..., 10] = -torch.inf
    outputs, gradients = outputs_and_gradients(
        getattr(kernels, name), inputs, cotangents, return_last_states=True, chunk_size=8
    )
    assert all(torch.isfinite(x).all() for x in (outputs | gradients).values())
    expected, _ = truth(**doubled(inputs), gate=gate_of(name))
    assert max_error(outputs["h"], expected) < 1e-11


@pytest.mark.parametrize("gate_dtype", ["same", "float32"])
@pytest.mark.parametrize("dtype, limit", [(torch.bfloat16, 0.04), (torch.float16, 0.005)], ids=str)
@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_half_precision(name: str, dtype: torch.dtype, limit: float, gate_dtype: str) -> None:
    inputs, cotangents = make_inputs(1, 2, 70, 16, 24, dtype=dtype)
    if gate_dtype == "same":
        inputs |= {x: inputs[x].to(dtype) for x in ("i", "f", *STATES)}
    assert_small(errors_of(name, inputs, cotangents, 1e-6, 32), limit)
    arguments = {x: y.requires_grad_() for x, y in inputs.items()}
    h, states = getattr(kernels, name)(**arguments, return_last_states=True)
    assert h.dtype == dtype and all(x.dtype == torch.float32 for x in states)
    h.float().sum().backward()
    assert all(x.grad.dtype == x.dtype for x in arguments.values())


@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_autocast_casts_inputs_and_nothing_else(name: str) -> None:
    inputs, _ = make_inputs(1, 2, 20, 8, 8, dtype=torch.float32)
    kernel = getattr(kernels, name)
    cast = {x: y if x in STATES else y.bfloat16() for x, y in inputs.items()}
    expected, expected_states = kernel(**cast, return_last_states=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, states = kernel(**inputs, return_last_states=True)
        full = kernel(**inputs, autocast_kernel_dtype=torch.float32)
    assert h.dtype == torch.bfloat16 and torch.equal(h, expected)
    assert all(torch.equal(x, y) for x, y in zip(states, expected_states, strict=True))
    assert torch.equal(full, kernel(**inputs))
    assert kernel(**inputs).dtype == torch.float32


@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_strided_inputs(name: str) -> None:
    inputs, _ = make_inputs(2, 3, 21, 6, 5, states=False)
    tensors = [inputs[x] for x in "qkvif"]
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    kernel = getattr(kernels, name)
    assert max_error(kernel(*strided, chunk_size=8), kernel(*tensors, chunk_size=8)) < 1e-13


@pytest.mark.parametrize("name", [n for n in SEQUENCE_LEVEL if "parallel" not in n])
def test_two_halves_through_the_states(name: str) -> None:
    inputs, _ = make_inputs(1, 2, 30, 6, 5, states=False)
    tensors = [inputs[x].requires_grad_() for x in "qkvif"]
    kernel = getattr(kernels, name)
    full = kernel(*tensors, chunk_size=8)
    first, states = kernel(*(x[:, :, :13] for x in tensors), chunk_size=8, return_last_states=True)
    second = kernel(*(x[:, :, 13:] for x in tensors), *states, chunk_size=8)
    halves = torch.cat([first, second], dim=2)
    assert max_error(halves, full) < 1e-12
    expected, found = (torch.autograd.grad(h.square().sum(), tensors) for h in (full, halves))
    assert all(max_error(x, y) < 1e-11 for x, y in zip(found, expected, strict=True))


def step_inputs(states: bool = True, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    inputs, _ = make_inputs(2, 3, 1, 6, 5, dtype=dtype)
    token = {x: inputs[x][:, :, 0] for x in "qkv"} | {x: inputs[x] for x in "if"}
    return token | {x: inputs[f"{x}_initial"] for x in "cnm"}


def true_step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c: Tensor, n: Tensor, m: Tensor, **options: Any):
    h, states = truth(q[:, :, None], k[:, :, None], v[:, :, None], i, f, c, n, m, **options)
    return h[:, :, 0], states


@pytest.mark.parametrize(
    "name, options", [(STEPS[0], {}), (STEPS[1], {"normalize": True}), (STEPS[1], {"normalize": False})]
)
def test_step(name: str, options: dict[str, bool]) -> None:
    kernel, gate = getattr(kernels, name), gate_of(name)
    inputs = step_inputs()
    _, cotangents = make_inputs(2, 3, 1, 6, 5, seed=1)
    cotangents = (cotangents[0][:, :, 0], *cotangents[1:])
    expected, expected_gradients = outputs_and_gradients(true_step, inputs, cotangents, eps=0.3, gate=gate, **options)
    outputs, gradients = outputs_and_gradients(kernel, inputs, cotangents, eps=0.3, **options)
    assert_small({x: relative_error(outputs[x], expected[x]) for x in expected}, 1e-12)
    assert_small({x: relative_error(gradients[x], expected_gradients[x]) for x in gradients}, 1e-12)

    before = {x: y.clone() for x, y in inputs.items()}
    kernel(**inputs, **options)
    assert all(torch.equal(inputs[x], before[x]) for x in inputs)
    h, states = kernel(**inputs, eps=0.3, in_place=True, **options)
    assert all(inputs[x] is state for x, state in zip("cnm", states, strict=True))
    assert torch.equal(h, outputs["h"]) and all(torch.equal(inputs[x], outputs[x]) for x in "cnm")


@pytest.mark.parametrize("name", STEPS)
def test_step_in_half_precision_and_in_place_rules(name: str) -> None:
    kernel = getattr(kernels, name)
    inputs = step_inputs(dtype=torch.bfloat16)
    h, states = kernel(**inputs)
    assert h.dtype == torch.bfloat16 and all(x.dtype == torch.float32 for x in states)
    assert relative_error(h, true_step(**inputs, gate=gate_of(name))[0]) < 0.04
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kernel(**inputs)[0], h)
    inputs["q"].requires_grad_()
    with pytest.raises(ValueError, match="in_place"):
        kernel(**inputs, in_place=True)
    with torch.no_grad():
        kernel(**inputs, in_place=True)


@pytest.mark.parametrize("name", SEQUENCE_LEVEL)
def test_wrong_calls_name_the_argument(name: str) -> None:
    inputs, _ = make_inputs(1, 2, 5, 4, 3)
    kernel = getattr(kernels, name)
    with pytest.raises(TypeError, match="chunks"):
        kernel(**inputs, chunks=3)
    with pytest.raises(ValueError, match="m_initial"):
        kernel(**{x: y for x, y in inputs.items() if x != "m_initial"})
    with pytest.raises(TypeError, match="q: expected a torch.Tensor"):
        kernel(**(inputs | {"q": [1.0]}))
    with torch.autocast("cpu"), pytest.raises(TypeError, match="k: expected a torch.Tensor"):
        kernel(**(inputs | {"k": [1.0]}))
    with pytest.raises(ValueError, match="eps"):
        kernel(**inputs, eps=-1.0)
    with pytest.raises(ValueError, match="chunk_size"):
        kernel(**inputs, chunk_size=0)
    with pytest.raises(ValueError, match="autocast_kernel_dtype"):
        kernel(**inputs, autocast_kernel_dtype=torch.int32)


@pytest.mark.parametrize(
    "name",
    [
        "mlstm_chunkwise__native_autograd",
        "mlstm_chunkwise__native_custbw",
        "mlstm_siging_parallel__native_custbw",
    ],
)
def test_compiles_into_one_graph(name: str) -> None:
    kernel = getattr(kernels, name)
    inputs, cotangents = make_inputs(1, 2, 21, 4, 3)
    compiled = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    options = dict(chunk_size=8, return_last_states=True)
    expected, found = (outputs_and_gradients(x, inputs, cotangents, **options) for x in (kernel, compiled))
    for want, have in zip(expected, found, strict=True):
        assert_small({x: max_error(have[x], want[x]) for x in want}, 1e-11)


PEER_NAMES = [
    "chunkwise--native_autograd",
    "chunkwise--native_custbw",
    "parallel--native_autograd",
    "parallel--native_stablef_autograd",
    "parallel--native_siging_autograd",
]


@pytest.mark.parametrize("peer_name", PEER_NAMES)
def test_agrees_with_mlstm_kernels(peer_name: str) -> None:
    peers = pytest.importorskip("mlstm_kernels.torch")
    form, kind = peer_name.split("--")
    function = getattr(kernels, f"mlstm_{'siging_' if 'siging' in kind else ''}{form}__{kind.replace('siging_', '')}")
    chunkwise = form == "chunkwise"
    inputs, _ = make_inputs(1, 2, 128, 16, 32, states=chunkwise, dtype=torch.float32)
    expected = peers.get_mlstm_kernel(peer_name)(**inputs, chunk_size=64, return_last_states=chunkwise)
    found = function(**inputs, chunk_size=64, return_last_states=chunkwise)
    if chunkwise:
        for x, y in zip(found[1], expected[1], strict=True):
            assert max_error(x, y) < 1e-5
        found, expected = found[0], expected[0]
    assert max_error(found, expected) < 1e-4


def test_step_agrees_with_mlstm_kernels() -> None:
    peers = pytest.importorskip("mlstm_kernels.torch")
    inputs = step_inputs(dtype=torch.float32)
    expected, expected_states = peers.get_mlstm_step_kernel("native")(**inputs)
    found, states = kernels.mlstm_recurrent_step__native(**inputs)
    for x, y in zip((found, *states), (expected, *expected_states), strict=True):
        assert max_error(x, y) < 1e-5
