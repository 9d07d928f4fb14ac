# SPDX-License-Identifier: Apache-2.0
"""GPU=AUTO|HIP|CUDA|OFF: what each says when it cannot be had, and that a GPU kernel drops in as a file. The HIP
runtime that the libraries link and a process then loads: torch's, wherever its wheels have it, and no second one.

Each test configures a small source tree: the project's CMake files, one family with one kernel, and no torch or
stand-ins for its libraries.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


def small_tree(folder: Path) -> Path:
    """A source tree with one family, `dummy`, that has a GPU kernel and nothing else."""
    tree = folder / "tree"
    for name in ("CMakeLists.txt", "python/xlstm_hip/_version.py", "csrc/include/xlstm_hip.h", "csrc/arch/cpu/isa.h"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "cmake", tree / "cmake")
    (tree / "csrc/dummy").mkdir()
    (tree / "csrc/dummy/dummy.hip").write_text(KERNEL)
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path)


@pytest.fixture(scope="module")
def hip_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests of HIP, configured: to try the compiler takes the most time."""
    tree = small_tree(tmp_path_factory.mktemp("hip"))
    if "cannot be built" in one_line(configure(tree, "-DGPU=HIP").stdout):
        pytest.skip("this machine has no HIP compiler")
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


def build(tree: Path, target: str = "xlstm_hip_kernels") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cmake", "--build", tree / "build", "--target", target],
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


@pytest.mark.parametrize(
    "gpu, kind, variable, missing",
    [
        ("cuda", "CUDA", "CUDACXX", "no nvcc was found (CMAKE_CUDA_COMPILER, CUDACXX, "),
        ("hip", "ROCm", "HIPCXX", "no clang++ for HIP was found (CMAKE_HIP_COMPILER, HIPCXX, "),
    ],
)
def test_auto_without_a_compiler_is_an_error_that_names_the_way_out(tree, gpu, kind, variable, missing):
    torch = (f"-DTORCH_DIR={tree}", "-DTORCH_VERSION=2.11.0", f"-DTORCH_GPU={gpu}")
    result = configure(tree, *torch, **{variable: NO_COMPILER})
    text = one_line(result.stdout)
    assert result.returncode != 0
    assert f"torch 2.11.0 is a {kind} build, and GPU kernels for it cannot be built: {missing}" in text
    assert "install" in text and "XLSTM_HIP_GPU=OFF (CMake: -DGPU=OFF) builds the CPU library alone" in text
    without_gpu = configure(tree, "--fresh", "-DGPU=OFF", *torch, **{variable: NO_COMPILER})
    assert without_gpu.returncode == 0, without_gpu.stdout
    assert 'gpu = "OFF"' in (tree / "build/generated/build_info.h").read_text()


