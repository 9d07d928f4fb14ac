# SPDX-License-Identifier: Apache-2.0
"""The wrappers: any length for kernels that want multiples, the same results, nothing of the call lost."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.reference import max_error, truth
from xlstm_hip._core.checks import IO_DTYPES
from xlstm_hip.mlstm import builtin_kernels, registry, wrappers
from xlstm_hip.reference import (
    mlstm_chunkwise__native_autograd,
    mlstm_parallel__native_autograd,
    mlstm_recurrent_sequence__native_fw,
    mlstm_recurrent_step__native,
    mlstm_siging_chunkwise__native_autograd,
    mlstm_siging_recurrent_sequence__native_fw,
    mlstm_siging_recurrent_step__native,
)

STATES = ("c_initial", "n_initial", "m_initial")
NATIVE = (mlstm_recurrent_sequence__native_fw, mlstm_recurrent_step__native)
NATIVE_SIGING = (mlstm_siging_recurrent_sequence__native_fw, mlstm_siging_recurrent_step__native)
EXP_LAYERS = [key for key in builtin_kernels.BUILTIN if key[0] in ("chunkwise", "parallel") and "siging" not in key[1]]
EXP_LAYERS = [key for key in EXP_LAYERS if "compiled" not in key[1]]
LENGTHS = (1, 2, 15, 16, 17, 40)


class Foreign:
    """Somebody's kernel: lengths that are multiples of chunk_size only, and a record of how it was called."""

    def __init__(self, function: Callable) -> None:
        self.function = function
        self.calls: list[dict[str, Any]] = []

    def __call__(self, q: torch.Tensor, **call: Any) -> Any:
        assert q.shape[2] % call["chunk_size"] == 0, (q.shape, call["chunk_size"])
        self.calls.append({"length": q.shape[2], "dtype": q.dtype, **call})
        return self.function(q=q, **call)


def inputs(length: int, dtype: torch.dtype = torch.float64, states: bool = False, seed: int = 0) -> dict:
    g = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    x = {"q": random(2, 3, length, 6), "k": random(2, 3, length, 6), "v": random(2, 3, length, 5)}
    x |= {"i": 3 * random(2, 3, length), "f": 3 * random(2, 3, length) + 2}
    if states:
        x |= dict(zip(STATES, (random(2, 3, 6, 5), random(2, 3, 6), random(2, 3, 1)), strict=True))
    return x


def assert_same(out: Any, expected: Any, tolerance: float = 1e-9) -> None:
    h, states = out
    expected_h, expected_states = expected
    assert h.shape == expected_h.shape
    for x, y in zip((h, *states), (expected_h, *expected_states), strict=True):
        assert x.shape == y.shape
        assert float((x.detach().double() - y.detach()).abs().max()) <= tolerance * (1 + float(y.detach().abs().max()))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("gate", ["exp", "sigmoid"])
