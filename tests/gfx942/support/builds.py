# SPDX-License-Identifier: Apache-2.0
"""What the tests here run on, each built when it is first asked for: the interpreter behind its libamdhip64, code
objects, the package with its GPU kernels, and the device that gives a CPU torch a GPU.

The package is that of build/amd, whose objects tests/amd reads: the kernels are compiled once.

GFX942_CHIP says for which chip code is made and run: gfx942 where it is not set, gfx90a or gfx950.

They raise NoCompiler where this machine lacks a compiler for AMD GPUs or LLVM's disassembler.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import code_objects
import gfx950
import jobs
from code_objects import Compiler, NoCompiler, configure, run
from find_torch import find_torch

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "tests" / "gfx942"
BUILD = ROOT / "build" / "gfx942"
CHIPS = ("gfx90a", "gfx942", "gfx950")
CHIP = os.environ.get("GFX942_CHIP") or "gfx942"


def dtype_of(row: Any) -> Any:
    """A table's row's, where it has one."""
    return row.get("dtype") if isinstance(row, dict) else getattr(row, "dtype", None)


def is_complete() -> bool:
    """Whether the package of this chip has all kernels."""
    return gfx950.ALL_ELEMENTS if CHIP == gfx950.CHIP else CHIP not in code_objects.bfloat16_archs()


def has_code(dtype: Any) -> bool:
    """Whether it has those of a dtype."""
    if is_complete() or str(dtype) == "torch.bfloat16":
        return True
    return CHIP != gfx950.CHIP and str(dtype) not in ("torch.float16", "torch.float32")


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Runs of pytest side by side share the build folders."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, *targets: str) -> None:
    run("cmake", "--build", folder, "-j", str(jobs.job_limit()), "--target", *targets)


@functools.cache
def interpreter() -> Path:
    """libamdhip64.so.5, which interprets what is launched."""
    folder = BUILD / "interpreter"
    if CHIP == gfx950.CHIP:
        os.environ["GFX942_LLVM"] = str(gfx950.llvm_library())
    with _one_at_a_time():
        configure(HERE / "interpreter", folder)
        _build(folder, "amdhip64")
    return folder / "libamdhip64.so.5"


@functools.cache
def compiler() -> Compiler:
    with _one_at_a_time():
        configure(ROOT, code_objects.BUILD, *code_objects.options())
    return Compiler.of_build()


@functools.cache
def torch_device() -> Path:
    """What gives a CPU torch the device "cuda"."""
    folder = BUILD / "torch_device"
    torch = find_torch()
    assert torch, "these tests need torch"
    runtime = interpreter()
    with _one_at_a_time():
        configure(HERE / "torch_device", folder, f"-DTORCH_DIR={torch.folder}", f"-DAMDHIP64={runtime}")
        _build(folder, "torch_device")
    return folder / "torch_device.so"


@functools.cache
def package() -> Path:
    """The folder to import xlstm_hip from: its Python files as they are, its libraries with kernels for AMD GPUs."""
    folder = BUILD / ("site_gfx950" if CHIP == gfx950.CHIP else "site") / "xlstm_hip"
    with _one_at_a_time():
        code_objects.build("xlstm_hip_ops", "_native")
        libraries = [*code_objects.BUILD.glob("*.so")]
        if CHIP == gfx950.CHIP:
            libraries = gfx950.libraries(BUILD / "libraries_gfx950")
        elif CHIP not in code_objects.built_archs():
            raise NoCompiler(f"build/amd has no code for {CHIP}; ./scripts/test amd ci compiles for all chips")
        files = [path for path in (ROOT / "python" / "xlstm_hip").iterdir() if path.suffix != ".so"]
        expected = {path.name: path for path in (*files, *libraries)}
        folder.mkdir(parents=True, exist_ok=True)
        for link in folder.iterdir():
            if link.readlink() != expected.get(link.name):
                link.unlink()
        for name, path in expected.items():
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(path)
    return folder.parent


def _build_once(text: str, suffix: str, *commands: Sequence[str | Path]) -> bytes:
    """The code object that the commands make of the text, one after the other, kept for the next session."""
    words = [str(word) for command in commands for word in command]
    key = hashlib.sha256("\0".join([compiler().version, *words, text]).encode()).hexdigest()[:24]
    code_object = BUILD / "code" / f"{key}.co"
    if not code_object.exists():
        code_object.parent.mkdir(parents=True, exist_ok=True)
        source = code_object.with_suffix(suffix)
        source.write_text(text)
        for step, command in enumerate(commands):
            unfinished = code_object.with_suffix(f".{os.getpid()}.{step}")
            run(*command, source, "-o", unfinished)
            if step:
                source.unlink()
            source = unfinished
        source.rename(code_object)
    return code_object.read_bytes()


def assembler() -> tuple[str | Path, ...]:
    """What makes an object file of assembly. By itself: the compiler's driver takes two processes more for the same."""
    if CHIP == gfx950.CHIP:
        return gfx950.assembler()
    return (compiler().path, "--target=amdgcn-amd-amdhsa", f"-mcpu={CHIP}", "-x", "assembler", "-c")


def assemble(text: str) -> bytes:
    """The code object of an assembly file. assembly.py writes such files around a few instructions."""
    return _build_once(text, ".s", assembler(), (compiler().tool("ld.lld"), "-shared"))


def compile_hip(source: str, *flags: str) -> bytes:
    """The code object of HIP source, which includes nothing but the compiler's and HIP's own headers."""
    device_only = (f"--offload-arch={CHIP}", "--offload-device-only", "--no-gpu-bundle-output")
    c = compiler()
    command: Sequence[str | Path] = (c.path, "-x", "hip", *device_only, *c.flags, "-O3", *flags)
    if CHIP == gfx950.CHIP:
        command = (*gfx950.compiler(), *flags)
    return _build_once(source, ".hip", command)


def compile_host(source: str, *flags: str) -> bytes:
    """The library of C++ source for this machine, by the same compiler."""
    return _build_once(source, ".cpp", (compiler().path, "-shared", "-fPIC", "-O2", "-march=native", *flags))
