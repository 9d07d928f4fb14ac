# SPDX-License-Identifier: Apache-2.0
"""get_optimal_kernel_config: the regimes, and that what they name can be run."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch

import xlstm_hip
from xlstm_hip._core import warn_once
from xlstm_hip._core.device import DeviceFacts
from xlstm_hip.mlstm import registry, select
from xlstm_hip.mlstm.backend import mLSTMBackend, mLSTMBackendConfig
from xlstm_hip.mlstm.select import get_optimal_kernel_config

KEYS = ["chunkwise_kernel", "sequence_kernel", "step_kernel"]


@pytest.mark.parametrize("regime", select.REGIMES)
@pytest.mark.parametrize("gate", ["exp", "sigmoid"])
@pytest.mark.parametrize(("batch_size", "seq_len", "head_dim"), [(1, 1, None), (2, 4096, 64), (64, 100, 256)])
def test_three_registered_names(regime: str, gate: str, batch_size: int, seq_len: int, head_dim: int | None) -> None:
    config = get_optimal_kernel_config(batch_size, seq_len, head_dim, regime=regime, device="cpu", gate=gate)
    assert list(config) == KEYS
    assert {registry.kernel_info(name, key.removesuffix("_kernel")).gate for key, name in config.items()} == {gate}
    x = torch.randn(1, 2, 9, 4)
    module = mLSTMBackend(mLSTMBackendConfig(**config, mode="inference"))
    h, _ = module(x, x, x, x[..., 0], x[..., 1])
    assert h.shape == x.shape


def test_published_regimes() -> None:
    stock = get_optimal_kernel_config(1, 8192, regime="stock")
    assert list(stock.values()) == ["chunkwise--triton_limit_chunk", "native_sequence__triton", "triton"]
    hybrid = get_optimal_kernel_config(1, 8192, regime="hybrid")
    assert list(hybrid.values()) == ["chunkwise--native_autograd", "native_sequence__triton", "native"]


@pytest.mark.parametrize(
    ("batch_size", "seq_len", "expected"),
    [
        (1, 1024, select.HYBRID),
        (2, 2048, select.HYBRID),
        (2, 1023, select.AMD),
        (3, 4096, select.AMD),
        (8, 16, select.AMD),
        (9, 16, select.NATIVE),
        (64, 8192, select.NATIVE),
    ],
)
def test_the_published_amd_rule(batch_size: int, seq_len: int, expected: tuple[str, ...]) -> None:
    assert tuple(get_optimal_kernel_config(batch_size, seq_len, regime="amd").values()) == expected


def test_the_guides_other_name() -> None:
    assert xlstm_hip.get_optimized_kernel_config is xlstm_hip.get_optimal_kernel_config


def test_auto_is_fused_where_the_library_has_kernels() -> None:
    assert tuple(get_optimal_kernel_config(1, 512, device="cpu").values()) == select.FUSED
    assert "mps" not in registry.kernel_info("chunkwise--fused").devices
    assert tuple(get_optimal_kernel_config(1, 512, device="mps").values()) == select.NATIVE
    if not torch.cuda.is_available():
        assert get_optimal_kernel_config(1, 512) == get_optimal_kernel_config(1, 512, device="cpu")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, got 0"),
        ({"batch_size": 1.5}, "batch_size: expected an integer >= 1, got 1.5"),
        ({"seq_len": -1}, "seq_len: expected an integer >= 1, got -1"),
        ({"head_dim": 0}, "head_dim: expected an integer >= 1, got 0"),
        ({"regime": "fast"}, "regime: expected one of 'auto', 'stock', 'amd', 'hybrid', got 'fast'"),
        ({"gate": "tanh"}, "gate: expected one of 'exp', 'sigmoid', got 'tanh'"),
    ],
)
def test_bad_arguments(arguments: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        get_optimal_kernel_config(**({"batch_size": 1, "seq_len": 16} | arguments))


def test_a_gpu_without_kernels_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(select, "_runs_on", lambda info, device: "*" in info.devices)
    monkeypatch.setattr(warn_once, "_warned", set())
    with pytest.warns(RuntimeWarning, match="the library has no kernels for a GPU.*plain torch.*reinstall.*doctor"):
        assert get_optimal_kernel_config(1, 64, device="cuda")["step_kernel"] == "native"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_optimal_kernel_config(1, 64, device="cuda")
        get_optimal_kernel_config(1, 64, device="cpu")


def test_a_head_dim_beyond_the_gpu_kernels_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_warned", set())
    with pytest.warns(RuntimeWarning, match="head dims above 512 run in plain torch on a GPU, got 1000"):
        get_optimal_kernel_config(1, 64, head_dim=1000, device="cuda")


def test_a_chip_whose_machine_code_never_ran_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rdna = DeviceFacts("RX 7900 XTX", "amd", "gfx1100", 48, 64 << 10, 32, 24 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(select, "_runs_on", lambda info, device: True)
    monkeypatch.setattr(select, "device_facts", lambda device: rdna)
    monkeypatch.setattr(warn_once, "_warned", set())
    with pytest.warns(RuntimeWarning, match="kernels for gfx1100 are experimental"):
        assert tuple(get_optimal_kernel_config(1, 64, device="cuda").values()) == select.FUSED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_optimal_kernel_config(1, 64, device="cuda")
        monkeypatch.setattr(select, "device_facts", lambda device: dataclasses.replace(rdna, arch="gfx942"))
        monkeypatch.setattr(warn_once, "_warned", set())
        get_optimal_kernel_config(1, 64, device="cuda")
