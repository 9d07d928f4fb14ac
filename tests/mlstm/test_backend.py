# SPDX-License-Identifier: Apache-2.0
"""mLSTMBackendConfig and mLSTMBackend: the peers' fields, defaults and calls; every setting in every mode."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch

from support.reference import truth
from xlstm_hip._core.checks import IO_DTYPES
from xlstm_hip.mlstm import registry
from xlstm_hip.mlstm.backend import MODES, mLSTMBackend, mLSTMBackendConfig
from xlstm_hip.reference import mlstm_chunkwise__native_autograd

STATES = ("c_initial", "n_initial", "m_initial")
SETTINGS = {"chunk_size": 16, "eps": 1e-3, "autocast_kernel_dtype": "float16"}
NATIVE = {
    "chunkwise_kernel": "chunkwise--native_autograd",
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
}


def inputs(length: int = 20, dtype: torch.dtype = torch.float32, states: bool = False) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    x = {"q": random(2, 3, length, 6), "k": random(2, 3, length, 6), "v": random(2, 3, length, 5)}
    x |= {"i": random(2, 3, length), "f": random(2, 3, length) + 2}
    if states:
        x |= dict(zip(STATES, (random(2, 3, 6, 5), random(2, 3, 6), random(2, 3, 1)), strict=True))
    return x


def close(x: torch.Tensor, y: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(x.double(), y.double(), atol=tolerance, rtol=tolerance)


def backend(**config: Any) -> mLSTMBackend:
    return mLSTMBackend(mLSTMBackendConfig(**config))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Registers chunkwise--foreign, which wants multiples of chunk_size and records its calls."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    calls: list[dict[str, Any]] = []

    def kernel(q: torch.Tensor, **call: Any) -> Any:
        assert q.shape[2] % call["chunk_size"] == 0
        calls.append({"length": q.shape[2], **call})
        return mlstm_chunkwise__native_autograd(q=q, **call)

    registry.register_mlstm_kernel(
        "chunkwise--foreign", kernel, kind="chunkwise", devices=("*",), dtypes=IO_DTYPES, gradient="exact",
        any_length=False,
    )  # fmt: skip
    return calls


def test_fields_and_defaults() -> None:
    config = dataclasses.asdict(mLSTMBackendConfig())
    assert config == {
        "chunkwise_kernel": "chunkwise--fused",
        "sequence_kernel": "fused",
        "step_kernel": "fused",
        "mode": "train",
        "chunk_size": 64,
        "return_last_states": True,
        "autocast_kernel_dtype": "bfloat16",
        "eps": 1e-6,
        "inference_state_dtype": "float32",
        "normalize_siging": True,
    }


def test_fields_defaults_and_arguments_are_mlstm_kernels() -> None:
    """But for the kernels: theirs are plain torch by default, because Triton may be missing, and ours are fused."""
    peer_module = pytest.importorskip("mlstm_kernels.torch.backend_module")
    expected = dataclasses.asdict(peer_module.mLSTMBackendConfig())
    assert NATIVE.items() <= expected.items()
    assert dataclasses.asdict(mLSTMBackendConfig(**NATIVE)) == expected
    assert list(expected) == [field.name for field in dataclasses.fields(mLSTMBackendConfig)]
    assert mLSTMBackend.config_class is mLSTMBackendConfig
    parameters = list(inspect.signature(mLSTMBackend.forward).parameters)
    assert parameters[:11] == list(inspect.signature(peer_module.mLSTMBackend.forward).parameters)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("chunkwise_kernel", "chunkwise--fusd", "Did you mean 'chunkwise--fused'"),
        ("chunkwise_kernel", "native", "Unknown mLSTM chunkwise or parallel kernel 'native'"),
        ("sequence_kernel", "native", "Unknown mLSTM sequence kernel 'native'"),
        ("step_kernel", "chunkwise--fused", "Unknown mLSTM step kernel"),
        (
            "mode",
            "training",
            "mode: expected one of 'train', 'train_with_padding', 'inference', got 'training'",
        ),
        ("chunk_size", 0, "chunk_size: expected an integer >= 1, got 0"),
        ("eps", -1.0, "eps: expected a finite number >= 0"),
        ("autocast_kernel_dtype", "int8", "autocast_kernel_dtype: expected one of"),
        ("inference_state_dtype", torch.float32, "inference_state_dtype: expected one of"),
        ("return_last_states", None, "return_last_states: expected one of True, False, got None"),
        ("normalize_siging", "yes", "normalize_siging: expected one of"),
        ("mode", "train_with_padding", "return_last_states: expected False with mode='train_with_padding'"),
        (
            "chunkwise_kernel",
            "parallel--native_custbw",
            "return_last_states: expected False with the parallel",
        ),
    ],
)
def test_bad_configurations(field: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mLSTMBackendConfig(**{field: value})


def test_named_kernels_are_the_ones_that_run() -> None:
    """Fused ones are the default, and names of mlstm_kernels mean what they say."""
    for kernels in ({}, NATIVE):
        config = mLSTMBackendConfig(**kernels)
        module = mLSTMBackend(config)
        assert module.chunkwise_kernel_fn is registry.get_mlstm_kernel(config.chunkwise_kernel)
        assert module.sequence_kernel_fn is registry.get_mlstm_sequence_kernel(config.sequence_kernel)
        assert module.step_kernel_fn is registry.get_mlstm_step_kernel(config.step_kernel)
    assert backend().chunkwise_kernel_fn is not backend(**NATIVE).chunkwise_kernel_fn


def test_default_kernels_on_a_device_without_them() -> None:
    """The error says where to find others."""
    x = {name: t.to("meta") for name, t in inputs().items()}
    assert "meta" not in registry.kernel_info("chunkwise--fused").devices
    with pytest.raises(ValueError, match="'chunkwise--fused' runs on .*; get_optimal_kernel_config names kernels that"):
        backend()(**x)
    assert backend(**NATIVE)(**x)[0].device.type == "meta"


def test_every_registered_name_is_legal() -> None:
    for name in registry.get_available_mlstm_kernels():
        mLSTMBackendConfig(chunkwise_kernel=name, return_last_states=False)
    for name in (*registry.get_available_mlstm_sequence_kernels(), "native_sequence__triton_step_fused"):
        mLSTMBackendConfig(sequence_kernel=name)
    for name in (*registry.get_available_mlstm_step_kernels(), "triton_fused"):
        mLSTMBackendConfig(step_kernel=name)


@pytest.mark.parametrize("length", [1, 16, 20])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("kernels", [NATIVE, {}], ids=["native", "fused"])
def test_the_three_modes(length: int, states: bool, kernels: dict[str, str]) -> None:
    x = inputs(length, states=states)
    h, last = truth(**x, eps=1e-3)
    for mode in MODES:
        module = backend(mode=mode, return_last_states=mode != "train_with_padding", **SETTINGS, **kernels)
        per_call = backend(return_last_states=True, **SETTINGS, **kernels)
        for out in (module(**x, return_last_states=True), per_call(**x, mode=mode)):
            close(out[0], h)
            for actual, true in zip(out[1], last, strict=True):
                close(actual, true)
        close(module(**x, return_last_states=False), h)
    assert isinstance(backend(mode="inference", return_last_states=False)(**x), tuple)
    assert isinstance(backend(return_last_states=False)(**x), torch.Tensor)


@pytest.mark.parametrize("mode", MODES)
def test_settings_reach_the_kernel_in_every_mode(mode: str, recorder: list[dict[str, Any]]) -> None:
    module = backend(chunkwise_kernel="chunkwise--foreign", mode=mode, return_last_states=False, **SETTINGS)
    module(**inputs(32 if mode == "train" else 20))
    (call,) = recorder
    assert (call["chunk_size"], call["eps"], call["autocast_kernel_dtype"]) == (16, 1e-3, torch.float16)
    assert call["length"] == {"train": 32, "train_with_padding": 32, "inference": 16}[mode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("kernels", [NATIVE, {}], ids=["native", "fused"])
def test_autocast_dtype_in_every_mode(mode: str, length: int, kernels: dict[str, str]) -> None:
    module = backend(mode=mode, return_last_states=False, **SETTINGS, **kernels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(**inputs(length), return_last_states=False).dtype == torch.float16
    assert module(**inputs(length), return_last_states=False).dtype == torch.float32


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_state_dtype_in_inference(length: int, dtype: str) -> None:
    module = backend(inference_state_dtype=dtype)
    x = inputs(length, torch.bfloat16)
    h, (c, n, m) = module(**x, mode="inference")
    assert (h.dtype, c.dtype, n.dtype) == (torch.bfloat16, getattr(torch, dtype), getattr(torch, dtype))
    assert m.dtype == torch.float32
    h, states = module(**x, mode="train")
    assert {s.dtype for s in states} == {torch.float32}
    again = module(**x, c_initial=c, n_initial=n, m_initial=m, mode="inference")
    assert again[1][0].dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    "kernel",
    [
        "chunkwise--native_siging_autograd",
        "chunkwise--fused_siging",
        "chunkwise--triton_xl_chunk_siging",
        "parallel--native_siging_autograd",
        "parallel--native_siging_custbw",
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("length", [1, 20])
def test_sigmoid_kernels_in_all_modes(kernel: str, normalize: bool, length: int) -> None:
    module = backend(chunkwise_kernel=kernel, normalize_siging=normalize, return_last_states=False, **SETTINGS)
    x = inputs(length, states=True)
    h, last = truth(**x, eps=1e-3, gate="sigmoid", normalize=normalize)
    for mode in MODES:
        out = module(**x, mode=mode, return_last_states=True)
        close(out[0], h)
        for actual, true in zip(out[1], last, strict=True):
            close(actual, true)


def test_a_decoded_sequence_is_the_sequence() -> None:
    x = inputs(12)
    for kernels in (NATIVE, {}):
        module = backend(mode="inference", **kernels)
        h, states = module(**{name: t[:, :, :5] for name, t in x.items()})
        hs = [h]
        for t in range(5, 12):
            token = {name: value[:, :, t : t + 1] for name, value in x.items()}
            h, states = module(**token, **dict(zip(STATES, states, strict=True)))
            hs.append(h)
        true, last = truth(**x)
        close(torch.cat(hs, dim=2), true)
        close(states[0], last[0])


def test_transformers_names() -> None:
    x = inputs(states=True)
    renamed = dict(zip(("query", "key", "value", "igate", "fgate"), (x[name] for name in "qkvif"), strict=True))
    expected = backend()(**x)
    for names in (STATES, ("cstate", "nstate", "mstate")):
        states = dict(zip(names, (x[name] for name in STATES), strict=True))
        out = backend()(**renamed, **states)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
    torch.testing.assert_close(backend()(*x.values()), expected, rtol=0, atol=0)
    with pytest.raises(TypeError, match="query: the same argument as q, which is given too"):
        backend()(**x, query=x["q"])
    with pytest.raises(TypeError, match=r"f \(or fgate\): expected a tensor, got none"):
        backend()(**{name: x[name] for name in "qkvi"})


def test_bad_calls() -> None:
    with pytest.raises(ValueError, match="mode: expected one of"):
        backend()(**inputs(), mode="eval")
    with pytest.raises(ValueError, match="q: expected 4 dimensions"):
        backend()(**(inputs() | {"q": torch.zeros(1, 2)}))
    for mode in MODES:
        with pytest.raises((ValueError, TypeError), match="k: expected"):
            backend()(**(inputs() | {"k": torch.zeros(2, 3, 20, 7)}), mode=mode)
        with pytest.raises(ValueError, match="v: expected"):
            backend()(**(inputs(1) | {"v": torch.zeros(2, 3, 4, 5)}), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_kernel_cannot_do_is_named(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    facts: dict[str, Any] = {"devices": ("cuda",), "dtypes": IO_DTYPES, "gradient": "none"}
    for kind, name in (("chunkwise", "chunkwise--own"), ("step", "own")):
        registry.register_mlstm_kernel(name, lambda **call: call, kind=kind, **facts)
    module = backend(chunkwise_kernel="chunkwise--own", step_kernel="own", mode=mode, return_last_states=False)
    with pytest.raises(ValueError, match="q: chunkwise kernel 'chunkwise--own' runs on cuda, got a tensor on cpu"):
        module(**inputs(20))
    if mode == "inference":
        with pytest.raises(ValueError, match="q: step kernel 'own' runs on cuda, got a tensor on cpu"):
            module(**inputs(1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernels", [NATIVE, {}], ids=["native", "fused"])
def test_gradients_in_every_mode(mode: str, kernels: dict[str, str]) -> None:
    x = {name: t.requires_grad_() for name, t in inputs(20).items()}
    module = backend(mode=mode, return_last_states=False, **SETTINGS, **kernels)
    h = module(**x, return_last_states=False)
    gradients = torch.autograd.grad(h.square().sum(), list(x.values()))
    true = torch.autograd.grad(truth(**x, eps=1e-3)[0].square().sum(), list(x.values()))
    for actual, expected in zip(gradients, true, strict=True):
        close(actual, expected, 1e-3)


def test_kernels_can_be_replaced() -> None:
    module = backend(mode="inference")
    calls = []

    def kernel(**call: Any) -> Any:
        calls.append(call["q"].shape[2])
        return mlstm_chunkwise__native_autograd(**call)

    module.chunkwise_kernel_fn = kernel
    assert module.chunkwise_kernel_fn is kernel
    close(module(**inputs(70))[0], truth(**inputs(70))[0])
    assert calls == [64]


def test_module_behaviour() -> None:
    module = backend(chunk_size=32)
    assert not list(module.parameters()) and not module.state_dict()
    assert "chunk_size=32" in repr(module)


@pytest.mark.parametrize("length", [1, 20])
def test_compiles_into_one_graph(length: int) -> None:
    x = inputs(length)
    for mode in MODES:
        module = backend(mode=mode, return_last_states=False)
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        close(compiled(**x, return_last_states=False), module(**x, return_last_states=False), 1e-6)


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("length", [1, 64, 100])
def test_agreement_with_mlstm_kernels(mode: str, length: int) -> None:
    peer_module = pytest.importorskip("mlstm_kernels.torch.backend_module")
    if mode == "train" and length % 64:
        length = 128  # their training mode wants whole chunks
    x = inputs(length)
    expected_h, expected_states = peer_module.mLSTMBackend(peer_module.mLSTMBackendConfig(mode=mode))(**x)
    for kernels in (NATIVE, {}):
        h, states = backend(mode=mode, **kernels)(**x)
        close(h, expected_h, 1e-3)
        for actual, peers in zip(states, expected_states, strict=True):
            assert actual.dtype == peers.dtype
        # (C, n, m) and (C e^a, n e^a, m - a) are the same state
        close(
            states[0] * states[2][..., None].exp(),
            expected_states[0] * expected_states[2][..., None].exp(),
            1e-3,
        )
