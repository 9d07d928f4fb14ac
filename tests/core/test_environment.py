# SPDX-License-Identifier: Apache-2.0
"""XLSTM_HIP_BACKEND, XLSTM_HIP_LOGS and XLSTM_HIP_RANGES: what they ask for happens, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import xlstm_hip
from xlstm_hip import attention, layers, mlstm_interface, mlstm_step_interface
from xlstm_hip._core import environment, logging, ops
from xlstm_hip.cli import main
from xlstm_hip.mlstm.describe import native
from xlstm_hip.models import xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.reference import layers as plain_layers

DIM = 32


def draw(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype).requires_grad_(grad)


def library_ops(call: Callable[[], Any]) -> set[str]:
    """The library's ops that a call runs, as every profiler of torch sees them."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    names = {event.name for event in seen.events()}
    return {name.removeprefix("xlstm_hip::") for name in names if name.startswith("xlstm_hip::")}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")
    yield monkeypatch


def tokens(length: int = 40, grad: bool = False, gates: int | None = None) -> list[Tensor]:
    q, k, v = (draw(1, 2, length, d, grad=grad) for d in (16, 16, 24))
    return [q, k, v, *(draw(1, 2, length, grad=grad) for _ in range(2))]


def mlstm(**options: Any) -> Any:
    return mlstm_interface(*tokens(), **options)


def mlstm_gradients(**options: Any) -> list[Tensor]:
    inputs = tokens(grad=True)
    h, (c, n, m) = mlstm_interface(*inputs, return_last_states=True, **options)
    return list(torch.autograd.grad((h.sum() + c.sum() + n.sum() + m.sum()), inputs))


def step(**options: Any) -> Any:
    q, k, v = (draw(1, 2, d) for d in (16, 16, 24))
    gates, states = draw(1, 2, 1), (draw(1, 2, 16, 24), draw(1, 2, 16).abs(), draw(1, 2, 1))
    return mlstm_step_interface(q, k, v, gates, gates + 1, *states, **options)


def attend(grad: bool = False, **options: Any) -> Any:
    q = draw(2, 9, 4, DIM, grad=grad)
    k, v = (draw(2, 12, 2, d, grad=grad) for d in (DIM, DIM))
    out = attention.flash_attn_func(q, k, v, causal=True, **options)
    return torch.autograd.grad(out.sum(), (q, k, v)) if grad else out


def decode() -> Any:
    cache = [draw(3, 20, 2, DIM) for _ in range(2)]
    new = [draw(3, 2, 2, DIM) for _ in range(2)]
    angles = draw(20, 8)
    out = attention.flash_attn_with_kvcache(
        draw(3, 2, 4, DIM), *cache, *new, angles.cos(), angles.sin(), cache_seqlens=7, causal=True
    )
    return out, *cache


def mla() -> Any:
    table, used = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([5, 17], dtype=torch.int32)
    return attention.flash_mla_with_kvcache(draw(2, 1, 4, 576), draw(4, 16, 1, 576), table, used, 512, causal=True)


def combine() -> Any:
    return attention.flash_attn_combine(draw(3, 1, 5, 2, 8), draw(3, 1, 5, 2))


