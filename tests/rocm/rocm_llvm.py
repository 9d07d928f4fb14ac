# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels as ROCm 7's compiler makes them, on a machine without ROCm, from wheels of PyPI (wheels.txt):

    a kernel's file  -> ziglang's clang 22, HIP 7.1's headers, the device libraries of ROCm 7.1   -> LLVM's text
    LLVM's text      -> LLVM of ROCm 7.2: AMD's own optimiser, registers and instructions         -> assembly

Only what clang does before LLVM is not AMD's. The flags are those of the build in build/amd, and the headers that clang
itself includes before a HIP file come from the compiler of that build.

    export PYTHONPATH=build_backend:tests/amd
    python tests/rocm/rocm_llvm.py --get     downloads and unpacks the wheels, if they are not here
    python tests/rocm/rocm_llvm.py           prints the registers of all kernels
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import inspect
import json
import multiprocessing
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import code_objects
import jobs
import wheels
from code_objects import BUILD, ROOT, Compiler, Instruction, Kernel, NoCompiler, parse_notes, run, short_name

WHEELS = Path(__file__).with_name("wheels.txt")
FOLDER = ROOT / "build" / "rocm"
ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
MEMBERS = (  # of the wheels, what is unpacked
    r"ziglang/(zig|LICENSE|lib/include/.*)",
    r"triton/backends/amd/(include/hip/.*|lib/(ocml|ockl)\.bc)",
    r"rocm/llvm/librocmllvm\.so",
)
# Constants that ROCm's device libraries ask for: (file, name, type, value). A file's name chooses it.
CONSTANTS = [
    ("abi_version_600", "ABI_version", "i32", 600),
    *((f"{name}_{word}", constant, "i8", value)
      for name, constant in (("finite_only", "finite_only_opt"), ("unsafe_math", "unsafe_math_opt"),
                             ("correctly_rounded_sqrt", "correctly_rounded_sqrt32"), ("wavefrontsize64",) * 2)
      for word, value in (("off", 0), ("on", 1))),
    *((f"isa_version_{arch[3:]}", "ISA_version", "i32",
       1000 * int(arch[3:-2]) + 100 * int(arch[-2], 16) + int(arch[-1], 16)) for arch in ARCHS),
]  # fmt: skip
OTHER_ELEMENTS = {
    "Float16", "float", "Float16Weights", "ByteWeights", "E4m3fnWeights", "E4m3fnuzWeights", "NibbleWeights"
}  # fmt: skip
# Clang 22's text has words that ROCm's LLVM does not know: an attribute of declarations, which LLVM derives again, and
# the chip's features by name, which follow from the chip.
FOREIGN = re.compile(r' nocreateundeforpoison| "target-features"="[^"]*"')


def unpack(parts: Path) -> None:
    """Downloads the wheels, and lays out of their files what clang takes for its own folder and for ROCm."""
    wheels.unpack(WHEELS, parts, MEMBERS)
    (parts / "ziglang/zig").chmod(0o755)

    headers = parts / "clang/include"
    shutil.copytree(parts / "ziglang/lib/include", headers)
    include = Path(run(Compiler.of_build().path, "-print-resource-dir").strip()) / "include"
    for header in (*include.glob("__clang_hip_*"), *include.glob("__clang_cuda_*.h")):
        shutil.copy(header, headers)
    shutil.copytree(include / "cuda_wrappers", headers / "cuda_wrappers")

    hip, rocm = parts / "triton/backends/amd", parts / "rocm_root"
    shutil.copytree(hip / "include", rocm / "include")
    libraries = rocm / "amdgcn/bitcode"
    shutil.copytree(hip / "lib", libraries)
    version = dict(re.findall(r"define (HIP_VERSION_\w+) (\d+)", (rocm / "include/hip/hip_version.h").read_text()))
    (rocm / "share/hip").mkdir(parents=True)
    (rocm / "share/hip/version").write_text("".join(f"{name}={value}\n" for name, value in version.items()))
    target = 'target triple = "amdgcn-amd-amdhsa"\n'
    modules = {"opencl": target}  # which clang looks for, and HIP does not use
    for file, name, kind, value in CONSTANTS:
        text = f"@__oclc_{name} = linkonce_odr hidden local_unnamed_addr addrspace(4) constant {kind} {value}\n"
        modules[f"oclc_{file}"] = target + text
    zig = (parts / "ziglang/zig", "clang", "--target=amdgcn-amd-amdhsa", "-nogpulib", "-c", "-emit-llvm", "-x", "ir")
    for name, text in modules.items():
        (libraries / f"{name}.ll").write_text(text)
        run(*zig, libraries / f"{name}.ll", "-o", libraries / f"{name}.bc")


# Of the unpacked wheels, and of the constants.
PARTS = FOLDER / hashlib.sha256(WHEELS.read_bytes() + repr(CONSTANTS).encode()).hexdigest()[:12]


def ensure_parts() -> None:
    """Downloads and unpacks the wheels, once for each wheels.txt."""

    def make(folder: Path) -> None:
        code_objects.configure(ROOT, BUILD, *code_objects.options())
        unpack(folder)

    wheels.make_once(PARTS, make)


