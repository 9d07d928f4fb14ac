# SPDX-License-Identifier: Apache-2.0
"""The AMD code in the build's object files: each kernel's notes (registers, LDS, scratch, spills) and instructions.

An object file holds a bundle with a code object per chip. The compiler's own tools take it apart: they lie beside the
compiler that CMake chose, in ROCm as in a distribution.

PYTHONPATH=build_backend python tests/amd/code_objects.py [CHIP... | all | most]    prints the build's options

most: all chips, but float16 and float32 for gfx942 alone where a source is compiled for each type.

The build has kernels for the chips that it was first made for, which are gfx942 alone where none are named.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jobs
from find_torch import find_torch

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "amd"
ARCHS = ("gfx90a", "gfx942", "gfx1100")  # that Debian's compiler has device libraries for
FAMILIES = {"gfx9": "cdna", "gfx11": "rdna", "gfx12": "rdna4"}
TARGETS = ("xlstm_hip_kernels", "xlstm_hip_host")
FEW_TYPES = tuple(arch for arch in ARCHS if arch != "gfx942")  # of which CI has bfloat16 alone


class NoCompiler(RuntimeError):
    """This machine cannot compile for AMD GPUs, in the build's own words."""


def run(*command: str | Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cmake may be this environment's
    done = subprocess.run(
        [str(x) for x in command],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def configure(source: Path, folder: Path, *options: str) -> None:
    try:
        run("cmake", "-G", "Ninja", "-S", source, "-B", folder, *options)
    except RuntimeError as error:
        reason = re.search(r"cannot be built:(.*?)(?:Call Stack|\Z)", str(error), re.DOTALL)
        if reason:
            raise NoCompiler(" ".join(reason[1].split())) from None
        raise


def _cached(option: str, folder: Path) -> str:
    """As the build in a folder was configured; nothing where there is none."""
    cache = folder / "CMakeCache.txt"
    found = re.search(rf"^{option}:\w+=(.*)$", cache.read_text(), re.MULTILINE) if cache.exists() else None
    return found[1] if found else ""


def built_archs(folder: Path = BUILD) -> tuple[str, ...]:
    """The chips that the build in a folder has kernels for, in ARCHS' order; none where there is no build."""
    archs = _cached("CMAKE_HIP_ARCHITECTURES", folder).split(";")
    return tuple(arch for arch in ARCHS if arch in archs)


def bfloat16_archs(folder: Path = BUILD) -> tuple[str, ...]:
    """Those of them that have no kernels of float16 and float32, but where a source has all types."""
    return tuple(filter(None, _cached("XLSTM_HIP_BFLOAT16_ARCHS", folder).split(";")))


def options(archs: Sequence[str] = (), most: bool = False) -> list[str]:
    """Of the one build for AMD GPUs: here its objects are read, and tests/gfx942 runs the package that it makes. Where
    no chips are named they are those that it has."""
    import pybind11  # not at the top: reading object files needs none

    torch = find_torch()
    assert torch, "the package is built for the torch of this environment, which has none"
    facts = {
        "GPU": "HIP",
        "CMAKE_HIP_ARCHITECTURES": ";".join(archs or built_archs() or ("gfx942",)),
        "XLSTM_HIP_BFLOAT16_ARCHS": ";".join(FEW_TYPES if most else () if archs else bfloat16_archs()),
        "XLSTM_HIP_WERROR": "ON",
        "TORCH_DIR": torch.folder,
        "TORCH_VERSION": torch.version,
        "TORCH_GPU": torch.gpu,
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11.get_cmake_dir(),
    }
    return [f"-D{name}={value}" for name, value in facts.items()]


def build(*targets: str, archs: Sequence[str] = ()) -> None:
    """By default all GPU kernels for the chips that the build has, and the host code that launches them."""
    targets = targets or TARGETS
    configure(ROOT, BUILD, *options(archs))
    run("cmake", "--build", BUILD, "-j", str(jobs.job_limit()), "--target", *targets)


@dataclass(frozen=True)
class Compiler:
    path: Path
    flags: tuple[str, ...] = ()  # where it finds HIP and the device libraries

    @classmethod
    def of_build(cls, folder: Path = BUILD) -> Compiler:
        entries = re.findall(r"^(CMAKE_HIP_\w+):\w+=(.*)$", (folder / "CMakeCache.txt").read_text(), re.MULTILINE)
        cache = dict(entries)
        if "CMAKE_HIP_COMPILER" not in cache:
            raise RuntimeError(f"{folder} is no HIP build")
        root = f"--rocm-path={cache['CMAKE_HIP_COMPILER_ROCM_ROOT']}"
        return cls(Path(cache["CMAKE_HIP_COMPILER"]), (root, *cache["CMAKE_HIP_FLAGS"].split()))

    def tool(self, name: str) -> Path:
        tool = self.path.resolve().parent / name
        if not tool.exists():
            raise RuntimeError(f"{self.path} has no {name} beside it: install the llvm package of its version")
        return tool

    @cached_property
    def version(self) -> str:
        found = re.search(r"clang version (\S+)", run(self.path, "--version"))
        if not found:
            raise RuntimeError(f"{self.path} does not say its version")
        return f"clang {found[1]}"


class Instruction(NamedTuple):  # a tuple, for there are millions
    address: int
    name: str
    operands: str


@dataclass
class Kernel:
    name: str  # as written in the source, without namespace and parameters: chunk_walk<bf16, 256, 32>
    arch: str
    notes: dict[str, str]
    instructions: list[Instruction] = field(default_factory=list)

    def note(self, key: str) -> int:
        return int(self.notes[key])

    @property
    def family(self) -> str:
        return next(family for arch, family in FAMILIES.items() if self.arch.startswith(arch))

    @property
    def template(self) -> str:
        return self.name.partition("<")[0]

    @property
    def arguments(self) -> list[str]:
        inside = self.name.partition("<")[2].rstrip(">")
        return [x.strip() for x in inside.split(",")] if inside else []

    @property
    def is_empty(self) -> bool:
        """A kernel that this family's plans never launch has an empty body."""
        return {x.name for x in self.instructions} <= {"s_endpgm", "s_nop", "s_code_end"}


SHORT = {"xlstm::gpu::BFloat16": "bf16", "xlstm::gpu::Float16": "fp16", "float": "fp32"}


def short_name(demangled: str) -> str:
    name = re.sub(r"^void |\([^()]*\)$", "", demangled.replace("(anonymous namespace)::", ""))
    for long, short in SHORT.items():
        name = re.sub(rf"\b{long}\b", short, name)
    # A dummy, or one token a lane: there is no other such kernel for AMD.
    return re.sub(r"<[01]>$", "", re.sub(r"(\w+::)+", "", name))


def parse_notes(text: str) -> list[dict[str, str]]:
    """The scalars of each kernel in `llvm-readelf --notes`; arguments and other lists lie deeper."""
    kernels: list[dict[str, str]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith(" "):
            inside = line == "amdhsa.kernels:"
        elif inside:
            if line.startswith("  - "):
                kernels.append({})
            found = re.match(r"(?:  - |    )\.(\w+):\s+(\S.*)$", line)
            if found:
                kernels[-1][found[1]] = found[2].strip("'\"")
    return kernels


def parse_disassembly(text: str) -> dict[str, list[Instruction]]:
    """Symbol -> instructions, of `llvm-objdump -d --no-show-raw-insn`."""
    symbols: dict[str, list[Instruction]] = {}
    now: list[Instruction] = []
    for line in text.splitlines():
        start = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if start:
            now = symbols.setdefault(start[1], [])
            continue
        found = re.match(r"\s+(\w+)(?: +(.*?))?\s*// ([0-9A-F]+):", line)
        if found:
            now.append(Instruction(int(found[3], 16), found[1], found[2] or ""))
    for instructions in symbols.values():  # what pads the last kernel to a cache line
        while instructions and instructions[-1].name in ("s_code_end", "s_nop"):
            instructions.pop()
    return symbols


def kernels_in(object_file: Path) -> list[Kernel]:
    if b".hip_fatbin" not in object_file.read_bytes():
        return []  # it chooses between kernels that other objects hold
    compiler = Compiler.of_build()
    kernels = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        bundle = scratch / "bundle"
        run(compiler.tool("llvm-objcopy"), f"--dump-section=.hip_fatbin={bundle}", object_file, scratch / "unused")
        bundler = compiler.tool("clang-offload-bundler")
        bundled = run(bundler, "--list", "--type=o", f"--input={bundle}").split()
        for arch in built_archs():
            code = scratch / arch
            target = f"hipv4-amdgcn-amd-amdhsa--{arch}"
            if target not in bundled and arch in bfloat16_archs():
                continue
            run(bundler, "--unbundle", "--type=o", f"--input={bundle}", f"--targets={target}", f"--output={code}")
            found = parse_notes(run(compiler.tool("llvm-readelf"), "--notes", code))
            if not found:
                continue
            disassembly = parse_disassembly(run(compiler.tool("llvm-objdump"), "-d", "--no-show-raw-insn", code))
            names = run(compiler.tool("llvm-cxxfilt"), *(notes["name"] for notes in found)).splitlines()
            for notes, name in zip(found, names, strict=True):
                kernels.append(Kernel(short_name(name), arch, notes, disassembly[notes["name"]]))
    return kernels


def gpu_objects() -> list[Path]:
    """The object file of each GPU source, the largest first."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    objects = [BUILD / entry["output"] for entry in commands if entry["file"].endswith(".hip")]
    missing = sorted(path.name.removesuffix(".o") for path in objects if not path.exists())
    if missing:
        raise RuntimeError(f"not built: {', '.join(missing)}")
    return sorted(objects, key=lambda path: (-path.stat().st_size, path))


if __name__ == "__main__":
    asked = sys.argv[1:]
    unknown = set(asked) - {*ARCHS, "all", "most"}
    if unknown:
        sys.exit(f"expected all, most or chips of {', '.join(ARCHS)}, got {' '.join(sorted(unknown))}")
    print("\n".join(options(ARCHS if {"all", "most"} & set(asked) else asked, "most" in asked)))