CALLS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "chunkwise": (mlstm, {"mlstm_chunkwise"}),
    "states": (lambda: mlstm(return_last_states=True), {"mlstm_chunkwise_states"}),
    "sigmoid": (lambda: mlstm(gate="sigmoid", normalize=False), {"mlstm_chunkwise"}),
    "sequence": (lambda: mlstm(kernel="fused"), {"mlstm_sequence"}),
    "packed": (lambda: mlstm(cu_seqlens=torch.tensor([0, 7, 40]), return_last_states=True), {"mlstm_chunkwise_states"}),
    "triton's name": (lambda: mlstm(kernel="chunkwise--triton_xl_chunk"), {"mlstm_chunkwise"}),
    "gradients": (mlstm_gradients, {"mlstm_chunkwise_states", "mlstm_backward"}),
    "constant normaliser": (
        lambda: mlstm_gradients(normalizer_grad=False), {"mlstm_chunkwise_states", "mlstm_backward"}
    ),
    "step": (step, {"mlstm_step"}),
    "sigmoid step": (lambda: step(gate="sigmoid", normalize=False), {"mlstm_step"}),
    "step in place": (lambda: step(in_place=True), {"mlstm_step_"}),
    "attention": (attend, {"attention_forward"}),
    "attention's gradients": (lambda: attend(grad=True), {"attention_forward", "attention_backward"}),
    "cache": (decode, {"attention_append_", "attention_rotary", "attention_forward"}),
    "mla": (mla, {"attention_forward"}),
    "combine": (combine, {"attention_combine"}),
    "rms_norm": (lambda: layers.rms_norm(draw(3, 8), draw(8)), {"rms_norm"}),
    "add_rms_norm": (lambda: layers.add_rms_norm(draw(3, 8), draw(3, 8), draw(8)), {"add_rms_norm"}),
    "head_norm_gate": (lambda: layers.head_norm_gate(draw(3, 2, 4), draw(3, 8), draw(8)), {"head_norm_gate"}),
    "soft_cap": (lambda: layers.soft_cap(draw(3, 8), 2.0), {"soft_cap"}),
    "swiglu": (lambda: layers.swiglu(draw(3, 8), draw(3, 8) + 1), {"swiglu"}),
    "swiglu_fused": (lambda: layers.swiglu_fused(draw(3, 8)), {"swiglu_fused"}),
    "cross entropy": (
        lambda: layers.capped_cross_entropy(draw(3, 8), torch.tensor([1, 2, -100]), 5.0), {"cross_entropy"}
    ),
}  # fmt: skip


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [x for part in result for x in flat(part)]


@pytest.mark.parametrize("name", CALLS)
def test_reference_forces_plain_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op of the usual path is seen by torch's profiler; of the forced one none is, and it says the same."""
    call, used = CALLS[name]
    assert library_ops(call) == used
    usual = flat(call())
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")
    assert library_ops(call) == set()
    for plain, fused in zip(flat(call()), usual, strict=True):
        assert plain.dtype == fused.dtype
        torch.testing.assert_close(plain, fused, rtol=1e-4, atol=1e-5)


def test_layouts_under_the_reference(reference: pytest.MonkeyPatch) -> None:
    turned = [x.transpose(1, 2).contiguous() for x in tokens()]
    torch.testing.assert_close(mlstm_interface(*turned, layout="bshd").transpose(1, 2), mlstm())
    plain = mlstm(kernel="chunkwise--native_autograd")
    torch.testing.assert_close(mlstm(), plain, rtol=0, atol=0)
    x, w = draw(3, 8), draw(8)
    torch.testing.assert_close(layers.rms_norm(x, w), plain_layers.rms_norm(x, w, None, 1e-6), rtol=0, atol=0)


