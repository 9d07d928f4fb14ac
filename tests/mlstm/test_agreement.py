# SPDX-License-Identifier: Apache-2.0
"""Agreement with the packages whose functions these are: mlstm_kernels, and Hugging Face's built-in xLSTM."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip import (
    get_mlstm_kernel,
    get_mlstm_sequence_kernel,
    get_mlstm_step_kernel,
    kernel_info,
    mlstm_interface,
    mlstm_step_interface,
)

B, NH, S, DQK, DHV, CHUNK = 2, 3, 96, 16, 24, 32
NAMES = ("q", "k", "v", "i", "f", "c_initial", "n_initial", "m_initial")
CHUNKWISE = ("chunkwise--native_autograd", "chunkwise--native_custbw")
PARALLEL = (
    "parallel--native_autograd",
    "parallel--native_custbw",
    "parallel--native_stablef_autograd",
    "parallel--native_stablef_custbw",
    "parallel--native_siging_autograd",
    "parallel--native_siging_custbw",
)


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    """The real package, not the one that xlstm_hip.compat makes."""
    loaded = sys.modules.get("mlstm_kernels")
    if getattr(loaded, "__xlstm_hip__", False):
        pytest.skip("xlstm_hip.compat stands in for mlstm_kernels in this process")
    pytest.importorskip("mlstm_kernels")
    import mlstm_kernels.torch as peers

    return peers


def make_inputs(states: bool, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng).to(dtype)

    tensors = [random(B, NH, S, DQK), random(B, NH, S, DQK), random(B, NH, S, DHV)]
    tensors += [random(B, NH, S), random(B, NH, S) + 2]
    if states:
        tensors += [random(B, NH, DQK, DHV), random(B, NH, DQK), random(B, NH, 1)]
    return dict(zip(NAMES, tensors, strict=False))


def gradients(function: Any, inputs: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    rng = torch.Generator().manual_seed(8)
    out = function(**leaves, **options)
    outputs = (out,) if isinstance(out, Tensor) else (out[0], *out[1])
    sent = [torch.randn(x.shape, dtype=torch.float64, generator=rng).to(x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, list(leaves.values()), sent, allow_unused=True)
    return {n: torch.zeros_like(inputs[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}


def close(actual: Tensor, expected: Tensor, label: str, tolerance: float) -> None:
    actual, expected = actual.double(), expected.double()
    assert actual.shape == expected.shape, label
    error = float((actual - expected).norm() / expected.norm().clamp(min=1e-30))
    assert error <= tolerance, f"{label}: {error:.3g} apart"


@pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])
@pytest.mark.parametrize("name", CHUNKWISE)
@pytest.mark.parametrize("kernel", ["chunkwise--fused", "fused", "the same name"])
def test_chunkwise_forward(peers: ModuleType, name: str, kernel: str, states: bool) -> None:
    inputs = make_inputs(states)
    options = {"return_last_states": True, "chunk_size": CHUNK, "eps": 1e-6}
    peer_h, their_states = peers.get_mlstm_kernel(name)(**inputs, **options)
    h, last = mlstm_interface(**inputs, **options, kernel=name if kernel == "the same name" else kernel)
    close(h, peer_h, "h", 1e-6)
    for x, y, state_name in zip(last, their_states, "cnm", strict=True):
        close(x, y, state_name, 1e-6)


@pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])
def test_exact_gradient(peers: ModuleType, states: bool) -> None:
    inputs = make_inputs(states)
    options = {"return_last_states": True, "chunk_size": CHUNK}
    peer_gradients = gradients(peers.get_mlstm_kernel("chunkwise--native_autograd"), inputs, **options)
    actual = gradients(get_mlstm_kernel("chunkwise--fused"), inputs, **options)
    for name in actual:
        close(actual[name], peer_gradients[name], f"d{name}", 1e-5)


@pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])
def test_gradient_without_normaliser(peers: ModuleType, states: bool) -> None:
    """Their custom backward holds the normaliser constant; ours does so when asked.

    Only h is sent back: what their df gets from the last c is not the derivative.
    """
    inputs = make_inputs(states)
    options = {"chunk_size": CHUNK}
    peer_gradients = gradients(peers.get_mlstm_kernel("chunkwise--native_custbw"), inputs, **options)
    for kernel in ("chunkwise--fused", "chunkwise--native_custbw"):
        actual = gradients(get_mlstm_kernel(kernel), inputs, **options, normalizer_grad=False)
        for name in ("q", "k", "v", "i", "f", *(("c_initial",) if states else ())):
            close(actual[name], peer_gradients[name], f"d{name} of {kernel}", 1e-5)
    exact = gradients(get_mlstm_kernel("chunkwise--fused"), inputs, **options)
    assert (exact["q"] - peer_gradients["q"]).norm() > 0.01 * peer_gradients["q"].norm()  # the two gradients do differ


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_forward(peers: ModuleType, name: str) -> None:
    inputs = make_inputs(states=False)
    peer_h = peers.get_mlstm_kernel(name)(**inputs)
    close(mlstm_interface(**inputs, kernel=name), peer_h, "h", 1e-6)
    fused = "chunkwise--fused_siging" if "siging" in name else "chunkwise--fused"
    close(mlstm_interface(**inputs, kernel=fused), peer_h, "h", 1e-6)


def test_sequence_and_step(peers: ModuleType) -> None:
    inputs = make_inputs(states=True, dtype=torch.float32)
    peer_h, their_states = peers.get_mlstm_sequence_kernel("native_sequence__native")(**inputs, return_last_states=True)
    for kernel in ("fused", "native_sequence__native"):
        h, last = get_mlstm_sequence_kernel(kernel)(**inputs, return_last_states=True)
        close(h, peer_h, "h", 1e-4)
        for x, y, state_name in zip(last, their_states, "cnm", strict=True):
            close(x, y, state_name, 1e-4)
    token = {n: inputs[n][:, :, 0] for n in "qkv"} | {n: inputs[n][:, :, :1] for n in "if"}
    token |= {n: inputs[f"{n}_initial"] for n in "cnm"}
    peer_h, their_states = peers.get_mlstm_step_kernel("native")(**token)
    for kernel in ("fused", "native"):
        h, last = get_mlstm_step_kernel(kernel)(**token)
        close(h, peer_h, "h", 1e-5)
        for x, y, state_name in zip(last, their_states, "cnm", strict=True):
            close(x, y, state_name, 1e-5)


def test_their_names_are_ours(peers: ModuleType) -> None:
    for name in peers.get_available_mlstm_kernels():
        kernel_info(name, ("chunkwise", "parallel"))
    for name in peers.get_available_mlstm_sequence_kernels():
        kernel_info(name, "sequence")
    for name in peers.get_available_mlstm_step_kernels():
        kernel_info(name, "step")


# ---- Hugging Face: functions of the model's own module, used where the xlstm package is not installed


@pytest.fixture(scope="module")
def hugging_face() -> ModuleType:
    module = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    if not hasattr(module, "mlstm_chunkwise_native_autograd"):
        pytest.skip("the xlstm package is installed, so transformers does not define its own functions")
    return module


@pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])
def test_hugging_face_chunkwise(hugging_face: ModuleType, states: bool) -> None:
    inputs = make_inputs(states, torch.float32)
    peer_h, their_states = _hugging_face_chunkwise(hugging_face, inputs)
    h, last = mlstm_interface(**inputs, return_last_states=True, chunk_size=CHUNK)
    close(h, peer_h, "h", 1e-4)
    for x, y, state_name in zip(last, their_states, "cnm", strict=True):
        close(x.flatten(), y.flatten(), state_name, 1e-4)


def _hugging_face_chunkwise(module: ModuleType, inputs: dict[str, Tensor]) -> Any:
    names = {"query": "q", "key": "k", "value": "v", "igate": "i", "fgate": "f"}
    names |= {"c_initial": "c_initial", "n_initial": "n_initial", "m_initial": "m_initial"}
    arguments = {hf_name: inputs[name] for hf_name, name in names.items() if name in inputs}
    return module.mlstm_chunkwise_native_autograd(**arguments, return_last_states=True, chunk_size=CHUNK)


def test_hugging_face_recurrent(hugging_face: ModuleType) -> None:
    inputs = make_inputs(states=True, dtype=torch.float32)
    names = {"query": "q", "key": "k", "value": "v", "igate": "i", "fgate": "f"}
    states = {f"{x}_initial": inputs[f"{x}_initial"] for x in "cnm"}
    peer_h, their_states = hugging_face.mlstm_recurrent_sequence_native(
        **{a: inputs[b] for a, b in names.items()}, **states, return_last_states=True
    )
    h, last = mlstm_interface(**inputs, kernel="fused", return_last_states=True)
    close(h, peer_h, "h", 1e-4)
    for x, y, state_name in zip(last, their_states, "cnm", strict=True):
        close(x.flatten(), y.flatten(), state_name, 1e-4)
    token = {a: inputs[b][:, :, 0] for a, b in names.items() if b in "qkv"}
    token |= {a: inputs[b][:, :, :1] for a, b in names.items() if b in "if"}
    peer_h, their_states = hugging_face.mlstm_recurrent_step_native(
        **token, cstate=states["c_initial"], nstate=states["n_initial"], mstate=states["m_initial"]
    )
    step_inputs = {b: token[a] for a, b in names.items()}
    h, last = mlstm_step_interface(**step_inputs, **{x: states[f"{x}_initial"] for x in "cnm"})
    close(h, peer_h, "h", 1e-5)
    for x, y, state_name in zip(last, their_states, "cnm", strict=True):
        close(x.flatten(), y.flatten(), state_name, 1e-5)
