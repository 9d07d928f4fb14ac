# SPDX-License-Identifier: Apache-2.0
"""The Triton names where mlstm_kernels can run: its kernels behind our call, and on a GPU the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.reference import max_error, truth
from xlstm_hip import reference
from xlstm_hip.mlstm import builtin_kernels, registry, triton_peers

STATES = ("c_initial", "n_initial", "m_initial")
CHUNKWISE = (
    "chunkwise--triton_limit_chunk",
    "chunkwise--triton_xl_chunk",
    "chunkwise--triton_xl_chunk_siging",
)


def inputs(length: int, dqk: int = 16, dhv: int = 16, states: bool = False, **to: Any) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(4)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(**to)

    x = {"q": random(1, 2, length, dqk), "k": random(1, 2, length, dqk), "v": random(1, 2, length, dhv)}
    x |= {"i": random(1, 2, length), "f": random(1, 2, length) + 3}
    if states:
        x |= dict(zip(STATES, (random(1, 2, dqk, dhv), random(1, 2, dqk), random(1, 2, 1)), strict=True))
    return x


class StandIn:
    """As strict as the real ones: multiples of chunk_size, no m and two states from the sigmoid kernel."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, getter: str, name: str, q: torch.Tensor) -> Callable:
        def chunkwise(*, q: torch.Tensor, chunk_size: int, num_warps_intra: int | None = None, **call: Any) -> Any:
            assert q.shape[2] % chunk_size == 0
            self.calls.append({"name": name, "length": q.shape[2], "chunk_size": chunk_size, **call})
            if "siging" not in name:
                return reference.mlstm_chunkwise__native_autograd(q=q, chunk_size=chunk_size, **call)
            assert "m_initial" not in call
            if call["c_initial"] is not None:
                call["m_initial"] = torch.zeros_like(call["n_initial"][..., :1])
            out = reference.mlstm_siging_chunkwise__native_autograd(q=q, chunk_size=chunk_size, **call)
            return (out[0], out[1][:2]) if call["return_last_states"] else out

        def parallel(*, q: torch.Tensor, **call: Any) -> torch.Tensor:
            assert q.shape[2] % 64 == 0
            self.calls.append({"name": name, "length": q.shape[2], **call})
            return reference.mlstm_parallel__native_autograd(q=q, **call)

        def sequence(**call: Any) -> Any:
            self.calls.append({"name": name, **call})
            return reference.mlstm_recurrent_sequence__native_fw(**call)

        def step(*, dtype_state: torch.dtype, **call: Any) -> Any:
            self.calls.append({"name": name, **call})
            return reference.mlstm_recurrent_step__native(**call)

        return {
            "get_mlstm_kernel": parallel if name.startswith("parallel") else chunkwise,
            "get_mlstm_sequence_kernel": sequence,
            "get_mlstm_step_kernel": step,
        }[getter]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    kernels = StandIn()
    monkeypatch.setattr(triton_peers, "_peer", kernels)
    monkeypatch.setattr(builtin_kernels, "peers_usable", lambda: True)
    monkeypatch.setattr(registry, "_registered", {})
    return kernels


@pytest.mark.parametrize("name", CHUNKWISE)
@pytest.mark.parametrize("length", [1, 16, 32, 37])
@pytest.mark.parametrize("states", [False, True])
def test_chunkwise(stand_in: StandIn, name: str, length: int, states: bool) -> None:
    info = registry.kernel_info(name)
    assert (info.gradient, "cuda" in info.devices, torch.float64 in info.dtypes) == (
        "no normaliser",
        True,
        False,
    )
    x = inputs(length, states=states)
    call: dict[str, Any] = {"eps": 1e-3, "chunk_size": 16}
    if "xl" in name:
        call["num_warps_intra"] = 4
    h, last = info.function(**x, return_last_states=True, **call)
    expected_h, expected = truth(**x, eps=1e-3, gate=info.gate)
    for actual, true in zip((h, *last), (expected_h, *expected), strict=True):
        assert actual.shape == true.shape and max_error(actual, true) < 1e-5
    assert [c["length"] for c in stand_in.calls] == ([length - length % 16] if length >= 16 else [])
    assert all(c["eps"] == 1e-3 for c in stand_in.calls)
    alone = info.function(**x, **call)
    torch.testing.assert_close(alone, h)
    with pytest.raises(TypeError, match="cu_seqlens"):
        info.function(**x, cu_seqlens=torch.tensor([0, length]))