GRAPHS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "mlstm": (mlstm_interface, tokens()),
    "attention": (attention.flash_attn_func, [draw(1, 9, 2, DIM) for _ in range(3)]),
    "rms_norm": (layers.rms_norm, [draw(3, 8), draw(8)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_reference_in_a_compiled_graph(name: str, reference: pytest.MonkeyPatch) -> None:
    """One graph, which has the plain path and keeps it."""
    torch._dynamo.reset()
    function, inputs = GRAPHS[name]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    reference.delenv("XLSTM_HIP_BACKEND")
    assert library_ops(lambda: compiled(*inputs)) == set()
    torch._dynamo.reset()


def test_in_place_keeps_its_rules_under_the_reference(reference: pytest.MonkeyPatch) -> None:
    q, v, gate = draw(1, 2, 16), draw(1, 2, 24), draw(1, 2, 1)
    c, n, m = torch.zeros(1, 2, 16, 24), torch.zeros(1, 2, 16), torch.zeros(1, 2, 1)
    _, states = mlstm_step_interface(q, q, v, gate, gate, c, n, m, in_place=True)
    assert all(x is y for x, y in zip(states, (c, n, m), strict=True)) and c.abs().sum() > 0
    with pytest.raises(ValueError, match="in_place: expected c to be contiguous"):
        mlstm_step_interface(q, q, v, gate, gate, c.half(), n, m, in_place=True)


def test_a_model_under_the_reference(reference: pytest.MonkeyPatch) -> None:
    model = xLSTMLarge(
        xLSTMLargeConfig(
            embedding_dim=32, num_heads=2, num_blocks=2, vocab_size=50, mode="inference", return_last_states=True
        )
    ).eval()

    def run() -> None:
        with torch.no_grad():
            _, state = model(torch.tensor([[1, 2, 3]]), None)
            model.step(torch.tensor([4]), state)

    assert library_ops(run) == set()
    reference.delenv("XLSTM_HIP_BACKEND")
    assert "decode_step_" in library_ops(run)


@pytest.mark.parametrize("value", ["plain", "REFERENCE"])
def test_an_unknown_backend(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLSTM_HIP_BACKEND", value)
    for call in (mlstm, attend, CALLS["rms_norm"][0]):
        with pytest.raises(ValueError, match=f"XLSTM_HIP_BACKEND: expected reference, or nothing, got '{value}'"):
            call()


def test_names_of_logs() -> None:
    assert environment.logs_of("dispatch, build,") == {"dispatch", "build"}
    assert environment.logs_of("") == set()
    with pytest.raises(ValueError, match="XLSTM_HIP_LOGS: expected any of dispatch, plan, build, got 'all', 'x'"):
        environment.logs_of("x,plan,all")
    with pytest.raises(ValueError, match="XLSTM_HIP_RANGES: expected 0 or 1, got 'yes'"):
        environment.ranges_of("yes")


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("XLSTM_HIP_")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**surroundings, "PYTHONPATH": path, **variables}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip


LOGGED = """
import torch, xlstm_hip
from xlstm_hip import attention, layers
from xlstm_hip.cli import main
torch.set_num_threads(2)
x = torch.randn(2, 3, 100, 16, dtype=torch.bfloat16)
g = torch.randn(2, 3, 100)
xlstm_hip.mlstm_interface(x, x, x, g, g)
torch.compile(xlstm_hip.mlstm_interface, backend="eager", fullgraph=True)(x, x, x, g, g)
y = torch.randn(1, 5, 2, 16)
y.requires_grad_()
attention.flash_attn_func(y, y, y).sum().backward()
layers.rms_norm(torch.randn(2, 8), torch.ones(8))
main(["plan", "--batch", "2", "--heads", "3", "--length", "100"])
main(["plan", "--op", "attention", "--heads", "2", "--length", "5"])
"""


def test_logs() -> None:
    done = run_python(LOGGED, XLSTM_HIP_LOGS="dispatch,plan,build")
    assert done.returncode == 0, done.stderr
    message = [
        line.removeprefix("[xlstm_hip] ") for line in done.stderr.splitlines() if line.startswith("[xlstm_hip] ")
    ]
    isa = native().cpu_isa()
    assert re.fullmatch(
        rf"build: {re.escape(xlstm_hip.__version__)} \(.*\), .*torch .*CPU kernels: {isa} here", message[0]
    )
    shape = "(2, 3, 100, 16)"
    assert message[1] == (
        "dispatch: mlstm_interface: chunkwise kernel chunkwise--fused; "
        f"q {shape}, k {shape}, v {shape}; bfloat16 on cpu"
    )
    assert message[2] == f"dispatch: mlstm_chunkwise: C++, {isa}; q {shape}, k {shape}, v {shape}; bfloat16 on cpu"
    plans = [line.removeprefix("plan: ").split(": ", 1) for line in message if line.startswith("plan: ")]
    assert [op for op, _ in plans if "mlstm" not in op] == ["attention_forward", "attention_backward"]
    assert [text for _, text in plans] == done.stdout.splitlines()
    assert any(line.startswith(f"dispatch: rms_norm: C++, {isa}; x (2, 8)") for line in message)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plans_of_attention(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--op", "attention", "--heads", "8", "--heads-k", "2", "--length", "4096")
    on_cpu = planned(capsys, *shape, "--queries", "64", "--threads", "2", "--splits", "3")
    plan = native().plan_attention_cpu(1, 2, 256, 4096, 2, 0, 3)
    assert on_cpu == {"forward": plan, "backward": native().plan_attention_backward_cpu(1, 2, 256, 2)}
    mi300x = next(facts for facts in native().known_devices() if facts["name"] == "MI300X")
    many = native().plan_attention_gpu("MI300X", 1, 8, 2, 4096, 4096, 128, 128, 2)
    gradients = native().plan_attention_backward_gpu("MI300X", 1, 8, 2, 4096, 4096, 128, 128, 2, panels=True)
    assert planned(capsys, *shape, "--device", "mi300x") == {
        "forward": many | {"head_dims": list(many["head_dims"])},
        "backward": gradients | {"head_dims": list(gradients["head_dims"])},
    }
    assert planned(capsys, *shape, "--device", "mi300x", "--queries", "1")["forward"]["few_rows"]
    one = native().plan_mla_gpu("gfx942", mi300x["compute_units"], mi300x["lds_bytes"], 64, 1, 128, 8192)
    assert planned(capsys, "--op", "mla", "--device", "MI300X", "--batch", "64", "--heads", "128") == one
    assert "backward" not in planned(capsys, "--op", "mla", "--heads", "128")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--op attention --heads 8 --heads-k 3", "--heads-k: expected a divisor of --heads 8, got 3"),
        ("--op attention --segments 3", "--segments: expected none with --op attention, got 3"),
        ("--op attention --chunk-size 3", "--chunk-size: expected none with --op attention, got 3"),
        ("--op mla --block-size 64", "--block-size: expected none with --op mla, got 64"),
        ("--op mla --device MI300X --dqk 128", "--dqk, --dhv: expected one of"),
        ("--op mla --device MI300X --dtype float32", "--dtype: expected bfloat16 or float16 with --op mla"),
        ("--splits 3", "--splits: expected none with --op mlstm, got 3"),
        ("--dqk 3", "--dqk: expected none on a CPU, got 3"),
        ("--op attention --dtype float32", "--dtype: expected none on a CPU"),
        ("--device MI300X --threads 3", "--threads: expected none on a GPU, got 3"),
    ],
)
def test_options_of_plan_that_change_nothing(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments.split()]) != 0
    assert message in capsys.readouterr().err


