# SPDX-License-Identifier: Apache-2.0
"""The facts in a result file about the machine and the packages: also of those that pip does not know."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from xlstm_hip._core.device import DeviceFacts
from xlstm_hip.bench import environment as environments
from xlstm_hip.bench.environment import environment, first_driver_number, gpu_facts
from xlstm_hip.bench.trial import add_peers


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of --peers with unpacked packages, which fail on import: their version is to be had without one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(environments, "PACKAGES", ("torch", "peer-dashed", "peer_unversioned", "peer_absent"))
    monkeypatch.setattr(environments, "MODULES", {"peer-dashed": "peer_short"})
    for name, text in (
        ("peer_short", "# x\n__version__ = '9.8.7rc1'\nraise RuntimeError"),
        ("peer_unversioned", "raise RuntimeError"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    return tmp_path


def test_packages_of_a_folder_have_versions(peers: Path) -> None:
    before = environment()["packages"]
    assert before["torch"] and before["peer-dashed"] is before["peer_unversioned"] is before["peer_absent"] is None
    add_peers(peers)
    found = environment()["packages"]
    assert found["peer-dashed"] == "9.8.7rc1" and found["peer_unversioned"] == "of unknown version"
    assert found["peer_absent"] is None and found["torch"] == before["torch"]


def test_a_stand_in_is_no_package(peers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_peers(peers)
    stand_in = ModuleType("peer_short")
    stand_in.__xlstm_hip__ = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peer_short", stand_in)
    assert environment()["packages"]["peer-dashed"] is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\n", "535.183.06"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x@y)  Thu Jan 23\n"
            "GCC version:  gcc version 13.3.0\n",
            "570.86.15",
        ),
        ("6.10.5\n", "6.10.5"),
        ("570.124.06\n570.124.06\n", "570.124.06"),
        ("No devices were found\n", None),
    ],
)
def test_the_drivers_number(text: str, number: str | None) -> None:
    assert first_driver_number(text) == number


def test_a_gpus_facts_name_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = DeviceFacts("GPU", "nvidia", "sm_90", 132, 0, 32, 1)
    monkeypatch.setattr(environments, "device_facts", lambda device: facts)
    monkeypatch.setattr(environments.torch.version, "hip", None)
    monkeypatch.setattr(environments, "DRIVER_FILES", {"nvidia": tmp_path / "version"})
    monkeypatch.setattr(environments.shutil, "which", lambda name: None)
    assert gpu_facts("cuda:0")["driver"] is None
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26\n")
    assert gpu_facts("cuda:0")["driver"] == "535.183.06"
    (tmp_path / "version").unlink()
    monkeypatch.setattr(environments.shutil, "which", lambda name: sys.executable)
    monkeypatch.setattr(environments, "ASK_NVIDIA", ("-c", "print('570.124.06')"))
    assert gpu_facts("cuda:0")["driver"] == "570.124.06"