def test_sigmoid_without_normaliser(stand_in: StandIn) -> None:
    x = inputs(37, states=True)
    h = registry.get_mlstm_kernel("chunkwise--triton_xl_chunk_siging")(**x, chunk_size=16, normalize=False)
    assert max_error(h, truth(**x, gate="sigmoid", normalize=False)[0]) < 1e-5
    with pytest.raises(TypeError, match="normalize"):
        registry.get_mlstm_kernel("chunkwise--triton_xl_chunk")(**x, normalize=False)


@pytest.mark.parametrize("length", [1, 64, 100])
def test_parallel(stand_in: StandIn, length: int) -> None:
    kernel = registry.get_mlstm_kernel("parallel--triton_limit_headdim")
    assert not registry.kernel_info("parallel--triton_limit_headdim").states
    x = inputs(length)
    assert max_error(kernel(**x), truth(**x)[0]) < 1e-5
    assert [c["length"] for c in stand_in.calls] == [-(-length // 64) * 64]
    with pytest.raises(ValueError, match="takes no initial states and returns no last ones"):
        kernel(**x, return_last_states=True)
    with pytest.raises(ValueError, match="expected DHQK == DHHV, one of .*, got 16 and 32"):
        kernel(**inputs(length, dhv=32))


def test_sequence_and_step(stand_in: StandIn) -> None:
    x = inputs(5, states=True)
    expected = truth(**x)
    sequence = registry.kernel_info("native_sequence__triton")
    h, last = sequence.function(**x, return_last_states=True)
    assert max_error(h, expected[0]) < 1e-5 and max_error(last[0], expected[1][0]) < 1e-5
    step = registry.kernel_info("triton", "step")
    token = {name: x[name][:, :, 0] for name in "qkv"} | {name: x[name][:, :, :1] for name in "if"}
    states = dict(zip("cnm", (x[name] for name in STATES), strict=True))
    assert max_error(step.function(**token, **states)[0], expected[0][:, :, 0]) < 1e-5
    assert sequence.gradient == step.gradient == "none"
    for call in (lambda: sequence.function(**x), lambda: step.function(**token, **states)):
        x["q"].requires_grad_()
        token["q"].requires_grad_()
        with pytest.raises(ValueError, match="has no gradient, but an input requires one"):
            call()
        with torch.no_grad():
            call()


@pytest.mark.skipif(
    not triton_peers.peers_usable(), reason="mlstm_kernels' Triton kernels need the package, triton and a GPU"
)
@pytest.mark.parametrize("name", [*CHUNKWISE, "parallel--triton_limit_headdim", "native_sequence__triton"])
@pytest.mark.parametrize("length", [128, 200])
def test_the_real_ones(name: str, length: int) -> None:
    info = registry.kernel_info(name, ("chunkwise", "parallel", "sequence"))
    x = inputs(length, 64, 64, states=info.states, device="cuda")
    expected = truth(**x, gate=info.gate)
    h = info.function(**x)
    assert max_error(h, expected[0]) < 2e-2
    if info.states:
        h, last = info.function(**x, return_last_states=True)
        # (C, n, m) and (C e^a, n e^a, m - a) are the same state
        actual, true = (c * m[..., None].exp() for c, _, m in (last, expected[1]))
        assert max_error(actual, true) < 2e-2
    if info.gradient == "no normaliser":
        x["v"].requires_grad_()
        info.function(**x).sum().backward()
        assert x["v"].grad is not None and x["v"].grad.isfinite().all()


@pytest.mark.skipif(
    not triton_peers.peers_usable(), reason="mlstm_kernels' Triton kernels need the package, triton and a GPU"
)
def test_the_real_step() -> None:
    x = inputs(1, 64, 64, states=True, device="cuda")
    token = {name: x[name][:, :, 0] for name in "qkv"} | {name: x[name] for name in "if"}
    states = dict(zip("cnm", (x[name] for name in STATES), strict=True))
    h, last = registry.get_mlstm_step_kernel("triton")(**token, **states)
    expected = truth(**x)
    assert max_error(h, expected[0][:, :, 0]) < 1e-3
    assert {s.dtype for s in last} == {torch.float32}
