# SPDX-License-Identifier: Apache-2.0
"""GPU=AUTO|HIP|CUDA|OFF: what each says when it cannot be had, and that a GPU kernel drops in as a file.

Each test configures a small source tree: the project's CMake files, one family with one kernel, and no torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

KERNEL = """\
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <hip/hip_runtime.h>
#endif
template <typename T> concept number = sizeof(T) > 1;
template <number T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }
extern "C" void launch_twice(float* x) { twice<<<1, 64>>>(x); }
"""
NO_COMPILER = "/nonexistent/compiler"

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("ninja") is None, reason="cmake or ninja is not installed"
)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A source tree with one family, `dummy`, that has a GPU kernel and nothing else."""
    tree = tmp_path / "tree"
    for name in ("CMakeLists.txt", "python/xlstm_hip/_version.py", "csrc/include/xlstm_hip.h", "csrc/arch/cpu/isa.h"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "cmake", tree / "cmake")
    (tree / "csrc/dummy").mkdir()
    (tree / "csrc/dummy/dummy.hip").write_text(KERNEL)
    return tree


def configure(tree: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["cmake", "-G", "Ninja", "-S", tree, "-B", tree / "build", "-DXLSTM_HIP_PYTHON=OFF", *options]
    settings = {**os.environ, **environment}
    for name in ("PYTORCH_ROCM_ARCH", "GPU_TARGETS", "TORCH_CUDA_ARCH_LIST", "CUDAARCHS"):
        if name not in environment:
            settings.pop(name, None)
    return subprocess.run(
        command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )


def one_line(text: str) -> str:
    """CMake wraps its errors."""
    return " ".join(text.split())


def compile_kernel(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cmake", "--build", tree / "build", "--target", "xlstm_hip_gpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    "gpu, variable, missing",
    [("CUDA", "CUDACXX", "no nvcc was found"), ("HIP", "HIPCXX", "no clang++ for HIP was found")],
)
def test_explicit_gpu_without_a_compiler_is_an_error(tree, gpu, variable, missing):
    result = configure(tree, f"-DGPU={gpu}", **{variable: NO_COMPILER})
    assert result.returncode != 0
    assert f"GPU={gpu} cannot be built: {missing}" in one_line(result.stdout)
    assert "install" in result.stdout


@pytest.mark.parametrize("gpu, variable", [("cuda", "CUDACXX"), ("hip", "HIPCXX")])
def test_auto_without_a_compiler_builds_for_the_cpu_and_says_so_once(tree, gpu, variable):
    torch = (f"-DTORCH_DIR={tree}", "-DTORCH_VERSION=2.11.0", f"-DTORCH_GPU={gpu}")
    result = configure(tree, *torch, **{variable: NO_COMPILER})
    assert result.returncode == 0, result.stdout
    lines = [line for line in result.stdout.splitlines() if "xlstm_hip:" in line]
    kind = {"cuda": "CUDA", "hip": "ROCm"}[gpu]
    assert len(lines) == 1, lines
    assert f"building the CPU library only: torch 2.11.0 is a {kind} build, but no " in lines[0]
    assert 'gpu = "OFF"' in (tree / "build/generated/build_info.h").read_text()


def test_auto_beside_a_cpu_torch_builds_for_the_cpu_and_says_so_once(tree):
    result = configure(tree, f"-DTORCH_DIR={tree}", "-DTORCH_VERSION=2.13.0+cpu", "-DTORCH_GPU=cpu")
    assert result.returncode == 0, result.stdout
    lines = [line for line in result.stdout.splitlines() if "xlstm_hip:" in line]
    assert lines == ["-- xlstm_hip: building the CPU library only: torch 2.13.0+cpu is a CPU build"]


def test_gpu_kernels_that_torch_could_not_run_are_an_error(tree):
    torch = (f"-DTORCH_DIR={tree}", "-DTORCH_VERSION=2.11.0+cu130", "-DTORCH_GPU=cuda")
    result = configure(tree, "-DGPU=HIP", *torch)
    assert result.returncode != 0
    assert "torch 2.11.0+cu130 is a CUDA build; kernels for HIP could not run there" in one_line(result.stdout)


def test_unknown_gpu_is_an_error(tree):
    result = configure(tree, "-DGPU=ROCM")
    assert result.returncode != 0
    assert "GPU: expected AUTO, HIP, CUDA or OFF, got ROCM" in one_line(result.stdout)


def test_off_builds_for_the_cpu(tree):
    result = configure(tree, "-DGPU=OFF", CUDACXX=NO_COMPILER, HIPCXX=NO_COMPILER)
    assert result.returncode == 0, result.stdout


def test_python_modules_without_torch_are_an_error(tree):
    result = configure(tree, "-DXLSTM_HIP_PYTHON=ON")
    assert result.returncode != 0
    assert "XLSTM_HIP_PYTHON=ON needs TORCH_DIR" in one_line(result.stdout)


def hip_is_here(tree: Path) -> bool:
    """Whether this machine has a HIP compiler, in the build's own opinion."""
    return "cannot be built" not in one_line(configure(tree, "-DGPU=HIP").stdout)


def test_a_kernel_file_drops_in_under_cuda(tree):
    if configure(tree, "-DGPU=CUDA").returncode:
        pytest.skip("this machine has no nvcc")
    result = configure(tree, "--fresh", "-DGPU=CUDA", TORCH_CUDA_ARCH_LIST="8.0 9.0a+PTX")
    assert result.returncode == 0, result.stdout
    assert "CUDA kernels for 80-real;90a, by NVIDIA" in result.stdout
    built = compile_kernel(tree)
    assert built.returncode == 0, built.stdout


def test_a_kernel_file_drops_in_under_hip(tree):
    if not hip_is_here(tree):
        pytest.skip("this machine has no HIP compiler")
    result = configure(tree, "--fresh", "-DGPU=HIP", PYTORCH_ROCM_ARCH="gfx942 gfx90a")
    assert result.returncode == 0, result.stdout
    assert "HIP kernels for gfx942;gfx90a, by Clang" in result.stdout
    built = compile_kernel(tree)
    assert built.returncode == 0, built.stdout
    objects = list((tree / "build").rglob("dummy.hip.o"))
    assert len(objects) == 1
    for arch in (b"gfx942", b"gfx90a"):
        assert b"amdgcn-amd-amdhsa--" + arch in objects[0].read_bytes()


def test_an_unknown_arch_is_tried(tree):
    if not hip_is_here(tree):
        pytest.skip("this machine has no HIP compiler")
    result = configure(tree, "--fresh", "-DGPU=HIP", "-DGPU_TARGETS=gfx9999")
    assert "HIP kernels for gfx9999" in result.stdout or "gfx9999" in result.stdout
    assert "cannot be built" not in one_line(result.stdout)
