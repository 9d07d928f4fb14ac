# SPDX-License-Identifier: Apache-2.0
"""Device facts, from stand-ins for the property objects that torch hands out."""

from __future__ import annotations

import dataclasses
import platform
import types

import pytest
import torch

from xlstm_hip._core import device
from xlstm_hip._core.device import device_facts, is_amd_gpu, is_mi300x

GB = 1 << 30


def amd(name: str, gcn: str, units: int, memory_gb: int, wave: int = 64) -> types.SimpleNamespace:
    """As a ROCm build of torch reports it."""
    return types.SimpleNamespace(
        name=name,
        gcnArchName=gcn,
        multi_processor_count=units,
        shared_memory_per_block=64 << 10,
        warp_size=wave,
        total_memory=memory_gb * GB,
        major=9,
        minor=4,
    )


MI300X = amd("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 192)
MI300X_VF = amd("AMD Instinct MI300X VF", "gfx942:sramecc+:xnack-", 304, 192)
MI300X_PARTITION = amd("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 38, 24)
MI300X_NAMELESS = amd("AMD Radeon Graphics", "gfx942:sramecc+:xnack-", 304, 192)
MI300A = amd("AMD Instinct MI300A", "gfx942:sramecc+:xnack-", 228, 128)
MI308X = amd("AMD Instinct MI308X", "gfx942:sramecc+:xnack-", 80, 192)
MI325X = amd("AMD Instinct MI325X", "gfx942:sramecc+:xnack-", 304, 256)
MI325X_NAMELESS = amd("AMD Radeon Graphics", "gfx942:sramecc+:xnack-", 304, 256)
MI250X = amd("AMD Instinct MI250X", "gfx90a:sramecc+:xnack-", 110, 64)
RX7900 = amd("AMD Radeon RX 7900 XTX", "gfx1100", 48, 24, wave=32)
# A CUDA build of torch reports the name where ROCm reports the architecture.
H200 = types.SimpleNamespace(
    name="NVIDIA H200",
    gcnArchName="NVIDIA H200",
    multi_processor_count=132,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    warp_size=32,
    total_memory=141 * GB,
    major=9,
    minor=0,
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    def present(*properties: types.SimpleNamespace) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(properties))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])

    return present


@pytest.mark.parametrize(
    ("properties", "kind", "arch", "units", "lds_kb", "wave", "features"),
    [
        (MI300X, "amd", "gfx942", 304, 64, 64, ("sramecc+", "xnack-")),
        (MI250X, "amd", "gfx90a", 110, 64, 64, ("sramecc+", "xnack-")),
        (RX7900, "amd", "gfx1100", 48, 64, 32, ()),
        (H200, "nvidia", "sm_90", 132, 227, 32, ()),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_gpu_facts(gpus, properties, kind, arch, units, lds_kb, wave, features) -> None:
    gpus(properties)
    facts = device_facts()
    assert facts == device.DeviceFacts(
        properties.name, kind, arch, units, lds_kb << 10, wave, properties.total_memory, features
    )
    assert is_amd_gpu() == (kind == "amd")
    assert facts.is_experimental == arch.startswith("gfx11")
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.arch = "gfx000"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (MI300X, True),
        (MI300X_VF, True),
        (MI300X_PARTITION, True),
        (MI300X_NAMELESS, True),
        (MI300A, False),
        (MI308X, False),
        (MI325X, False),
        (MI325X_NAMELESS, False),
        (MI250X, False),
        (RX7900, False),
        (H200, False),
    ],
)
def test_which_is_an_mi300x(gpus, properties, expected) -> None:
    gpus(properties)
    assert is_mi300x() is expected


def test_devices_are_told_apart(gpus) -> None:
    gpus(MI300X, RX7900)
    assert device_facts().arch == device_facts("cuda").arch == device_facts("cuda:0").arch == "gfx942"
    assert device_facts(torch.device("cuda", 1)).arch == device_facts(1).arch == "gfx1100"
    assert is_mi300x("cuda:0") and not is_mi300x("cuda:1") and is_amd_gpu("cuda:1")
    assert device_facts("cpu").kind == "cpu" and not is_amd_gpu("cpu")


def test_no_gpu_is_no_error(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    facts = device_facts()
    assert facts == device_facts("cpu")
    assert (facts.kind, facts.arch, facts.wave_size, facts.lds_bytes) == ("cpu", platform.machine(), 1, 0)
    assert facts.compute_units >= 1 and facts.memory_bytes > GB // 4 and facts.name
    assert not is_amd_gpu() and not is_mi300x()


def test_apple(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M3 Max")
    monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: 40)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 96 * GB)
    facts = device_facts()
    assert (facts.kind, facts.name, facts.compute_units, facts.wave_size) == ("apple", "Apple M3 Max", 40, 32)
    assert facts.memory_bytes == 96 * GB


def test_the_environment_has_no_say(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(H200)
    for name in ("ROCM_PATH", "HIP_PATH", "HIP_PLATFORM", "PYTORCH_ROCM_ARCH", "FORCE_AMD_DETECTION"):
        monkeypatch.setenv(name, "gfx942")
    assert not is_amd_gpu()


def test_a_device_that_is_not_there(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device: cuda:0 was asked for, but torch sees no GPU"):
        device_facts("cuda:0")
    with pytest.raises(ValueError, match="device: mps was asked for, but torch sees no Apple GPU"):
        device_facts("mps")
    with pytest.raises(ValueError, match="device: expected a cuda .ROCm included., mps or cpu device, got 'meta'"):
        device_facts("meta")


def test_a_system_without_linux_files(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus()

    def missing(self) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(device.Path, "read_text", missing)
    monkeypatch.delattr(device.os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(device.os, "sysconf", raising=False)
    facts = device_facts("cpu")
    assert facts.name and facts.compute_units >= 1 and facts.memory_bytes == 0