# An option of LLVM among the flags of a source, in one word.
FOR_LLVM = "-mllvm="


def split_flags(flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Clang's, and LLVM's."""
    clang = [flag for flag in flags if not flag.startswith(FOR_LLVM)]
    return clang, [flag.removeprefix(FOR_LLVM) for flag in flags if flag.startswith(FOR_LLVM)]


@functools.cache
def sources() -> dict[Path, list[str]]:
    """Each GPU source of build/amd, with the flags that do not belong to a compiler or to its chips. NoCompiler where
    this machine has not what is needed."""
    if not PARTS.exists():
        raise NoCompiler("the wheels are not here; ./scripts/test rocm downloads them")
    code_objects.configure(ROOT, BUILD, *code_objects.options())
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    found = {}
    for entry in commands:
        if entry["file"].endswith(".hip"):
            command = re.sub("-mllvm (?=-)", FOR_LLVM, entry["command"])
            words = [word for word in shlex.split(command)[1:] if re.match(r"-(D|I|O|std=|W|f|m)", word)]
            found[Path(entry["file"])] = words
    return found


def is_for_bfloat16(source: Path) -> bool:
    """Of sources that there are for several types of elements the one for bfloat16; every other source."""
    return source.stem.rpartition("_")[2] not in OTHER_ELEMENTS


def text_of(source: Path, arch: str, flags: Iterable[str] = ("-std=c++20", "-O3")) -> str:
    """LLVM's text of a HIP file for a chip, before any optimisation; clang's warnings are errors."""
    root = PARTS
    folders = (f"-resource-dir={root}/clang", f"--rocm-path={root}/rocm_root", "-isystem", f"{root}/rocm_root/include")
    command = [
        root / "ziglang/zig", "clang", "--target=x86_64-linux-gnu", "-x", "hip", f"--offload-arch={arch}",
        "--offload-device-only", "--no-gpu-bundle-output", *folders,
        f"--hip-device-lib-path={root}/rocm_root/amdgcn/bitcode", *flags, "-Werror",
        "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", source, "-o", "-",
    ]  # fmt: skip
    return FOREIGN.sub("", run(*command))


@functools.cache
def llvm() -> ctypes.CDLL:
    """ROCm's LLVM, ready to compile for AMD GPUs."""
    library = ctypes.CDLL(str(PARTS / "rocm/llvm/librocmllvm.so"))
    for name in ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser"):
        library[f"LLVMInitializeAMDGPU{name}"]()
    # As clang asks for code objects that nothing is linked to.
    words = (ctypes.c_char_p * 2)(b"rocm_llvm", b"-amdgpu-internalize-symbols")
    library.LLVMParseCommandLineOptions(2, words, None)
    for name in ("ContextCreate", "CreateTargetMachine", "CreatePassBuilderOptions", "RunPasses", "GetBufferStart"):
        getattr(library, f"LLVM{name}").restype = ctypes.c_void_p
    library.LLVMCreateMemoryBufferWithMemoryRangeCopy.restype = ctypes.c_void_p
    library.LLVMGetBufferSize.restype = ctypes.c_size_t
    library.LLVMGetErrorMessage.restype = ctypes.c_char_p
    return library


def compiled(text: str, arch: str) -> str:
    """The assembly that ROCm's LLVM makes of LLVM's text, at -O3 with clang's choice of passes."""
    library, pointer = llvm(), ctypes.c_void_p
    target, module, result, error = pointer(), pointer(), pointer(), ctypes.c_char_p()

    def check(failed: object) -> None:
        if failed:
            raise RuntimeError(f"ROCm's LLVM, {arch}: {(error.value or b'').decode()}")

    triple, bitcode = b"amdgcn-amd-amdhsa", text.encode()
    check(library.LLVMGetTargetFromTriple(triple, ctypes.byref(target), ctypes.byref(error)))
    # -O3, position-independent code, the default code model.
    machine = pointer(library.LLVMCreateTargetMachine(target, triple, arch.encode(), b"", 3, 2, 0))
    context = pointer(library.LLVMContextCreate())
    size = ctypes.c_size_t(len(bitcode))
    buffer = pointer(library.LLVMCreateMemoryBufferWithMemoryRangeCopy(bitcode, size, b"kernels"))
    check(library.LLVMParseIRInContext(context, buffer, ctypes.byref(module), ctypes.byref(error)))
    options = pointer(library.LLVMCreatePassBuilderOptions())
    for name in ("LoopInterleaving", "LoopVectorization", "SLPVectorization", "LoopUnrolling"):
        library[f"LLVMPassBuilderOptionsSet{name}"](options, 1)
    failed = library.LLVMRunPasses(module, b"default<O3>", machine, options)
    if failed:
        raise RuntimeError(f"ROCm's LLVM, {arch}: {library.LLVMGetErrorMessage(pointer(failed)).decode()}")
    emit, assembly_file = library.LLVMTargetMachineEmitToMemoryBuffer, 0
    check(emit(machine, module, assembly_file, ctypes.byref(error), ctypes.byref(result)))
    content = ctypes.string_at(library.LLVMGetBufferStart(result), library.LLVMGetBufferSize(result))
    library.LLVMDisposeMemoryBuffer(result)
    library.LLVMDisposePassBuilderOptions(options)
    library.LLVMDisposeModule(module)
    library.LLVMDisposeTargetMachine(machine)
    library.LLVMContextDispose(context)
    return content.decode()


def add_options(options: list[str]) -> None:
    """For all that this process compiles from now on."""
    words = (ctypes.c_char_p * (1 + len(options)))(b"rocm_llvm", *(option.encode() for option in options))
    llvm().LLVMParseCommandLineOptions(len(words), words, None)


def assembly_of(text: str, arch: str, options: list[str] | None = None) -> str:
    """With options of LLVM, which are those of a process: in one of its own."""
    if not options:
        return compiled(text, arch)
    alone = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, alone, initializer=add_options, initargs=(options,)) as pool:
        return pool.submit(compiled, text, arch).result()