@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.wrap_chunkwise__arbitrary_sequence_length,
        wrappers.wrap_chunkwise__arbitrary_sequence_length_with_padding,
    ],
)
def test_any_length_from_a_kernel_that_wants_multiples(length: int, states: bool, gate: str, wrap: Callable) -> None:
    layer, (sequence, step) = (
        (mlstm_chunkwise__native_autograd, NATIVE)
        if gate == "exp"
        else (mlstm_siging_chunkwise__native_autograd, NATIVE_SIGING)
    )
    x = inputs(length, states=states)
    foreign = Foreign(layer)
    out = wrap(foreign, sequence, step, **x, chunk_size=16, eps=1e-3, dtype_state=torch.float64)
    assert_same(out, truth(**x, eps=1e-3, gate=gate))
    assert all(call["eps"] == 1e-3 and call["chunk_size"] == 16 for call in foreign.calls)
    split = wrap is wrappers.wrap_chunkwise__arbitrary_sequence_length
    padded_length = length - length % 16 if split else -(-length // 16) * 16
    assert [call["length"] for call in foreign.calls] == ([padded_length] if padded_length and length > 1 else [])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("gate", ["exp", "sigmoid"])
def test_padding_changes_neither_h_nor_states_nor_gradients(length: int, gate: str) -> None:
    layer = mlstm_chunkwise__native_autograd if gate == "exp" else mlstm_siging_chunkwise__native_autograd
    x = {name: t.requires_grad_() for name, t in inputs(length, states=True).items()}
    expected = truth(**x, eps=1e-3, gate=gate)
    foreign = Foreign(layer)
    out = wrappers.wrap_chunkwise__pad_zeros(foreign, **x, chunk_size=16, eps=1e-3, return_last_states=True)
    assert_same(out, expected)
    assert [(c["length"], c["eps"], c["chunk_size"]) for c in foreign.calls] == [(-(-length // 16) * 16, 1e-3, 16)]
    gradients = [
        torch.autograd.grad(h.sum() + sum(s.square().sum() for s in last), list(x.values()), allow_unused=True)
        for h, last in (out, expected)
    ]
    for name, actual, true in zip(x, *gradients, strict=True):
        if true is None or not true.any():
            assert actual is None or not actual.any(), name
        else:
            assert max_error(actual, true) < 1e-8, name
    alone = wrappers.wrap_chunkwise__pad_zeros(foreign, **x, chunk_size=16, eps=1e-3)
    torch.testing.assert_close(alone, out[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_padding_in_narrow_dtypes(dtype: torch.dtype) -> None:
    x = inputs(21, dtype)
    layer = mlstm_chunkwise__native_autograd
    padded_h, padded_states = wrappers.wrap_chunkwise__pad_zeros(
        Foreign(layer), **x, chunk_size=16, return_last_states=True
    )
    h, states = layer(**x, chunk_size=16, return_last_states=True)
    assert padded_h.dtype == dtype
    for actual, plain in zip((padded_h, *padded_states), (h, *states), strict=True):
        assert max_error(actual, plain) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("key", EXP_LAYERS, ids=[name for _, name in EXP_LAYERS])
@pytest.mark.parametrize("length", [1, 17])
def test_registered_kernels_take_any_length_in_one_call(key: tuple[str, str], length: int) -> None:
    x = inputs(length, torch.float32, states=True)
    layer = registry.kernel_info(key[1], key[0]).function
    expected = truth(**x)
    out = wrappers.wrap_chunkwise__arbitrary_sequence_length(layer, *NATIVE, **x, chunk_size=16)
    assert_same(out, expected, 1e-4)
    out = wrappers.wrap_chunkwise__pad_zeros(layer, **x, chunk_size=16, return_last_states=True)
    assert_same(out, expected, 1e-4)


def test_a_registered_kernel_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    calls = []

    def plain_kernel(q: torch.Tensor, **call: Any) -> Any:
        calls.append((q.shape[2], call["chunk_size"], call["eps"], call["autocast_kernel_dtype"], call["speed"]))
        call.pop("speed")
        return mlstm_chunkwise__native_autograd(q=q, **call)

    facts: dict[str, Any] = {"devices": ("*",), "dtypes": IO_DTYPES, "gradient": "exact", "kind": "chunkwise"}
    registry.register_mlstm_kernel("chunkwise--own", plain_kernel, options=("speed",), **facts)
    call: dict[str, Any] = {"chunk_size": 16, "eps": 1e-4, "autocast_kernel_dtype": torch.float16, "speed": 9}
    wrappers.wrap_chunkwise__arbitrary_sequence_length(plain_kernel, *NATIVE, **inputs(37), **call)
    wrappers.wrap_chunkwise__pad_zeros(plain_kernel, **inputs(37), **call)
    assert calls == [(37, 16, 1e-4, torch.float16, 9)] * 2
    registry.register_mlstm_kernel("chunkwise--own", plain_kernel, any_length=False, overwrite=True, **facts)
    wrappers.wrap_chunkwise__pad_zeros(plain_kernel, **inputs(37), **call)
    assert calls[-1][0] == 48


def test_a_kernel_without_states_leaves_them_to_the_sequence_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    lengths = []

    def stateless(q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states, **call):
        assert c_initial is None and n_initial is None and m_initial is None and not return_last_states
        lengths.append(q.shape[2])
        return mlstm_parallel__native_autograd(q, k, v, i, f, **call)

    registry.register_mlstm_kernel(
        "parallel--own",
        stateless,
        kind="parallel",
        devices=("*",),
        dtypes=IO_DTYPES,
        gradient="exact",
        states=False,
    )
    wrap = wrappers.wrap_chunkwise__arbitrary_sequence_length
    x, with_states = inputs(20), inputs(20, states=True)
    torch.testing.assert_close(wrap(stateless, *NATIVE, **x, return_last_states=False), truth(**x)[0])
    assert lengths == [20]
    assert_same(wrap(stateless, *NATIVE, **x, dtype_state=torch.float64), truth(**x))
    h = wrap(stateless, *NATIVE, **with_states, return_last_states=False)
    torch.testing.assert_close(h, truth(**with_states)[0])
    assert lengths == [20]


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_sigmoid_kernel_gets_sigmoid_company(length: int, normalize: bool) -> None:
    x = inputs(length, states=True)
    for layer in (
        "chunkwise--native_siging_autograd",
        "parallel--native_siging_custbw",
        "chunkwise--fused_siging",
    ):
        out = wrappers.wrap_chunkwise__arbitrary_sequence_length(
            registry.get_mlstm_kernel(layer), *NATIVE, **x, dtype_state=torch.float64, normalize=normalize
        )
        assert_same(out, truth(**x, gate="sigmoid", normalize=normalize))
    with pytest.raises(ValueError, match="has the sigmoid input gate, and no twin for 'exp'"):
        wrappers.wrap_chunkwise__arbitrary_sequence_length(mlstm_chunkwise__native_autograd, *NATIVE_SIGING, **x)


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("dtype_state", [torch.float32, torch.bfloat16, torch.float16])
def test_state_dtype(length: int, dtype_state: torch.dtype) -> None:
    for foreign in (mlstm_chunkwise__native_autograd, Foreign(mlstm_chunkwise__native_autograd)):
        x = inputs(length, torch.bfloat16)
        h, (c, n, m) = wrappers.wrap_chunkwise__arbitrary_sequence_length(
            foreign, *NATIVE, **x, dtype_state=dtype_state
        )
        assert (h.dtype, c.dtype, n.dtype, m.dtype) == (
            torch.bfloat16,
            dtype_state,
            dtype_state,
            torch.float32,
        )


@pytest.mark.parametrize("length", [1, 16, 20])
@pytest.mark.parametrize("step", [mlstm_recurrent_step__native, registry.get_mlstm_step_kernel("fused")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_reaches_every_kernel(length: int, step: Callable, dtype: torch.dtype) -> None:
    x = inputs(length, torch.float32)
    for layer in (mlstm_chunkwise__native_autograd, Foreign(mlstm_chunkwise__native_autograd)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h, states = wrappers.wrap_chunkwise__arbitrary_sequence_length(
                layer, NATIVE[0], step, **x, chunk_size=16, autocast_kernel_dtype=dtype
            )
        assert h.dtype == dtype
        assert {s.dtype for s in states} == {torch.float32}
    h, _ = wrappers.wrap_chunkwise__arbitrary_sequence_length(layer, NATIVE[0], step, **x, chunk_size=16)
    assert h.dtype == torch.float32


def test_the_tail_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="xlstm_hip"):
        for length in (1, 20):
            wrappers.wrap_chunkwise__arbitrary_sequence_length(
                Foreign(mlstm_chunkwise__native_autograd),
                *NATIVE,
                **inputs(length),
                chunk_size=16,
                enable_logging=True,
            )
    assert [r.getMessage() for r in caplog.records] == [
        "sequence length 1, chunk_size 16: step",
        "sequence length 20, chunk_size 16: chunkwise for 16 and sequence for 4 tokens",
    ]


def test_strided_inputs_stay_strided() -> None:
    x = inputs(20, torch.float32)
    strided = {name: t.transpose(1, 2).contiguous().transpose(1, 2) for name, t in x.items()}
    for layer in (mlstm_chunkwise__native_autograd, registry.get_mlstm_kernel("chunkwise--fused")):
        out = [wrappers.wrap_chunkwise__arbitrary_sequence_length(layer, *NATIVE, **y) for y in (x, strided)]
        assert_same(out[0], out[1], 1e-5)


def test_bad_calls() -> None:
    wrap, layer = wrappers.wrap_chunkwise__arbitrary_sequence_length, mlstm_chunkwise__native_autograd
    x = inputs(4)
    for keyword in ("layout", "cu_seqlens", "in_place"):
        with pytest.raises(TypeError, match=f"{keyword}: the wrappers have no such keyword; mlstm_interface has"):
            wrap(layer, *NATIVE, **x, **{keyword: None})
    with pytest.raises(TypeError, match="speed"):
        wrap(layer, *NATIVE, **x, speed=3)
    with pytest.raises(ValueError, match="chunk_size: expected an integer >= 1, got 0"):
        wrap(layer, *NATIVE, **x, chunk_size=0)
    with pytest.raises(ValueError, match="q: expected 4 dimensions"):
        wrap(layer, *NATIVE, **(x | {"q": x["q"][0]}))
    with pytest.raises(ValueError, match="q: expected S >= 1"):
        wrap(layer, *NATIVE, **inputs(0))
    with pytest.raises(ValueError, match="n_initial, m_initial: expected all three states or none"):
        wrap(layer, *NATIVE, **x, c_initial=torch.zeros(2, 3, 6, 5))
    with pytest.raises(ValueError, match="n_initial, m_initial: expected all three states or none"):
        wrap(layer, *NATIVE, **inputs(1), c_initial=torch.zeros(2, 3, 6, 5))


@pytest.mark.parametrize(
    "name",
    [
        "wrap_chunkwise__pad_zeros",
        "wrap_chunkwise__arbitrary_sequence_length",
        "wrap_chunkwise__arbitrary_sequence_length_with_padding",
    ],
)
def test_arguments_are_mlstm_kernels(name: str) -> None:
    peer_module = pytest.importorskip("mlstm_kernels.torch.kernel_wrappers")
    parameters = inspect.signature(getattr(wrappers, name)).parameters
    for position, (argument, peer) in enumerate(inspect.signature(getattr(peer_module, name)).parameters.items()):
        assert list(parameters)[position] == argument
        assert parameters[argument].default == peer.default


@pytest.mark.parametrize("length", [1, 16, 20, 37])
def test_agreement_with_mlstm_kernels(length: int) -> None:
    """Their wrapper around their kernels, and ours around their kernels."""
    peer_module = pytest.importorskip("mlstm_kernels.torch.kernel_wrappers")
    from mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_sequence_kernel, get_mlstm_step_kernel

    kernels = (
        get_mlstm_kernel("chunkwise--native_autograd"),
        get_mlstm_sequence_kernel("native_sequence__native"),
        get_mlstm_step_kernel("native"),
    )
    x = inputs(length, torch.float32)
    out = [
        module.wrap_chunkwise__arbitrary_sequence_length(*kernels, **x, chunk_size=16)
        for module in (peer_module, wrappers)
    ]
    assert_same(out[1], out[0], 1e-4)
