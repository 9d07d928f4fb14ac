# SPDX-License-Identifier: Apache-2.0
"""The registry: every name, what it says of itself, and that it is true."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

from xlstm_hip._core import warn_once
from xlstm_hip._core.checks import IO_DTYPES
from xlstm_hip.mlstm import builtin_kernels, registry, triton_peers

PEER_NAMES = {
    ("chunkwise", "chunkwise--native_autograd"),
    ("chunkwise", "chunkwise--native_custbw"),
    ("chunkwise", "chunkwise--triton_limit_chunk"),
    ("chunkwise", "chunkwise--triton_xl_chunk"),
    ("chunkwise", "chunkwise--triton_xl_chunk_siging"),
    ("parallel", "parallel--native_autograd"),
    ("parallel", "parallel--native_custbw"),
    ("parallel", "parallel--native_stablef_autograd"),
    ("parallel", "parallel--native_stablef_custbw"),
    ("parallel", "parallel--native_siging_autograd"),
    ("parallel", "parallel--native_siging_custbw"),
    ("parallel", "parallel--triton_limit_headdim"),
    ("sequence", "native_sequence__native"),
    ("sequence", "native_sequence__triton"),
    ("step", "native"),
    ("step", "triton"),
}
OUR_NAMES = {
    ("chunkwise", "chunkwise--fused"),
    ("chunkwise", "chunkwise--fused_siging"),
    ("chunkwise", "chunkwise--native_siging_autograd"),
    ("chunkwise", "chunkwise--native_siging_custbw"),
    ("chunkwise", "chunkwise--native_compiled_autograd"),
    ("chunkwise", "chunkwise--queued_compiled_steps"),
    ("chunkwise", "chunkwise--ray_compiled_steps"),
    ("sequence", "fused"),
    ("sequence", "fused_siging"),
    ("sequence", "native_sequence__native_siging"),
    ("sequence", "native_sequence__metal"),
    ("step", "fused"),
    ("step", "fused_siging"),
    ("step", "native_siging"),
    ("step", "metal"),
}
ALL_NAMES = sorted(PEER_NAMES | OUR_NAMES)
STAND_INS = {  # the fused kernel that takes a Triton name's calls where mlstm_kernels cannot
    ("chunkwise", "chunkwise--triton_limit_chunk"): ("chunkwise", "chunkwise--fused"),
    ("chunkwise", "chunkwise--triton_xl_chunk"): ("chunkwise", "chunkwise--fused"),
    ("chunkwise", "chunkwise--triton_xl_chunk_siging"): ("chunkwise", "chunkwise--fused_siging"),
    ("parallel", "parallel--triton_limit_headdim"): ("chunkwise", "chunkwise--fused"),
    ("sequence", "native_sequence__triton"): ("sequence", "fused"),
    ("step", "triton"): ("step", "fused"),
}
# Kernels that compile at their first call, or start other processes, have tests of their own.
PROMPT_NAMES = [key for key in ALL_NAMES if "compiled" not in key[1] and "metal" not in key[1]]


def arguments(kind: str, dtype: torch.dtype = torch.float32, length: int = 5) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    s = () if kind == "step" else (length,)
    gates = (1,) if kind == "step" else s
    out = {"q": random(1, 2, *s, 6), "k": random(1, 2, *s, 6), "v": random(1, 2, *s, 4)}
    out |= {"i": random(1, 2, *gates), "f": random(1, 2, *gates)}
    if kind == "step":
        out |= {"c": random(1, 2, 6, 4).float(), "n": random(1, 2, 6).float(), "m": random(1, 2, 1).float()}
    return out


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_names_are_the_ecosystems_and_ours() -> None:
    assert set(builtin_kernels.BUILTIN) == PEER_NAMES | OUR_NAMES
    for available, kinds in (
        (registry.get_available_mlstm_kernels(), ("chunkwise", "parallel")),
        (registry.get_available_mlstm_sequence_kernels(), ("sequence",)),
        (registry.get_available_mlstm_step_kernels(), ("step",)),
    ):
        assert sorted(available) == sorted(name for kind, name in ALL_NAMES if kind in kinds)


@pytest.mark.parametrize(("kind", "name"), ALL_NAMES)
def test_every_name_has_a_function_and_facts(kind: str, name: str) -> None:
    info = registry.kernel_info(name, kind)
    assert (info.name, info.kind) == (name, kind)
    assert callable(info.function)
    assert info.devices and set(info.dtypes) <= set(IO_DTYPES)
    assert info.gradient in registry.GRADIENTS
    assert info.gate == ("sigmoid" if "siging" in name else "exp")
    assert ("normalize" in info.options) == (info.gate == "sigmoid")
    assert info.note
    assert registry.info_of(info.function) == info
    getter = {"sequence": registry.get_mlstm_sequence_kernel, "step": registry.get_mlstm_step_kernel}
    assert getter.get(kind, registry.get_mlstm_kernel)(name) is info.function


@pytest.mark.parametrize(("kind", "name"), PROMPT_NAMES)
def test_kernels_do_what_their_facts_say(kind: str, name: str) -> None:
    info = registry.kernel_info(name, kind)
    plain = {"sequence": "native_sequence__native", "step": "native"}.get(kind, "chunkwise--native_autograd")
    plain_kind = kind if kind in ("sequence", "step") else "chunkwise"
    reference = registry.with_gate(registry.kernel_info(plain, plain_kind), info.gate)
    for dtype in info.dtypes:
        inputs = arguments(kind, dtype)
        asks = {} if kind == "step" or not info.states else {"return_last_states": True}
        out, expected = info.function(**inputs, **asks), reference.function(**inputs, **asks)
        tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 0.06)
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    if info.gradient == "exact":
        inputs = {x: t.requires_grad_() for x, t in arguments(kind).items()}
        h = info.function(**inputs)
        (h[0] if kind == "step" else h).sum().backward()
        assert inputs["f"].grad is not None and inputs["f"].grad.abs().sum() > 0


OPTION_VALUES = {
    "normalize": False,
    "normalizer_grad": False,
    "layout": "bhsd",
    "cu_seqlens": torch.tensor([0, 2, 5]),
    "in_place": True,
    "autocast_kernel_dtype": torch.bfloat16,
    "stable_fgate": False,
}


@pytest.mark.parametrize(("kind", "name"), PROMPT_NAMES)
def test_kernels_take_their_options_and_no_others(kind: str, name: str) -> None:
    info = registry.kernel_info(name, kind)
    # on CPU tensors the fused kernel, whether mlstm_kernels can run on others or not
    info_kind, info_name = STAND_INS.get((kind, name), (kind, name))
    facts = registry.kernel_info(info_name, info_kind)
    for option, value in OPTION_VALUES.items():
        if option == "autocast_kernel_dtype" and kind != "step":
            continue  # part of the common call there
        if option in facts.options:
            info.function(**arguments(kind), **{option: value})
        else:
            with pytest.raises(TypeError, match=option):
                info.function(**arguments(kind), **{option: value})
    with pytest.raises(TypeError, match="no_such_keyword"):
        info.function(**arguments(kind), no_such_keyword=1)


@pytest.mark.parametrize(("kind", "alias"), builtin_kernels.ALIASES)
def test_old_names(kind: str, alias: str) -> None:
    info = registry.kernel_info(alias, kind)
    assert info == registry.kernel_info(builtin_kernels.ALIASES[kind, alias], kind)
    assert alias not in registry.kernel_names((kind,))


def test_unknown_names_list_the_valid_ones_and_the_closest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'chunkwise--native_custbw'.*chunkwise--fused, "):
        registry.get_mlstm_kernel("chunkwise--native_custbv")
    with pytest.raises(ValueError, match="Did you mean 'native'.*Valid names: fused"):
        registry.get_mlstm_step_kernel("nativ")
    with pytest.raises(ValueError, match="Unknown mLSTM sequence kernel 'native'"):
        registry.get_mlstm_sequence_kernel("native")
    with pytest.raises(ValueError, match="kind: expected one of"):
        registry.kernel_info("native", "steps")


def test_a_name_of_two_kinds_needs_the_kind() -> None:
    with pytest.raises(ValueError, match="kinds sequence and step; pass kind="):
        registry.kernel_info("fused")
    assert registry.kernel_info("fused", "step").kind == "step"
    assert registry.kernel_info("fused", ("chunkwise", "parallel", "sequence")).kind == "sequence"
    assert registry.kernel_info("chunkwise--fused").kind == "chunkwise"


def registered_kernel(q, k, v, i, f, **kwargs):
    return v


def register(name: str = "chunkwise--own", **changes):
    facts = {"kind": "chunkwise", "devices": ("cpu",), "dtypes": (torch.float32,), "gradient": "none"}
    return registry.register_mlstm_kernel(name, registered_kernel, **(facts | changes))


@pytest.mark.usefixtures("clean_registry")
def test_registering_and_unregistering() -> None:
    info = register(options=("speed",), note="mine")
    assert registry.kernel_info("chunkwise--own") is info and info.options == ("speed",)
    assert registry.get_mlstm_kernel("chunkwise--own") is registered_kernel
    assert registry.info_of(registered_kernel) is info
    assert registry.get_available_mlstm_kernels()[-1] == "chunkwise--own"
    with pytest.raises(ValueError, match="'chunkwise--own' is registered already"):
        register()
    assert register(overwrite=True, gradient="exact").gradient == "exact"
    registry.unregister_mlstm_kernel("chunkwise--own", "chunkwise")
    assert "chunkwise--own" not in registry.get_available_mlstm_kernels()
    with pytest.raises(ValueError, match="Unknown mLSTM chunkwise kernel"):
        registry.unregister_mlstm_kernel("chunkwise--own", "chunkwise")


@pytest.mark.usefixtures("clean_registry")
def test_built_ins_can_be_stood_in_for_but_not_removed() -> None:
    before = registry.kernel_info("native", "step")
    for taken in ("native", "triton_fused"):
        with pytest.raises(ValueError, match="is registered already; pass overwrite=True"):
            register(taken, kind="step")
    register("native", kind="step", overwrite=True)
    assert registry.get_mlstm_step_kernel("native") is registered_kernel
    registry.unregister_mlstm_kernel("native", "step")
    assert registry.kernel_info("native", "step") == before
    for name in ("native", "triton_fused"):
        with pytest.raises(ValueError, match="is built in and stays"):
            registry.unregister_mlstm_kernel(name, "step")


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": "own"}, ValueError, "name: expected chunkwise--<name>"),
        ({"name": "chunkwise--"}, ValueError, "name: expected chunkwise--<name>"),
        ({"name": ""}, ValueError, "name: expected a non-empty string"),
        ({"kind": "layer"}, ValueError, "kind: expected one of"),
        ({"gradient": "some"}, ValueError, "gradient: expected one of"),
        ({"gate": "tanh"}, ValueError, "gate: expected one of"),
        ({"devices": "cpu"}, TypeError, "devices: expected a sequence of str"),
        ({"dtypes": ("float32",)}, TypeError, "dtypes: expected a sequence of dtype"),
        ({"devices": ()}, ValueError, "devices: expected at least one"),
        ({"dtypes": ()}, ValueError, "dtypes: expected at least one"),
    ],
)
def test_bad_registrations(changes: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        register(**changes)


def test_a_kernel_must_be_callable() -> None:
    with pytest.raises(TypeError, match="function: expected a callable, got int"):
        registry.register_mlstm_kernel("x", 3, kind="step", devices=("cpu",), dtypes=IO_DTYPES, gradient="none")


@pytest.mark.usefixtures("clean_registry")
def test_what_a_kernel_cannot_do_is_named() -> None:
    info = register()
    q = torch.zeros(1, 1, 1, 1)
    registry.check_kernel_accepts(info, q, gradient_needed=False)
    with pytest.raises(ValueError, match="q: chunkwise kernel 'chunkwise--own' runs on cpu, got a tensor on meta"):
        registry.check_kernel_accepts(info, q.to("meta"), False)
    with pytest.raises(TypeError, match="takes torch.float32, got torch.bfloat16"):
        registry.check_kernel_accepts(info, q.bfloat16(), False)
    with pytest.raises(ValueError, match="has no gradient, but an input requires one"):
        registry.check_kernel_accepts(info, q, True)
    anywhere = register(overwrite=True, devices=("*",), gradient="unstated")
    registry.check_kernel_accepts(anywhere, q.to("meta"), True)


def test_gates() -> None:
    for (kind, name), twin in builtin_kernels.SIGMOID_TWINS.items():
        info = registry.kernel_info(name, kind)
        assert registry.with_gate(info, "exp") is info
        assert registry.with_gate(info, "sigmoid") == registry.kernel_info(twin, kind)
        assert registry.kernel_info(twin, kind).gate == "sigmoid"
    with pytest.raises(ValueError, match="has the sigmoid input gate, and no twin for 'exp'"):
        registry.with_gate(registry.kernel_info("native_siging", "step"), "exp")


@pytest.mark.parametrize(("kind", "name"), STAND_INS)
def test_triton_names_are_the_fused_kernel_with_one_log_line(
    kind: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warn_once, "_logged", set())
    info = registry.kernel_info(name, kind)
    fused_kind, fused_name = STAND_INS[kind, name]
    fused = registry.kernel_info(fused_name, fused_kind)
    if not triton_peers.peers_usable():
        assert (info.devices, info.dtypes, info.gradient, info.options) == (
            fused.devices, fused.dtypes, fused.gradient, fused.options,
        )  # fmt: skip
    with caplog.at_level(logging.INFO, logger="xlstm_hip"):
        out = [info.function(**arguments(kind)) for _ in range(3)]
    torch.testing.assert_close(out[0], fused.function(**arguments(kind)), rtol=0, atol=0)
    assert [r.getMessage() for r in caplog.records if r.name == "xlstm_hip"] == [
        f"{name}: mlstm_kernels' Triton kernel cannot run here; using the fused kernel of xlstm_hip"
    ]


def test_a_triton_name_is_the_fused_kernel_where_its_states_are_beyond_its_offsets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not triton_peers.beyond_reach(64, 16, 2048, 128, 256, 64)  # ran on an H200
    assert triton_peers.beyond_reach(64, 8, 2048, 256, 512, 64)  # ended there with an illegal memory access
    called = []
    call_arguments = arguments("chunkwise", length=64)
    monkeypatch.setattr(warn_once, "_logged", set())
    monkeypatch.setattr(
        triton_peers, "_peer", lambda *_: lambda **options: called.append(options) or call_arguments["v"]
    )
    name = "chunkwise--triton_limit_chunk"
    with caplog.at_level(logging.INFO, logger="xlstm_hip"):
        registry.kernel_info(name, "chunkwise").function(**call_arguments)
        assert len(called) == 1
        monkeypatch.setattr(triton_peers, "FARTHEST_STATE", 64)
        out = registry.kernel_info(name, "chunkwise").function(**call_arguments)
    assert len(called) == 1
    torch.testing.assert_close(out, registry.kernel_info("chunkwise--fused", "chunkwise").function(**call_arguments))
    assert [r.getMessage() for r in caplog.records if r.name == "xlstm_hip"] == [
        f"{name}: mlstm_kernels' Triton kernel cannot find so many states; using the fused kernel of xlstm_hip"
    ]


def test_the_package_imports_nothing_that_is_slow_or_optional() -> None:
    code = """
import sys
import xlstm_hip
xlstm_hip.get_mlstm_step_kernel("native"), xlstm_hip.get_mlstm_kernel("chunkwise--ray_compiled_steps")
assert not {"mlstm_kernels", "torch._inductor.compile_fx", "ray", "triton"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
