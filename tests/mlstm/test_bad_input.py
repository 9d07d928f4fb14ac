# SPDX-License-Identifier: Apache-2.0
"""A wrong call ends in an error that names the argument, never in a crash or in a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from xlstm_hip import kernel_info, mlstm_interface, mlstm_step_interface
from xlstm_hip._core import checks
from xlstm_hip.mlstm.kernels import mlstm_chunkwise_fused, mlstm_step_fused
from xlstm_hip.mlstm.registry import check_kernel_accepts

B, NH, S, DQK, DHV = 2, 3, 6, 8, 4
Change = Callable[[dict[str, Any]], dict[str, Any]]


def sequence_call(states: bool = False) -> dict[str, Any]:
    call: dict[str, Any] = {
        "q": torch.randn(B, NH, S, DQK),
        "k": torch.randn(B, NH, S, DQK),
        "v": torch.randn(B, NH, S, DHV),
        "i": torch.randn(B, NH, S),
        "f": torch.randn(B, NH, S),
    }
    if states:
        c, n, m = states_of(B)
        call |= {"c_initial": c, "n_initial": n, "m_initial": m}
    return call


def states_of(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(batch, NH, DQK, DHV), torch.randn(batch, NH, DQK), torch.randn(batch, NH, 1)


def step_call() -> dict[str, Any]:
    c, n, m = states_of(B)
    return {
        "q": torch.randn(B, NH, DQK),
        "k": torch.randn(B, NH, DQK),
        "v": torch.randn(B, NH, DHV),
        "i": torch.randn(B, NH, 1),
        "f": torch.randn(B, NH, 1),
        "c": c,
        "n": n,
        "m": m,
    }


def without_unit_stride(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def packed(*ends: int, dtype: torch.dtype = torch.int64) -> Change:
    def change(call: dict[str, Any]) -> dict[str, Any]:
        return {name: x[:1] for name, x in call.items()} | {"cu_seqlens": torch.tensor(ends, dtype=dtype)}

    return change


# The change to a good call, the error, and the text that it must contain: the argument first.
SEQUENCE: dict[str, tuple[Change, type[Exception], str]] = {
    "q is no tensor": (lambda c: {"q": [1.0]}, TypeError, "^q: .*Tensor"),
    "q has rank 3": (lambda c: {"q": c["q"][0]}, ValueError, "^q: .*4 dimensions"),
    "v has rank 5": (lambda c: {"v": c["v"][None]}, ValueError, "^v: .*4 dimensions"),
    "i has rank 4": (lambda c: {"i": c["i"][..., None]}, ValueError, "^i: "),
    "k has other heads": (lambda c: {"k": c["k"][:, :2]}, ValueError, "^k: .*shape"),
    "v has other heads": (lambda c: {"v": c["v"][:, :2]}, ValueError, "^v: .*shape"),
    "f has other heads": (lambda c: {"f": c["f"][:, :2]}, ValueError, "^f: .*shape"),
    "k has other features": (lambda c: {"k": c["k"][..., :-1]}, ValueError, "^k: .*shape"),
    "k is shorter": (lambda c: {"k": c["k"][:, :, 1:]}, ValueError, "^k: .*shape"),
    "i is shorter": (lambda c: {"i": c["i"][:, :, 1:]}, ValueError, "^i: .*shape"),
    "another batch": (lambda c: {"v": c["v"][:1]}, ValueError, "^v: .*shape"),
    "S is 0": (lambda c: {n: x[:, :, :0] for n, x in c.items()}, ValueError, "^q: .*S >= 1"),
    "B is 0": (lambda c: {n: x[:0] for n, x in c.items()}, ValueError, "^q: .*B >= 1"),
    "DHQK is 0": (lambda c: {n: c[n][..., :0] for n in "qk"}, ValueError, "^q: .*DHQK >= 1"),
    "DHHV is 0": (lambda c: {"v": c["v"][..., :0]}, ValueError, "^v: .*DHHV >= 1"),
    "integers": (lambda c: {n: c[n].int() for n in "qkv"}, TypeError, "^q: .*int32"),
    "complex": (lambda c: {n: c[n].cfloat() for n in "qkv"}, TypeError, "^q: .*complex64"),
    "k has another dtype": (lambda c: {"k": c["k"].bfloat16()}, TypeError, "^k: .*bfloat16"),
    "v has another dtype": (lambda c: {"v": c["v"].double()}, TypeError, "^v: .*float64"),
    "i has another dtype": (lambda c: {"i": c["i"].half()}, TypeError, "^i: .*float16"),
    "f is too wide": (lambda c: {"f": c["f"].double()}, TypeError, "^f: .*float64"),
    "k on another device": (lambda c: {"k": c["k"].to("meta")}, ValueError, "^k: .*device"),
    "f on another device": (lambda c: {"f": c["f"].to("meta")}, ValueError, "^f: .*device"),
    "a device without a kernel": (lambda c: {n: x.to("meta") for n, x in c.items()}, ValueError, "^q: .*meta"),
    "q without unit stride": (lambda c: {"q": without_unit_stride(c["q"])}, ValueError, "^q: .*contiguous"),
    "k without unit stride": (lambda c: {"k": without_unit_stride(c["k"])}, ValueError, "^k: .*contiguous"),
    "v without unit stride": (lambda c: {"v": without_unit_stride(c["v"])}, ValueError, "^v: .*contiguous"),
    "negative eps": (lambda c: {"eps": -1e-6}, ValueError, "^eps: "),
    "eps is NaN": (lambda c: {"eps": float("nan")}, ValueError, "^eps: "),
    "eps is infinite": (lambda c: {"eps": float("inf")}, ValueError, "^eps: "),
    "eps is text": (lambda c: {"eps": "small"}, ValueError, "^eps: "),
    "chunk_size 0": (lambda c: {"chunk_size": 0}, ValueError, "^chunk_size: "),
    "chunk_size 1.5": (lambda c: {"chunk_size": 1.5}, ValueError, "^chunk_size: "),
    "unknown keyword": (lambda c: {"chunksize": 64}, TypeError, "'chunksize'"),
    "the step's keyword": (lambda c: {"in_place": True}, TypeError, "'in_place'"),
    "unknown kernel": (lambda c: {"kernel": "chunkwise--fast"}, ValueError, "chunkwise--fast"),
    "misspelt kernel": (lambda c: {"kernel": "chunkwise--fussed"}, ValueError, "Did you mean 'chunkwise--fused'"),
    "kernel is no name": (lambda c: {"kernel": 3}, TypeError, "^kernel: "),
    "unknown gate": (lambda c: {"gate": "tanh"}, ValueError, "^gate: "),
    "a gate the kernel lacks": (
        lambda c: {"gate": "sigmoid", "kernel": "chunkwise--fused"},
        ValueError,
        "^gate: ",
    ),
    "unknown layout": (lambda c: {"layout": "bsdh"}, ValueError, "^layout: "),
    "the other layout's shape": (lambda c: {"layout": "bshd", "i": c["i"].mT}, ValueError, "^i: .*shape"),
    "normalize with the exp gate": (lambda c: {"normalize": False}, ValueError, "^normalize: "),
    "normalizer_grad without such an option": (
        lambda c: {"normalizer_grad": False, "kernel": "native_sequence__native"},
        ValueError,
        "^normalizer_grad: ",
    ),
    "cu_seqlens is a list": (lambda c: packed(0, S)(c) | {"cu_seqlens": [0, S]}, TypeError, "^cu_seqlens: "),
    "cu_seqlens falls": (packed(0, 4, 3, S), ValueError, "^cu_seqlens: .*rise"),
    "cu_seqlens stands still": (packed(0, 3, 3, S), ValueError, "^cu_seqlens: .*rise"),
    "cu_seqlens starts late": (packed(1, S), ValueError, "^cu_seqlens: .*start at 0"),
    "cu_seqlens ends early": (packed(0, S - 1), ValueError, "^cu_seqlens: .*end at S"),
    "cu_seqlens ends late": (packed(0, S + 1), ValueError, "^cu_seqlens: .*end at S"),
    "cu_seqlens has one end": (packed(0), ValueError, "^cu_seqlens: .*shape"),
    "cu_seqlens is float": (packed(0, S, dtype=torch.float32), TypeError, "^cu_seqlens: .*float32"),
    "cu_seqlens on another device": (
        lambda c: packed(0, S)(c) | {"cu_seqlens": torch.tensor([0, S], device="meta")},
        ValueError,
        "^cu_seqlens: .*device cpu as q has, got meta",
    ),
    "cu_seqlens with a batch": (lambda c: {"cu_seqlens": torch.tensor([0, S])}, ValueError, "^cu_seqlens: .*batch"),
}
STATES: dict[str, tuple[Change, type[Exception], str]] = {
    "c is transposed": (lambda c: {"c_initial": c["c_initial"].mT}, ValueError, "^c_initial: .*shape"),
    "n has c's shape": (lambda c: {"n_initial": c["c_initial"]}, ValueError, "^n_initial: .*shape"),
    "m lacks an axis": (lambda c: {"m_initial": c["m_initial"][..., 0]}, ValueError, "^m_initial: .*shape"),
    "another batch": (lambda c: {"c_initial": c["c_initial"][:1]}, ValueError, "^c_initial: .*shape"),
    "integers": (lambda c: {"n_initial": c["n_initial"].long()}, TypeError, "^n_initial: .*int64"),
    "another device": (lambda c: {"m_initial": c["m_initial"].to("meta")}, ValueError, "^m_initial: .*device"),
    "only c": (lambda c: {"n_initial": None, "m_initial": None}, ValueError, "^n_initial, m_initial: .*all three"),
    "no m": (lambda c: {"m_initial": None}, ValueError, "^m_initial: .*all three"),
    "no c": (lambda c: {"c_initial": None}, ValueError, "^c_initial: .*all three"),
    "one state for three sequences": (packed(0, 2, 3, S), ValueError, "^c_initial: .*shape"),
}
STEP: dict[str, tuple[Change, type[Exception], str]] = {
    "q has rank 4": (lambda c: {"q": c["q"][:, :, None]}, ValueError, "^q: .*3 dimensions"),
    "v has rank 2": (lambda c: {"v": c["v"][0]}, ValueError, "^v: .*3 dimensions"),
    "k has other heads": (lambda c: {"k": c["k"][:, :2]}, ValueError, "^k: .*shape"),
    "v has other heads": (lambda c: {"v": c["v"][:, :2]}, ValueError, "^v: .*shape"),
    "i lacks an axis": (lambda c: {"i": c["i"][..., 0]}, ValueError, "^i: .*shape"),
    "f has two tokens": (lambda c: {"f": c["f"].expand(B, NH, 2)}, ValueError, "^f: .*shape"),
    "k has another dtype": (lambda c: {"k": c["k"].half()}, TypeError, "^k: .*float16"),
    "integers": (lambda c: {n: c[n].int() for n in "qkv"}, TypeError, "^q: .*int32"),
    "v on another device": (lambda c: {"v": c["v"].to("meta")}, ValueError, "^v: .*device"),
    "c on another device": (lambda c: {"c": c["c"].to("meta")}, ValueError, "^c: .*device"),
    "q without unit stride": (lambda c: {"q": without_unit_stride(c["q"])}, ValueError, "^q: .*contiguous"),
    "c is transposed": (lambda c: {"c": c["c"].mT}, ValueError, "^c: .*shape"),
    "n has c's shape": (lambda c: {"n": c["c"]}, ValueError, "^n: .*shape"),
    "m lacks an axis": (lambda c: {"m": c["m"][..., 0]}, ValueError, "^m: .*shape"),
    "c of another batch": (lambda c: {"c": c["c"][:1]}, ValueError, "^c: .*shape"),
    "no m": (lambda c: {"m": None}, TypeError, "^m: .*Tensor"),
    "negative eps": (lambda c: {"eps": -1.0}, ValueError, "^eps: "),
    "eps is NaN": (lambda c: {"eps": float("nan")}, ValueError, "^eps: "),
    "a cap of 0": (lambda c: {"gate_soft_cap": 0.0}, ValueError, "^gate_soft_cap: .*> 0"),
    "a cap that is NaN": (lambda c: {"gate_soft_cap": float("nan")}, ValueError, "^gate_soft_cap: "),
    "a cap that is text": (lambda c: {"gate_soft_cap": "15"}, ValueError, "^gate_soft_cap: "),
    "a kernel without a cap": (lambda c: {"gate_soft_cap": 15.0, "kernel": "metal"}, ValueError, "^gate_soft_cap: "),
    "unknown keyword": (lambda c: {"chunk_size": 64}, TypeError, "'chunk_size'"),
    "unknown kernel": (lambda c: {"kernel": "fuse"}, ValueError, "Did you mean 'fused'"),
    "a sequence kernel": (lambda c: {"kernel": "chunkwise--fused"}, ValueError, "chunkwise--fused"),
    "unknown gate": (lambda c: {"gate": "tanh"}, ValueError, "^gate: "),
    "normalize with the exp gate": (lambda c: {"normalize": False}, ValueError, "^normalize: "),
    "in_place and a gradient": (lambda c: {"in_place": True, "q": c["q"].requires_grad_()}, ValueError, "^in_place: "),
    "in_place and half states": (lambda c: {"in_place": True, "c": c["c"].half()}, ValueError, "^in_place: .*c"),
    "in_place and a strided state": (
        lambda c: {"in_place": True, "n": without_unit_stride(c["n"])},
        ValueError,
        "^in_place: .*n",
    ),
}


@pytest.mark.parametrize("case", SEQUENCE)
def test_sequence(case: str) -> None:
    change, error, words = SEQUENCE[case]
    call = sequence_call()
    with pytest.raises(error, match=words):
        mlstm_interface(**(call | change(call)))


@pytest.mark.parametrize("case", STATES)
def test_initial_states(case: str) -> None:
    change, error, words = STATES[case]
    call = sequence_call(states=True)
    with pytest.raises(error, match=words):
        mlstm_interface(**(call | change(call)))


@pytest.mark.parametrize("case", STEP)
def test_step(case: str) -> None:
    change, error, words = STEP[case]
    call = step_call()
    with pytest.raises(error, match=words):
        mlstm_step_interface(**(call | change(call)))


@pytest.mark.parametrize(
    "kernel", ["chunkwise--native_autograd", "parallel--native_custbw", "native_sequence__native", "fused"]
)
@pytest.mark.parametrize("case", [case for case in SEQUENCE if "kernel" not in case and "without" not in case])
def test_every_kind_of_kernel_says_the_same(case: str, kernel: str) -> None:
    change, error, words = SEQUENCE[case]
    call = sequence_call()
    wrong = change(call)
    if case == "a device without a kernel" and kernel != "fused":
        return  # plain torch runs there
    with pytest.raises(error, match=words):
        mlstm_interface(**({"kernel": kernel} | call | wrong))


def test_the_good_calls_are_good() -> None:
    call = sequence_call(states=True)
    h, _ = mlstm_interface(**call, return_last_states=True)
    assert h.shape == (B, NH, S, DHV)
    h, _ = mlstm_step_interface(**step_call())
    assert h.shape == (B, NH, DHV)


# ---- the ops themselves, called past the checks in Python


def op_arguments(op: str) -> dict[str, Any]:
    call = sequence_call(states=True)
    c, n, m = (call.pop(f"{x}_initial") for x in "cnm")
    flags: dict[str, Any] = {"sigmoid_gate": False, "normalize": True, "eps": 1e-6, "chunk_size": 4, "bshd": False}
    if op.startswith("mlstm_step"):
        return step_call() | {name: flags[name] for name in ("sigmoid_gate", "normalize", "eps")}
    call |= {"c_initial": c, "n_initial": n, "m_initial": m, "cu_seqlens": None}
    if op.startswith("mlstm_backward"):
        call |= {"h": torch.randn(B, NH, S, DHV), "l": torch.randn(B, NH, S), "dh": torch.randn(B, NH, S, DHV)}
        call |= {"dc_last": c, "dn_last": n, "dm_last": m, "normalizer_grad": True}
    if op == "mlstm_sequence":
        del flags["chunk_size"]
    return call | flags


OPS = (
    "mlstm_chunkwise",
    "mlstm_chunkwise_states",
    "mlstm_sequence",
    "mlstm_backward",
    "mlstm_backward_states",
    "mlstm_step",
    "mlstm_step_",
)


@pytest.mark.parametrize("op", OPS)
def test_ops_refuse_wrong_tensors(op: str) -> None:
    function, good = getattr(torch.ops.xlstm_hip, op), op_arguments(op)
    function(**good)
    for name, x in good.items():
        if not isinstance(x, Tensor):
            continue
        wrong = {"one token or feature less": x[..., :-1].contiguous(), "an axis more": x[None], "integers": x.long()}
        if name == "v":
            del wrong["one token or feature less"]  # another DHHV: then c is at fault, below
        for label, y in wrong.items():
            with pytest.raises(RuntimeError, match="expected"):
                function(**(good | {name: y}))
                pytest.fail(f"{op} took {name} with {label}")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_ops_refuse_strided_features(op: str, name: str) -> None:
    good = op_arguments(op)
    with pytest.raises(RuntimeError, match=f"{name}: expected the last dimension to be contiguous"):
        getattr(torch.ops.xlstm_hip, op)(**(good | {name: without_unit_stride(good[name])}))


@pytest.mark.parametrize("op", [op for op in OPS if "step" not in op])
@pytest.mark.parametrize("ends", [[0, 4, 3, S], [0, 3, 3, S], [1, S], [0, S - 1], [0, S + 1], [0, -1, S], [0, 1 << 40]])
def test_ops_refuse_wrong_offsets(op: str, ends: list[int]) -> None:
    good = {n: x[:1].contiguous() if isinstance(x, Tensor) else x for n, x in op_arguments(op).items()}
    count = len(ends) - 1
    for name in good:
        if name.endswith(("_initial", "_last")):
            good[name] = good[name].repeat_interleave(count, 0)
    with pytest.raises(RuntimeError, match="cu_seqlens"):
        getattr(torch.ops.xlstm_hip, op)(**(good | {"cu_seqlens": torch.tensor(ends)}))


@pytest.mark.parametrize("op", ["mlstm_step", "mlstm_step_"])
def test_ops_refuse_wrong_caps(op: str) -> None:
    for cap in (-1.0, float("inf"), float("nan")):
        with pytest.raises(RuntimeError, match="gate_soft_cap: expected a finite number >= 0"):
            getattr(torch.ops.xlstm_hip, op)(**op_arguments(op), gate_soft_cap=cap)


@pytest.mark.parametrize("op", [op for op in OPS if "step" not in op])
def test_ops_refuse_wrong_numbers(op: str) -> None:
    function, good = getattr(torch.ops.xlstm_hip, op), op_arguments(op)
    empty = {n: x[:, :, :0] for n, x in good.items() if isinstance(x, Tensor) and x.dim() > 2 and x.shape[2] == S}
    for wrong in ({"eps": -1.0}, {"eps": float("nan")}, {"chunk_size": 0}, {"chunk_size": -5}, empty):
        if wrong.keys() <= good.keys():
            with pytest.raises(RuntimeError):
                function(**(good | wrong))
                pytest.fail(f"{op} took {wrong}")


# ---- what a GPU takes, said without one


def test_float64_on_a_gpu() -> None:
    with FakeTensorMode():
        for function, call in ((mlstm_chunkwise_fused, sequence_call()), (mlstm_step_fused, step_call())):
            wide = {name: torch.empty(x.shape, dtype=torch.float64, device="cuda") for name, x in call.items()}
            with pytest.raises(TypeError, match="^q: expected float32, bfloat16 or float16 on a GPU"):
                function(**wide)


def test_the_registry_knows_what_a_gpu_takes() -> None:
    info = replace(kernel_info("chunkwise--fused"), devices=("cpu", "cuda"), gpu_dtypes=checks.GPU_DTYPES)
    with FakeTensorMode():
        q = torch.empty(1, 1, 1, 1, device="cuda", dtype=torch.float64)
        with pytest.raises(TypeError, match=r"^q: .*float32.*on a GPU, got torch\.float64"):
            check_kernel_accepts(info, q, False)
        check_kernel_accepts(info, q.float(), False)
    check_kernel_accepts(info, torch.empty(1, 1, 1, 1, dtype=torch.float64), False)


def test_offsets_on_a_gpu_are_not_read() -> None:
    """Their shape, dtype and device are looked at, no value: fake tensors have none."""
    with FakeTensorMode():
        call = {name: torch.empty((1, *x.shape[1:]), device="cuda") for name, x in sequence_call().items()}
        ends = torch.empty(3, dtype=torch.int32, device="cuda")
        h, (c, _, _) = mlstm_chunkwise_fused(**call, cu_seqlens=ends, return_last_states=True)
        assert h.shape == call["v"].shape and c.shape == (2, NH, DQK, DHV)
        with pytest.raises(ValueError, match="^cu_seqlens: expected device cuda:0 as q has, got cpu"):
            mlstm_chunkwise_fused(**call, cu_seqlens=torch.empty(3, dtype=torch.int32))


@pytest.mark.parametrize("gate", ["exp", "sigmoid"])
def test_normalize_is_what_the_exp_gate_does_anyway(gate: str) -> None:
    call = {name: torch.randn(1, 2, 5, 4) for name in "qkv"} | {name: torch.randn(1, 2, 5) for name in "if"}
    assert torch.equal(mlstm_interface(**call, gate=gate, normalize=True), mlstm_interface(**call, gate=gate))
    states = {"c": torch.zeros(1, 2, 4, 4), "n": torch.zeros(1, 2, 4), "m": torch.zeros(1, 2, 1)}
    token = {name: x[:, :, 0] if x.dim() == 4 else x[:, :, :1] for name, x in call.items()} | states
    h, _ = mlstm_step_interface(**token, gate=gate, normalize=True)
    assert torch.equal(h, mlstm_step_interface(**token, gate=gate)[0])
