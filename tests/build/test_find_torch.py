# SPDX-License-Identifier: Apache-2.0
"""How the build finds torch, what it says when it cannot use it, and how many jobs it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import find_torch
import jobs

GIB = 1024**3


def plant_torch(site_packages: Path, version: str = "2.13.0+cpu", cuda=None, hip=None, complete: bool = True) -> Path:
    """A folder that looks like an installed torch to the build."""
    folder = site_packages / "torch"
    (folder / "include/torch/csrc/stable").mkdir(parents=True)
    (folder / "lib").mkdir()
    if complete:
        (folder / "lib/libtorch.so").touch()
    (folder / "version.py").write_text(
        "from typing import Optional\n\n"
        f"__version__ = {version!r}\ndebug = False\n"
        f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {hip!r}\n"
    )
    return folder


@pytest.fixture
def search_paths(tmp_path, monkeypatch):
    """Every place that is looked at, empty: name -> its package folder."""
    search_paths = {
        "purelib": tmp_path / "target/lib/python3.11/site-packages",
        "VIRTUAL_ENV": tmp_path / "venv/lib/python3.12/site-packages",
        "UV_PROJECT_ENVIRONMENT": tmp_path / "uv/lib/python3.12/site-packages",
        "importable": tmp_path / "overlay",
        "inherited": tmp_path / "base/lib/python3/dist-packages",
        "user": tmp_path / "user",
    }
    monkeypatch.delenv("TORCH_DIR", raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", str(tmp_path / "uv"))
    monkeypatch.setattr(find_torch.sysconfig, "get_path", lambda key: str(search_paths["purelib"]))
    monkeypatch.setattr(
        find_torch,
        "importable_folder",
        lambda: search_paths["importable"] if (search_paths["importable"] / "torch").exists() else None,
    )
    monkeypatch.setattr(find_torch.site, "getusersitepackages", lambda: str(search_paths["user"]))
    (tmp_path / "target").mkdir()
    (tmp_path / "target/pyvenv.cfg").write_text("include-system-site-packages = true\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "target"))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "base"))
    return search_paths


@pytest.mark.parametrize(
    "version, cuda, hip, kind",
    [
        ("2.13.0+cpu", None, None, "cpu"),
        ("2.11.0+cu130", "13.0", None, "cuda"),
        ("2.10.0+rocm7.1", None, "7.1.25424", "hip"),
        ("2.14.0a0+git1234", None, None, "cpu"),
    ],
)
def test_reads_what_torch_is(tmp_path, version, cuda, hip, kind):
    torch = find_torch.read_torch(plant_torch(tmp_path, version, cuda, hip))
    assert (torch.version, torch.gpu) == (version, kind)
    assert version in torch.text


def test_reads_the_torch_that_runs_these_tests():
    import torch

    found = find_torch.read_torch(Path(torch.__file__).parent)
    assert (found.version, found.cuda, found.hip) == (
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
    )


def test_looks_in_the_target_environment_first(search_paths):
    for name in reversed(search_paths):
        folder = plant_torch(search_paths[name])
        found = find_torch.find_torch()
        assert found.folder == folder.resolve(), f"torch in {name} should come before those below it"


def test_an_environment_that_inherits_nothing_does_not_see_the_torch_below_it(search_paths, tmp_path):
    (tmp_path / "target/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    plant_torch(search_paths["inherited"])
    assert find_torch.find_torch() is None


def test_torch_dir_comes_before_everything(search_paths, tmp_path, monkeypatch):
    plant_torch(search_paths["purelib"])
    named = plant_torch(tmp_path / "named", "2.12.0")
    monkeypatch.setenv("TORCH_DIR", str(named))
    assert find_torch.find_torch().version == "2.12.0"
    torch_dir = plant_torch(tmp_path / "given", "2.11.0")
    assert find_torch.find_torch(str(torch_dir)).version == "2.11.0"


def test_torch_dir_without_torch_is_an_error(search_paths, tmp_path, monkeypatch):
    plant_torch(search_paths["purelib"])
    monkeypatch.setenv("TORCH_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match="TORCH_DIR: expected .*got " + str(tmp_path)):
        find_torch.find_torch()


@pytest.mark.parametrize("version", ["2.9.1", "1.13.1+cu117", "2.9.0+rocm6.4"])
def test_torch_that_is_too_old_is_an_error_that_says_so(search_paths, version):
    plant_torch(search_paths["purelib"], version)
    plant_torch(search_paths["user"], "2.13.0")
    with pytest.raises(SystemExit, match=rf"needs torch>=2\.10; found torch {version.split('+')[0]}"):
        find_torch.find_torch()


def test_torch_without_its_library_is_an_error(search_paths):
    plant_torch(search_paths["purelib"], complete=False)
    with pytest.raises(SystemExit, match="has no lib/libtorch.so"):
        find_torch.find_torch()


def test_no_torch_is_no_error_but_a_build_requirement(search_paths):
    backend = pytest.importorskip("xlstm_hip_build", reason="scikit-build-core is not installed")
    assert find_torch.find_torch() is None
    assert backend.torch_requirement(None) == ["torch>=2.10"]
    with pytest.raises(SystemExit, match=r"no torch found: install torch>=2\.10 .* TORCH_DIR"):
        backend.with_torch(None)
    plant_torch(search_paths["purelib"])
    assert backend.torch_requirement(None) == []


def test_settings_tell_cmake_what_torch_is(search_paths, monkeypatch):
    backend = pytest.importorskip("xlstm_hip_build", reason="scikit-build-core is not installed")
    monkeypatch.setattr(backend, "set_job_limit", lambda: None)
    monkeypatch.delenv("XLSTM_HIP_GPU", raising=False)
    folder = plant_torch(search_paths["purelib"], "2.11.0+cu130", cuda="13.0")
    settings = backend.with_torch({"cmake.define.X": "1"})
    assert settings == {
        "cmake.define.X": "1",
        "cmake.define.GPU": "AUTO",
        "cmake.define.TORCH_DIR": str(folder.resolve()),
        "cmake.define.TORCH_VERSION": "2.11.0+cu130",
        "cmake.define.TORCH_GPU": "cuda",
    }
    monkeypatch.setenv("XLSTM_HIP_GPU", "off")
    assert backend.with_torch(None)["cmake.define.GPU"] == "OFF"
    assert backend.with_torch({"skbuild.cmake.define.GPU": "CUDA"})["cmake.define.GPU"] == "CUDA"
    with pytest.raises(SystemExit, match="GPU: expected one of AUTO, HIP, CUDA, OFF, got 'ROCM'"):
        backend.with_torch({"cmake.define.GPU": "ROCM"})


@pytest.mark.parametrize(
    "cores, free, expected",
    [(2, 32 * GIB, 2), (64, 6 * GIB, 4), (8, GIB // 2, 1), (8, -GIB, 1), (3, None, 3)],
)
def test_jobs_are_capped_by_cores_and_memory(cores, free, expected):
    assert jobs.job_count(cores, free) == expected


def test_jobs_that_the_user_names_are_taken():
    assert jobs.job_limit({"MAX_JOBS": "7", "CMAKE_BUILD_PARALLEL_LEVEL": "3"}) == 7
    assert jobs.job_limit({"CMAKE_BUILD_PARALLEL_LEVEL": "3"}) == 3
    with pytest.raises(SystemExit, match="MAX_JOBS: expected a whole number of jobs, at least 1, got '0'"):
        jobs.job_limit({"MAX_JOBS": "0"})


def test_free_memory_minds_the_control_group(tmp_path):
    assert jobs.free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   8388608 kB\n")
    assert jobs.free_bytes(tmp_path) == 8 * GIB
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{GIB}\n")
    assert jobs.free_bytes(tmp_path) == 8 * GIB
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    assert jobs.free_bytes(tmp_path) == 3 * GIB
