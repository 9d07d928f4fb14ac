# SPDX-License-Identifier: Apache-2.0
"""What the tests here run on, each built when it is first asked for: the interpreter behind its libamdhip64, code
objects, the package with its GPU kernels for gfx942, and the device that gives a CPU torch a GPU.

They raise NoCompiler where this machine lacks a compiler for AMD GPUs or LLVM's disassembler.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from pathlib import Path

import jobs
from code_objects import Compiler, configure, run
from find_torch import Torch, find_torch

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "tests" / "gfx942"
BUILD = ROOT / "build" / "gfx942"


def _build(folder: Path, *targets: str) -> None:
    run("cmake", "--build", folder, "-j", str(jobs.job_limit()), "--target", *targets)


@functools.cache
def interpreter() -> Path:
    """libamdhip64.so.5, which interprets what is launched."""
    folder = BUILD / "interpreter"
    configure(HERE / "interpreter", folder)
    _build(folder, "amdhip64")
    return folder / "libamdhip64.so.5"


@functools.cache
def compiler() -> Compiler:
    folder = BUILD / "compiler"
    configure(ROOT, folder, "-DGPU=HIP", "-DXLSTM_HIP_PYTHON=OFF", "-DCMAKE_HIP_ARCHITECTURES=gfx942")
    return Compiler.of_build(folder)


def _torch() -> Torch:
    found = find_torch()
    assert found, "these tests need torch"
    return found


@functools.cache
def torch_device() -> Path:
    """What gives a CPU torch the device "cuda"."""
    folder = BUILD / "torch_device"
    configure(HERE / "torch_device", folder, f"-DTORCH_DIR={_torch().folder}", f"-DAMDHIP64={interpreter()}")
    _build(folder, "torch_device")
    return folder / "torch_device.so"


@functools.cache
def package() -> Path:
    """The folder to import xlstm_hip from: its Python files as they are, its libraries with kernels for gfx942."""
    import pybind11  # not at the top: those who only run kernels need none

    folder, site, torch = BUILD / "package", BUILD / "site", _torch()
    facts = f"-DTORCH_DIR={torch.folder}", f"-DTORCH_VERSION={torch.version}", f"-DTORCH_GPU={torch.gpu}"
    python = f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"
    configure(ROOT, folder, "-DGPU=HIP", "-DCMAKE_HIP_ARCHITECTURES=gfx942", *facts, *python)
    _build(folder, "xlstm_hip_ops", "_native")
    shutil.rmtree(site, ignore_errors=True)
    (site / "xlstm_hip").mkdir(parents=True)
    files = [path for path in (ROOT / "python" / "xlstm_hip").iterdir() if path.suffix != ".so"]
    for path in (*files, *folder.glob("*.so")):
        (site / "xlstm_hip" / path.name).symlink_to(path)
    return site


def _made_once(text: str, suffix: str, *command: str | Path) -> bytes:
    """The code object that the command makes of the text, kept for the next session."""
    key = hashlib.sha256("\0".join([compiler().version, *map(str, command), text]).encode()).hexdigest()[:24]
    made = BUILD / "code" / f"{key}.co"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        source = made.with_suffix(suffix)
        source.write_text(text)
        unfinished = made.with_suffix(".unfinished")
        run(*command, source, "-o", unfinished)
        unfinished.rename(made)
    return made.read_bytes()


def assemble(text: str) -> bytes:
    """The code object of an assembly file. assembly.py writes such files around a few instructions."""
    target = ("--target=amdgcn-amd-amdhsa", "-mcpu=gfx942")
    return _made_once(text, ".s", compiler().path, *target, "-x", "assembler", "-nogpulib")


def compile_hip(source: str, *flags: str) -> bytes:
    """The code object of HIP source, which includes nothing but the compiler's and HIP's own headers."""
    device_only = ("--offload-arch=gfx942", "--offload-device-only", "--no-gpu-bundle-output")
    c = compiler()
    return _made_once(source, ".hip", c.path, "-x", "hip", *device_only, *c.flags, "-O3", *flags)


def compile_host(source: str, *flags: str) -> bytes:
    """The library of C++ source for this machine, by the same compiler."""
    return _made_once(source, ".cpp", compiler().path, "-shared", "-fPIC", "-O2", "-march=native", *flags)
