# SPDX-License-Identifier: Apache-2.0
"""torch.compile, whole graph and dynamic shapes, through the public functions: the same numbers, compiled once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from xlstm_hip import mlstm_interface, mlstm_step_interface

B, NH, DQK, DHV = 2, 3, 8, 6
LENGTHS = (17, 40, 75)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sequence(length: int, grad: bool = False, states: bool = False) -> dict[str, Tensor]:
    inputs = {
        "q": torch.randn(B, NH, length, DQK),
        "k": torch.randn(B, NH, length, DQK),
        "v": torch.randn(B, NH, length, DHV),
        "i": torch.randn(B, NH, length),
        "f": torch.randn(B, NH, length) + 2,
    }
    if states:
        inputs |= {"c_initial": torch.randn(B, NH, DQK, DHV), "n_initial": torch.randn(B, NH, DQK)}
        inputs["m_initial"] = torch.randn(B, NH, 1)
    return {name: x.requires_grad_(grad) for name, x in inputs.items()}


def step(grad: bool = False) -> dict[str, Tensor]:
    states = {"c": torch.randn(B, NH, DQK, DHV), "n": torch.randn(B, NH, DQK), "m": torch.randn(B, NH, 1)}
    token = {name: x[:, :, 0] for name, x in sequence(1).items() if name in "qkv"}
    gates = {"i": torch.randn(B, NH, 1), "f": torch.randn(B, NH, 1)}
    return {name: x.detach().requires_grad_(grad) for name, x in (token | gates | states).items()}


def compiled(
    function: Callable[..., Any], backend: str = "aot_eager"
) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter), counter


def flat(out: Any) -> tuple[Tensor, ...]:
    return (out,) if isinstance(out, Tensor) else (out[0], *out[1])


def same(
    function: Callable[..., Any], twin: Callable[..., Any], inputs: dict[str, Tensor], rounded: tuple[str, ...] = ()
) -> None:
    """Outputs and, where the inputs need them, gradients of function and its compiled twin: to the last bit, but for
    the gradients named."""
    expected, actual = flat(function(**inputs)), flat(twin(**inputs))
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))
    leaves = {name: x for name, x in inputs.items() if x.requires_grad}
    if leaves:
        sent = [torch.randn_like(x) for x in expected]
        pairs = (torch.autograd.grad(x, list(leaves.values()), sent) for x in (actual, expected))
        for name, x, y in zip(leaves, *pairs, strict=True):
            if name in rounded:
                assert (x - y).norm() <= 1e-5 * y.norm(), name
            else:
                assert torch.equal(x, y), name


@pytest.mark.parametrize("kernel", ["chunkwise--fused", "chunkwise--fused_siging", "fused"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("states", [False, True], ids=["h only", "states"])
def test_sequence(kernel: str, training: bool, states: bool) -> None:
    def function(**inputs: Tensor) -> Any:
        return mlstm_interface(**inputs, kernel=kernel, return_last_states=states, chunk_size=16)

    # The sequence kernel has its last states at hand, and here they get no cotangent. In eager mode that is None;
    # torch.compile makes zeros of it. Given a cotangent, the backward pass needs the state before the last token, and
    # ends the chunks of dq there: dq, and df which sums q.dq, are then rounded elsewhere. The rest is the same.
    rounded = ("q", "f") if kernel == "fused" and not states else ()
    twin, counter = compiled(function)
    same(function, twin, sequence(LENGTHS[0], training, states), rounded)
    compilations = counter.frame_count
    for length in LENGTHS[1:]:
        same(function, twin, sequence(length, training, states), rounded)
    assert counter.frame_count == compilations, "another length was compiled for again"


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kernel", ["fused", "fused_siging"])
def test_step(kernel: str, training: bool) -> None:
    def function(**inputs: Tensor) -> Any:
        return mlstm_step_interface(**inputs, kernel=kernel)

    twin, counter = compiled(function)
    same(function, twin, step(training))
    compilations = counter.frame_count
    for _ in range(2):
        same(function, twin, step(training))
    assert counter.frame_count == compilations


def test_step_in_place() -> None:
    def function(**inputs: Tensor) -> Any:
        return mlstm_step_interface(**inputs, in_place=True)

    twin, _ = compiled(function)
    for _ in range(2):
        compiled_inputs = step()
        eager_inputs = {name: x.clone() for name, x in compiled_inputs.items()}
        h, states = twin(**compiled_inputs)
        expected, _ = function(**eager_inputs)
        assert torch.equal(h, expected)
        assert all(
            torch.equal(compiled_inputs[x], eager_inputs[x]) and torch.equal(compiled_inputs[x], y)
            for x, y in zip("cnm", states, strict=True)
        )


def test_layout() -> None:
    def function(**inputs: Tensor) -> Any:
        return mlstm_interface(**inputs, layout="bshd", return_last_states=True)

    twin, _ = compiled(function)
    for length in LENGTHS:
        inputs = {name: x.transpose(1, 2).contiguous() for name, x in sequence(length).items()}
        same(function, twin, inputs)


def test_inside_a_layer_with_inductor() -> None:
    """What stands around the call is fused with nothing lost: projections in, a gated output out."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w).unflatten(-1, (NH, 3 * DQK)).transpose(1, 2).chunk(3, dim=-1)
        gates = x[..., :NH].transpose(1, 2)
        return torch.tanh(mlstm_interface(q, k, v, gates, gates + 1)).sum(1)

    twin = torch.compile(layer, fullgraph=True, dynamic=True)
    for length in (12, 33):
        x, w = torch.randn(B, length, 16), torch.randn(16, NH * 3 * DQK, requires_grad=True)
        actual, expected = twin(x, w), layer(x, w)
        assert torch.allclose(actual, expected, atol=1e-5)
        (dw,), (dw_expected,) = (torch.autograd.grad(y.square().sum(), w) for y in (actual, expected))
        assert torch.allclose(dw, dw_expected, rtol=1e-3, atol=1e-4)