def kernels_of(assembly: str, arch: str) -> list[Kernel]:
    """Each kernel's notes, and its instructions by name."""
    notes = parse_notes(assembly.rpartition(".amdgpu_metadata\n")[2].partition(".end_amdgpu_metadata")[0])
    names: dict[str, list[Instruction]] = {}
    now: list[Instruction] = []
    for line in assembly.splitlines():
        start = re.match(r"([\w.$]+):", line)
        if start and not start[1].startswith(".L"):
            now = names.setdefault(start[1], [])
        found = re.match(r"\t([a-z]\w+)(?:\s|$)", line)
        if found:
            now.append(Instruction(0, found[1], ""))
    demangled = run(Compiler.of_build().tool("llvm-cxxfilt"), *(x["name"] for x in notes)).splitlines() if notes else []
    return [Kernel(short_name(name), arch, x, names[x["name"]]) for x, name in zip(notes, demangled, strict=True)]


def assembly_file(source: Path, arch: str, flags: list[str]) -> Path:
    """What LLVM makes of a source of the build, kept: it takes ten times as long as the source's text."""
    clang_flags, options = split_flags(flags)
    text = text_of(source, arch, clang_flags)
    how = inspect.getsource(compiled) + inspect.getsource(llvm.__wrapped__)
    key = hashlib.sha256("\0".join((arch, how, text, *options)).encode()).hexdigest()[:24]
    cached = PARTS / "assembly" / f"{source.stem}.{arch}.{key}.s"
    if not cached.exists():
        cached.parent.mkdir(exist_ok=True)
        for older in cached.parent.glob(f"{source.stem}.{arch}.*.s"):
            older.unlink()
        unfinished = cached.with_suffix(".unfinished")
        unfinished.write_text(assembly_of(text, arch, options))
        unfinished.rename(cached)
    return cached


def kernels_in(source: Path, arch: str, flags: list[str]) -> list[Kernel]:
    return kernels_of(assembly_file(source, arch, flags).read_text(), arch)


def assembler(arch: str) -> tuple[str | Path, ...]:
    """What makes an object file of assembly: ends with a source, -o and the object file."""
    return (PARTS / "ziglang/zig", "clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-x", "assembler", "-c")


def make_code_object(assembly: Path, arch: str, code_object: Path) -> None:
    """What HIP loads. ROCm's LLVM prints assembly alone, so that what tests/rocm has looked at is what runs."""
    unlinked = code_object.with_suffix(".o")
    run(*assembler(arch), assembly, "-o", unlinked)
    run(Compiler.of_build().tool("ld.lld"), "-shared", unlinked, "-o", code_object)
    unlinked.unlink()


def compile_kernels(expected: Iterable[tuple[Path, str]]) -> list[Kernel]:
    """Of sources for chips; as many at once as the machine has room for."""
    flags = sources()
    with ProcessPoolExecutor(jobs.job_limit()) as pool:
        tasks = [pool.submit(kernels_in, source, arch, flags[source]) for source, arch in expected]
        found = {(kernel.arch, kernel.name): kernel for task in tasks for kernel in task.result()}
    return list(found.values())


def table(kernels: Iterable[Kernel]) -> str:
    lines = ["| chip | kernel | VGPRs | of them acc | SGPRs | scratch | spills V / S |", "|---|---|" + "---:|" * 5]
    for kernel in sorted(kernels, key=lambda x: (ARCHS.index(x.arch), x.name)):
        spills = f"{kernel.note('vgpr_spill_count')} / {kernel.note('sgpr_spill_count')}"
        facts = (kernel.note("vgpr_count"), kernel.notes.get("agpr_count", 0), kernel.note("sgpr_count"))
        cells = (*facts, kernel.note("private_segment_fixed_size"), spills)
        lines.append(f"| {kernel.arch} | `{kernel.name}` | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--get"]:
        ensure_parts()
        sys.exit()
    print(table(compile_kernels((source, arch) for arch in ARCHS for source in sources())))