def test_logs_of_the_reference() -> None:
    done = run_python(LOGGED, XLSTM_HIP_LOGS="dispatch", XLSTM_HIP_BACKEND="reference")
    assert done.returncode == 0, done.stderr
    chosen = [line.split("; ")[0] for line in done.stderr.splitlines() if line.startswith("[xlstm_hip]")]
    forced = "plain torch, for XLSTM_HIP_BACKEND=reference"
    assert f"[xlstm_hip] dispatch: chunkwise--fused: {forced}" in chosen
    assert f"[xlstm_hip] dispatch: attention: {forced}" in chosen
    assert "[xlstm_hip] dispatch: rms_norm: plain torch" in chosen
    assert not any("C++" in line for line in chosen)


def test_an_unknown_log_is_an_error_at_import() -> None:
    done = run_python("import xlstm_hip", XLSTM_HIP_LOGS="dispatch,kernels")
    assert done.returncode != 0
    assert "XLSTM_HIP_LOGS: expected any of dispatch, plan, build, got 'kernels'" in done.stderr


@pytest.mark.skipif(bool({"XLSTM_HIP_LOGS", "XLSTM_HIP_RANGES"} & set(os.environ)), reason="something is asked for")
def test_nothing_is_in_the_way_where_nothing_is_asked_for() -> None:
    assert ops.OPS.rms_norm is torch.ops.xlstm_hip.rms_norm.default
    assert not logging.logger.handlers
    assert run_python("import xlstm_hip").stderr == ""


def test_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after the op, closed after an error too. torch.cuda.nvtx is there on GPUs alone: recorded here."""
    names: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", names.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: names.append("end"))
    monkeypatch.setattr(logging, "RANGES", True)
    watched = logging.watched(torch.ops.xlstm_hip)
    x = draw(2, 8)
    torch.testing.assert_close(watched.soft_cap(x, 2.0), layers.soft_cap(x, 2.0))
    assert names == ["xlstm_hip::soft_cap", "end"]
    with pytest.raises(RuntimeError):
        watched.soft_cap(x, -1.0)
    assert names[2:] == ["xlstm_hip::soft_cap", "end"]


@pytest.mark.skipif(bool(torch.version.cuda or torch.version.hip), reason="torch has ranges")
def test_ranges_without_a_gpu_build() -> None:
    """Refused at import, by the variable's name, rather than in every call by torch's own words."""
    done = run_python("import xlstm_hip", XLSTM_HIP_RANGES="1")
    assert done.returncode != 0 and "RuntimeError: XLSTM_HIP_RANGES: expected 0 or nothing" in done.stderr
    assert run_python("import xlstm_hip", XLSTM_HIP_RANGES="0").returncode == 0


def test_every_op_can_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op call in the package goes through ops.OPS, by names that the schema has."""
    monkeypatch.setattr(logging, "RANGES", True)
    watched = logging.watched(torch.ops.xlstm_hip)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("xlstm_hip::"):
            op = getattr(watched, name.split("::")[1])
            assert op.arguments and getattr(watched, op.name) is op
