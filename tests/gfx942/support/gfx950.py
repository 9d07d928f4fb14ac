# SPDX-License-Identifier: Apache-2.0
"""Code for gfx950, which the compiler of build/amd may not know: ROCm 7.2's LLVM makes it (tests/rocm/rocm_llvm.py).

The package for it is that of build/amd, whose objects get other bundles: host code is the same for all AMD chips. LLVM
takes minutes, so kernels of bfloat16 alone are made unless GFX942_ELEMENTS=all; the others then have no code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

for _folder in ("build_backend", "tests/amd", "tests/rocm"):  # as a command, too
    sys.path.append(str(Path(__file__).resolve().parents[3] / _folder))

import code_objects  # noqa: E402
import jobs  # noqa: E402
import rocm_llvm  # noqa: E402
from code_objects import BUILD, Compiler, NoCompiler, run  # noqa: E402

CHIP = "gfx950"
ALL_ELEMENTS = os.environ.get("GFX942_ELEMENTS") == "all"
LIBRARIES = ("_xlstm_hip_ops", "_native")


def llvm_library() -> Path:
    """The library whose disassembler knows the chip."""
    if not rocm_llvm.PARTS.exists():
        raise NoCompiler(f"the LLVM that knows {CHIP} is not here; ./scripts/test rocm downloads it")
    if not shutil.which("objcopy"):
        raise NoCompiler("GNU binutils' objcopy is not here: install the package binutils")
    return rocm_llvm.PARTS / "rocm/llvm/librocmllvm.so"


def assembler() -> tuple[str | Path, ...]:
    return rocm_llvm.assembler(CHIP)


def compiler() -> tuple[str | Path, ...]:
    """A command that ends with flags, a source, -o and a code object: this file's."""
    return (sys.executable, Path(__file__).resolve())


def bundle_of(code_object: bytes) -> bytes:
    """As clang documents offload bundles. Its own bundler changes the name of a chip that it does not know."""
    page = 4096
    target = f"hipv4-amdgcn-amd-amdhsa--{CHIP}".encode()
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, page, len(code_object), len(target)) + target
    return header.ljust(page, b"\0") + code_object


def _with_bundle(object_file: Path, assembly: Path, to: Path) -> None:
    """The object file, with this code in the place of what the compiler put there."""
    code_object, bundle = to.with_suffix(".co"), to.with_suffix(".bundle")
    rocm_llvm.make_code_object(assembly, CHIP, code_object)
    bundle.write_bytes(bundle_of(code_object.read_bytes()))
    # GNU's: LLVM 19's leaves symbols that name the section by memory it has freed, which a link may then refuse.
    run("objcopy", f"--update-section=.hip_fatbin={bundle}", object_file, to)
    code_object.unlink()
    bundle.unlink()


def _assembly_files() -> dict[Path, Path]:
    """Each object file of build/amd with kernels, and the assembly of what it is to hold: that of tests/rocm."""
    flags = rocm_llvm.sources()
    by_name = {f"{source.name}.o": source for source in flags}
    chosen = [x for x in code_objects.gpu_objects() if ALL_ELEMENTS or rocm_llvm.is_for_bfloat16(by_name[x.name])]
    with_kernels = [x for x in chosen if b".hip_fatbin" in x.read_bytes()]
    with ProcessPoolExecutor(jobs.job_limit()) as pool:
        sources = [by_name[x.name] for x in with_kernels]
        made = [pool.submit(rocm_llvm.assembly_file, source, CHIP, flags[source]) for source in sources]
        return dict(zip(with_kernels, [x.result() for x in made], strict=True))


def _link(archive: Path, folder: Path) -> None:
    """The libraries as build/amd links them, of another archive."""
    for name in LIBRARIES:
        (file,) = BUILD.glob(f"{name}*.so")
        command = run("ninja", "-C", BUILD, "-t", "commands", file.name).splitlines()[-1]
        words = [str(archive) if word == "libxlstm_hip.a" else word for word in command.split()]
        words = [str(folder / file.name) if word == file.name else word for word in words]
        run("sh", "-c", f"cd {BUILD} && {' '.join(words)}")


def libraries(folder: Path) -> list[Path]:
    """The package's libraries with kernels for the chip, in a folder of their own below this one. They are made again
    when an object of build/amd was."""
    code_objects.build("xlstm_hip_ops", "_native")
    archive = BUILD / "libxlstm_hip.a"
    of = (str(archive.stat().st_mtime_ns), rocm_llvm.PARTS.name, str(ALL_ELEMENTS), Path(__file__).read_text())
    into = folder / hashlib.sha256("\0".join(of).encode()).hexdigest()[:12]
    if not into.exists():
        made = _assembly_files()
        shutil.rmtree(folder, ignore_errors=True)
        unfinished = folder / "unfinished"
        unfinished.mkdir(parents=True)
        changed = [unfinished / x.name for x in made]
        for (object_file, assembly), to in zip(made.items(), changed, strict=True):
            _with_bundle(object_file, assembly, to)
        other = unfinished / archive.name
        shutil.copy(archive, other)
        run(Compiler.of_build().tool("llvm-ar"), "r", other, *changed)
        _link(other, unfinished)
        for x in (*changed, other):
            x.unlink()
        unfinished.rename(into)
    return sorted(into.glob("*.so"))


if __name__ == "__main__":
    *arguments, source_file, _, result = sys.argv[1:]
    text = rocm_llvm.text_of(Path(source_file), CHIP, ("-std=c++20", "-O3", *arguments))
    assembly_file = Path(result).with_suffix(".s")
    assembly_file.write_text(rocm_llvm.assembly_of(text, CHIP))
    rocm_llvm.make_code_object(assembly_file, CHIP, Path(result))
    assembly_file.unlink()