def test_a_compiler_cache_in_the_path_is_not_taken_for_the_compiler(tree, hip_tree, tmp_path):
    """Debian's /usr/lib/ccache has links by compilers' names, and no linker beside them."""
    (tmp_path / "ccache").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ccache").chmod(0o755)
    for version in range(17, 23):
        (tmp_path / f"clang++-{version}").symlink_to(tmp_path / "ccache")
    result = configure(tree, "-DGPU=HIP", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert result.returncode == 0, result.stdout
    assert "HIP kernels for" in one_line(result.stdout)


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


def test_a_kernel_file_drops_in_under_cuda(tree):
    if configure(tree, "-DGPU=CUDA").returncode:
        pytest.skip("this machine has no nvcc")
    result = configure(tree, "--fresh", "-DGPU=CUDA", TORCH_CUDA_ARCH_LIST="8.0 9.0a+PTX")
    assert result.returncode == 0, result.stdout
    assert "CUDA kernels for 80-real;90a, by NVIDIA" in result.stdout
    built = build(tree)
    assert built.returncode == 0, built.stdout


def test_a_kernel_file_drops_in_under_hip(hip_tree):
    result = configure(hip_tree, "-DGPU=HIP", PYTORCH_ROCM_ARCH="gfx942 gfx90a")
    assert result.returncode == 0, result.stdout
    assert "HIP kernels for gfx942;gfx90a, by Clang" in result.stdout
    built = build(hip_tree)
    assert built.returncode == 0, built.stdout
    objects = list((hip_tree / "build").rglob("dummy.hip.o"))
    assert len(objects) == 1
    for arch in (b"gfx942", b"gfx90a"):
        assert b"amdgcn-amd-amdhsa--" + arch in objects[0].read_bytes()


def test_an_unknown_arch_is_tried(tree, hip_tree):
    result = configure(tree, "-DGPU=HIP", "-DGPU_TARGETS=gfx9999")
    assert "HIP kernels for gfx9999" in result.stdout or "gfx9999" in result.stdout
    assert "cannot be built" not in one_line(result.stdout)


def test_chips_without_kernels(hip_tree):
    """Named to this build they are an error; of a list for torch they are left out, if others are left."""
    named = configure(hip_tree, "-DGPU=HIP", "-DGPU_TARGETS=gfx942;gfx1250")
    assert named.returncode != 0
    assert "there are none for gfx1250 (GPU_TARGETS)" in one_line(named.stdout)
    for_torch = configure(
        hip_tree, "-DGPU=HIP", "-UGPU_TARGETS", PYTORCH_ROCM_ARCH="gfx908;gfx942;gfx1030;gfx1201;gfx1250"
    )
    assert for_torch.returncode == 0, for_torch.stdout
    assert "no kernels for gfx908;gfx1030;gfx1250 (PYTORCH_ROCM_ARCH)" in for_torch.stdout
    assert "HIP kernels for gfx942;gfx1201, by" in for_torch.stdout
    alone = configure(hip_tree, "-DGPU=HIP", PYTORCH_ROCM_ARCH="gfx1030")
    assert alone.returncode != 0
    assert "XLSTM_HIP_GPU=OFF" in alone.stdout


def test_a_chip_without_kernels_is_an_error_of_the_compiler_too(hip_tree):
    """A compiler that is started without CMake, as the hub's builder does."""
    cache = (hip_tree / "build/CMakeCache.txt").read_text()
    facts = dict(re.findall(r"^(CMAKE_HIP_\w+):\w+=(.*)$", cache, re.MULTILINE))
    command = [facts["CMAKE_HIP_COMPILER"], *facts["CMAKE_HIP_FLAGS"].split(), "-std=c++20", f"-I{ROOT}/csrc"]
    command += ["-x", "hip", "--offload-device-only", "-fsyntax-only", str(ROOT / "csrc/arch/compiler.h")]
    done = {
        arch: subprocess.run([*command, f"--offload-arch={arch}"], capture_output=True, text=True)
        for arch in ("gfx1030", "gfx942", "gfx1100", "gfx1200", "gfx1201")
    }
    assert "no kernels for this AMD chip" in done.pop("gfx1030").stderr
    assert all(x.returncode == 0 for x in done.values()), [x.stderr for x in done.values()]


# Of torch's libraries: the op library, which launches the kernel.
OPS = """\
extern "C" void launch_twice(float* x);
extern "C" __attribute__((visibility("default"))) void call() { launch_twice(nullptr); }
"""
# Of libamdhip64: what an object of HIP code asks of it.
RUNTIME = """\
int launches;
int __hipRegisterFatBinary() { return 0; }
int __hipUnregisterFatBinary() { return 0; }
int __hipRegisterFunction() { return 0; }
int __hipPushCallConfiguration() { return 0; }
int __hipPopCallConfiguration() { return 0; }
int hipLaunchKernel() { return ++launches, 0; }
"""
# A process that imports torch, which the libraries before the last stand for, and calls the last.
PROCESS = """\
import ctypes, pathlib, re, sys
*torch, ops = [ctypes.CDLL(name, ctypes.RTLD_GLOBAL) for name in sys.argv[1:]]
ops.call()
loaded = sorted(set(re.findall(r"/\\S*libamdhip64\\S*", pathlib.Path("/proc/self/maps").read_text())))
print(ctypes.c_int.in_dll(ctypes.CDLL(loaded[0]), "launches").value, *loaded)
"""


def hip_version(tree: Path) -> int:
    """The version in the headers that this machine's HIP compiler gets."""
    root = re.search(r"CMAKE_HIP_COMPILER_ROCM_ROOT:\w+=(.*)", (tree / "build/CMakeCache.txt").read_text())
    header = Path(root[1], "include/hip/hip_version.h").read_text()
    return int(re.search(r"HIP_VERSION_MAJOR (\d+)", header)[1])


def library(path: Path, text: str = "", *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-x", "c", "-", "-x", "none", "-shared", "-fPIC", "-Wl,--no-as-needed", *options, "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)
    return path


def rocm_torch(site: Path, folder: str, version: int) -> tuple[Path, Path]:
    """Stand-ins for the libraries of a ROCm torch: the HIP runtime, there and named as in such wheels; libtorch."""
    name = f"libamdhip64.so.{version}"
    bundled = folder == "torch/lib"
    file_name = "libamdhip64.so" if bundled else name
    runtime = library(site / folder / file_name, RUNTIME, f"-Wl,-soname,{file_name}")
    rpath = "-Wl,-rpath,$ORIGIN"
    hip = library(site / "torch/lib/libc10_hip.so", "", str(runtime), "-Wl,-soname,libc10_hip.so", rpath)
    torch = library(site / "torch/lib/libtorch.so", "", str(hip), "-Wl,-soname,libtorch.so", rpath)
    if bundled:  # pytorch.org renames the file, and what its libraries ask for; inside, the file keeps its name
        library(runtime, RUNTIME, f"-Wl,-soname,{name}")
    return runtime, torch


def configure_beside(tree: Path, site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    torch = (f"-DTORCH_DIR={site}/torch", "-DTORCH_VERSION=2.11.0+rocm", "-DTORCH_GPU=hip")
    return configure(tree, "-DGPU=AUTO", *torch, *options, PYTORCH_ROCM_ARCH="gfx942")


@pytest.mark.parametrize("folder", ["torch/lib", "_rocm_sdk_core/lib"])
def test_the_hip_runtime_is_the_one_that_torch_has_loaded(hip_tree, tmp_path, folder):
    """Though this machine has another of the same name, where a loader looks."""
    pybind11 = pytest.importorskip("pybind11")
    site = tmp_path / "site"
    runtime, torch = rocm_torch(site, folder, hip_version(hip_tree))
    for name, text in {"torch/ops": OPS, "native/native": "#include <pybind11/pybind11.h>\n"}.items():
        (hip_tree / f"csrc/{name}.cpp").parent.mkdir(exist_ok=True)
        (hip_tree / f"csrc/{name}.cpp").write_text(text)
    python = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}")
    result = configure_beside(hip_tree, site, "-DXLSTM_HIP_PYTHON=ON", *python)
    assert result.returncode == 0, result.stdout
    built = build(hip_tree, "xlstm_hip_ops")
    assert built.returncode == 0, built.stdout
    assert f"XLSTM_HIP_AMDHIP64:INTERNAL={runtime}\n" in (hip_tree / "build/CMakeCache.txt").read_text()
    (site / "xlstm_hip").mkdir()
    ops = shutil.copy(hip_tree / "build/_xlstm_hip_ops.so", site / "xlstm_hip")
    imported = [torch] if folder == "torch/lib" else [runtime, torch]
    process = [sys.executable, "-c", PROCESS, *imported, ops]
    assert subprocess.run(process, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == ["1", str(runtime)]


def test_a_second_hip_runtime_is_an_error(hip_tree, tmp_path):
    version = hip_version(hip_tree)
    newer = f"libamdhip64.so.{version + 1}"
    packaged, system, same = tmp_path / "packaged", tmp_path / "system", tmp_path / "same"

    runtime, _ = rocm_torch(packaged, "_rocm_sdk_core/lib", version + 1)
    result = configure_beside(hip_tree, packaged)
    assert result.returncode != 0
    wrong = f'are of version {version}, and the runtime {runtime} is {newer}: pip install "rocm[devel]"'
    assert wrong in one_line(result.stdout)
    (packaged / "rocm_sdk_devel").mkdir()
    (packaged / "rocm_sdk_devel/_devel.tar.xz").touch()
    assert f"{newer}: run `rocm-sdk init`" in one_line(configure_beside(hip_tree, packaged).stdout)

    rocm_torch(system, "opt/lib", version + 1)
    result = configure_beside(hip_tree, system)
    assert result.returncode != 0
    wrong = "which would be a second HIP runtime: install the ROCm that torch was built with"
    assert f"torch loads {newer}, and /" in one_line(result.stdout) and wrong in one_line(result.stdout)

    rocm_torch(same, "opt/lib", version)
    result = configure_beside(hip_tree, same)
    assert result.returncode == 0, result.stdout