def test_packed_sequences_in_one_graph() -> None:
    """Values of cu_seqlens are unknown while tracing; the op looks at them when it runs."""

    @torch.compile(fullgraph=True)
    def call(q: torch.Tensor, v: torch.Tensor, g: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return mlstm_interface(q, q, v, g, g + 3, cu_seqlens=ends)

    q, v, g = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9)
    ends = torch.tensor([0, 5, 9])
    torch.testing.assert_close(call(q, v, g, ends), mlstm_interface(q, q, v, g, g + 3, cu_seqlens=ends))
    with pytest.raises(RuntimeError, match="cu_seqlens: expected to end at S = 9, got 8"):
        call(q, v, g, torch.tensor([0, 5, 8]))


def test_the_first_call_may_be_compiled() -> None:
    """Of every kernel, in a process that has called none: nothing is looked up or loaded that a graph cannot hold."""
    code = """
        import torch
        from xlstm_hip import mlstm_interface, mlstm_step_interface
        from xlstm_hip.mlstm.builtin_kernels import ALIASES, BUILTIN
        from xlstm_hip.mlstm.registry import kernel_info

        def sequence(x, name):
            return mlstm_interface(x, x, x, x[..., 0], x[..., 1], kernel=name)

        def step(x, name):
            token, gate, c = x[:, :, 0], x[:, :, 0, :1], torch.zeros(1, 2, 8, 8)
            return mlstm_step_interface(token, token, token, gate, gate, c, c[..., 0], c[..., 0, :1], kernel=name)[0]

        x = torch.randn(1, 2, 3, 8)
        own_graphs = {"chunkwise--queued_compiled_steps", "chunkwise--ray_compiled_steps"}
        for kind, name in (*BUILTIN, *ALIASES):
            if not {"cpu", "*"} & set(kernel_info(name, kind).devices) or name in own_graphs:
                continue
            call = step if kind == "step" else sequence
            got = torch.compile(call, fullgraph=True, backend="eager")(x, name)
            if name != "chunkwise--native_compiled_autograd":  # which would now compile for itself
                torch.testing.assert_close(got, call(x, name))
            print(kind, name)
            torch._dynamo.reset()
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(done.stdout.splitlines()) > 20


@pytest.mark.parametrize("kernel", ["chunkwise--queued_compiled_steps", "chunkwise--ray_compiled_steps"])
def test_a_kernel_that_cannot_join_a_graph_says_so(kernel: str) -> None:
    twin, _ = compiled(lambda **inputs: mlstm_interface(**inputs, kernel=kernel))
    with pytest.raises(Exception, match="cannot be part of a torch.compile graph: call it outside"):
        twin(**sequence(5))
