# SPDX-License-Identifier: Apache-2.0
"""describe(): every kernel in a table, with rich and without."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import io
import types

import pytest
import torch

from xlstm_hip._core import device
from xlstm_hip._version import __version__
from xlstm_hip.mlstm import registry

module = importlib.import_module("xlstm_hip.mlstm.describe")  # the package's attribute of that name is the function


def lines_of(text: str) -> tuple[dict[str, str], list[str]]:
    header, _, table = text.partition("\n\n")
    facts = dict(line.split(":", 1) for line in header.splitlines())
    return {label: value.strip() for label, value in facts.items()}, table.splitlines()


@pytest.fixture(params=["rich", "plain"])
def printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    find = importlib.util.find_spec
    if request.param == "rich":
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
    out = io.StringIO()
    assert module.describe(out) is None
    return out.getvalue()


def test_every_kernel_is_there(printed: str) -> None:
    facts, table = lines_of(printed)
    assert list(facts) == ["xlstm_hip", "torch", "op library", "CPU kernels", "GPU kernels", "CPU", "GPU"]
    assert facts["xlstm_hip"] == __version__ and facts["torch"] == torch.__version__
    assert "_xlstm_hip_ops" in facts["op library"]
    assert facts["CPU kernels"] in ("amx", "avx512bf16", "avx512", "avx2", "portable")
    assert table[0].split() == list(module.COLUMNS)
    kernels = registry.all_kernels()
    assert len(table) == len(kernels) + 1
    for line, info in zip(table[1:], kernels, strict=True):
        name, kind, gate = line.split()[:3]
        assert (name, kind, gate) == (info.name, info.kind, info.gate)
        assert info.gradient in line and line.rstrip().endswith(info.note)
    starts = {line.index(info.kind, 30) for line, info in zip(table[1:], kernels, strict=True)}
    assert starts == {table[0].index("kind")}, "the columns are aligned"


def test_a_users_kernel_is_there_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register_mlstm_kernel(
        "own",
        lambda: None,
        kind="step",
        devices=("cpu", "xpu"),
        dtypes=(torch.float16,),
        gradient="none",
        note="mine",
    )
    module.describe()
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("own "))
    assert line.split() == ["own", "step", "exp", "cpu", "xpu", "fp16", "none", "yes", "mine"]


def test_dtypes_that_a_gpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    info = registry.KernelInfo("own", "step", lambda: None, ("cpu", "cuda"), (torch.float16, torch.float64), "none")
    assert module._row(info)[4] == "fp16 fp64"
    info = dataclasses.replace(info, gpu_dtypes=(torch.float16,))
    assert module._row(info)[4] == "fp16 fp64(cpu)"


@pytest.mark.parametrize(
    "devices, facts, expected",
    [
        (("cpu", "cuda"), {"gpu": "HIP", "gpu_archs": ["gfx90a", "gfx942"], "gpu_note": ""}, "HIP gfx90a gfx942"),
        (("cpu",), {"gpu": "OFF", "gpu_archs": [], "gpu_note": "torch is a CPU build"}, "none: torch is a CPU build"),
        (("cpu", "cuda"), None, "built"),
        (("cpu",), None, "none"),
    ],
)
def test_gpu_kernels_in_words(
    devices: tuple[str, ...], facts: dict | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = None if facts is None else types.SimpleNamespace(build_facts=lambda: facts)
    monkeypatch.setattr(module, "native", lambda: native)
    monkeypatch.setattr("xlstm_hip._core.ops.devices_with_kernels", lambda: devices)
    assert module._gpu_kernels() == expected


def test_devices_in_words() -> None:
    gpu = device.DeviceFacts("AMD Instinct MI300X", "amd", "gfx942", 304, 64 << 10, 64, 192 << 30)
    assert module._device_text(gpu) == "AMD Instinct MI300X, gfx942, 304 CUs, 64 KB LDS, wave 64, 192 GB"
    rdna = device.DeviceFacts("RX 7900 XTX", "amd", "gfx1100", 48, 64 << 10, 32, 24 << 30)
    assert module._device_text(rdna).endswith("24 GB, experimental: machine code never executed")
    cpu = device.DeviceFacts("AMD EPYC", "cpu", "x86_64", 2, 0, 1, 0)
    assert module._device_text(cpu) == "AMD EPYC, x86_64, 2 cores"
