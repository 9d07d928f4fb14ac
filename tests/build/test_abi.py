# SPDX-License-Identifier: Apache-2.0
"""The needs of the built libraries: torch's stable ABI as of 2.10, and of torch libtorch.so alone.

The oldest torch that has a symbol is read from the guards in torch's own headers; a symbol without a guard is
older than every version that guards one.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

OLDEST_TORCH = (2, 10)
SHIM_HEADERS = ("torch/csrc/stable/c/shim.h", "torch/csrc/inductor/aoti_torch/c/shim.h")
TORCH_LIBRARIES = ("libtorch", "libc10", "libshm", "libcaffe2")

pytestmark = pytest.mark.skipif(
    shutil.which("nm") is None or shutil.which("readelf") is None, reason="binutils is not installed"
)


def package_folder() -> Path:
    spec = importlib.util.find_spec("xlstm_hip")
    assert spec and spec.origin, "xlstm_hip is not installed"
    return Path(spec.origin).parent


def native_module() -> Path:
    spec = importlib.util.find_spec("xlstm_hip._native")
    assert spec and spec.origin, "xlstm_hip._native is not built"
    return Path(spec.origin)


def op_library() -> Path:
    return native_module().parent / "_xlstm_hip_ops.so"


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def undefined_symbols(library: Path) -> dict[str, bool]:
    """Undefined dynamic symbols without a version, which are not the C or C++ runtime's; True where weak."""
    symbols = {}
    for line in output("nm", "-D", "--undefined-only", library).splitlines():
        kind, name = line.split()[-2:]
        if "@" not in name:
            symbols[name] = kind in "wv"
    return symbols


def needed_libraries(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library))


def symbol_versions(headers: list[str]) -> dict[str, tuple[int, int]]:
    """The oldest torch that has each function of the shim headers: `#if TORCH_FEATURE_VERSION` around it."""
    versions: dict[str, tuple[int, int]] = {}
    for text in headers:
        guards: list[tuple[int, int]] = [(0, 0)]
        for line in text.splitlines():
            if re.match(r"\s*#\s*if", line):
                found = re.search(r"TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)", line)
                guards.append(max(guards[-1], (int(found[1]), int(found[2]))) if found else guards[-1])
            elif re.match(r"\s*#\s*endif", line):
                guards.pop()
            else:
                code = line.split("//")[0]
                versions.update({name: guards[-1] for name in re.findall(r"\b((?:aoti_)?torch_\w+)\(", code)})
    return versions


def wrong_symbols(symbols: dict[str, bool], versions: dict[str, tuple[int, int]]) -> list[str]:
    """The undefined symbols that a torch of OLDEST_TORCH may not have, each with what is wrong."""
    wrong = []
    for name, weak in symbols.items():
        if re.match(r"(_ITM_|__gmon_start__|__cxa_finalize|__tls_get_addr)", name):
            continue  # the linker's own
        if re.match(r"(hip|__hip)", name):
            continue  # the GPU runtime, which is linked by its name
        if not re.match(r"(aoti_)?torch_", name):
            wrong.append(f"{name}: not a stable-ABI symbol")
        elif name not in versions:
            wrong.append(f"{name}: not in torch's stable headers")
        elif versions[name] > OLDEST_TORCH:
            wrong.append(f"{name}: needs torch {versions[name][0]}.{versions[name][1]}")
        elif "cuda" in name and not weak and "device_type" not in name:
            wrong.append(f"{name}: a GPU symbol must be weak, or a CPU torch cannot load the library")
    return wrong


@pytest.fixture(scope="module")
def versions() -> dict[str, tuple[int, int]]:
    include = Path(torch.__file__).parent / "include"
    return symbol_versions([(include / header).read_text() for header in SHIM_HEADERS])


def test_op_library_uses_the_stable_abi_of_2_10_only(versions):
    symbols = undefined_symbols(op_library())
    assert "torch_library_impl" in symbols, "the op library registers nothing"
    assert wrong_symbols(symbols, versions) == []


def test_the_check_sees_a_symbol_that_is_too_new_or_unstable(versions):
    symbols = {
        "torch_stream_native_handle": False,  # 2.13
        "_ZN3c106detail14torchCheckFailEv": False,
        "aoti_torch_get_current_cuda_stream": False,
        "torch_call_dispatcher": False,
    }
    versions = {
        **versions,
        "torch_stream_native_handle": (2, 13),
        "aoti_torch_get_current_cuda_stream": (0, 0),
    }
    wrong = wrong_symbols(symbols, versions)
    assert [text.split(":")[0] for text in wrong] == list(symbols)[:3]


def test_guards_are_read_from_the_headers(versions):
    assert versions["torch_library_impl"] == (2, 10)
    assert versions["aoti_torch_get_dim"] == (0, 0)


def test_op_library_links_libtorch_and_no_other_torch_library():
    torch_libraries = [name for name in needed_libraries(op_library()) if name.startswith(TORCH_LIBRARIES)]
    assert torch_libraries == ["libtorch.so"]


def test_native_module_needs_no_torch():
    assert [name for name in needed_libraries(native_module()) if name.startswith(TORCH_LIBRARIES)] == []
    assert [name for name in undefined_symbols(native_module()) if "torch" in name] == []


def test_run_path_is_relative():
    path = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", output("readelf", "-d", op_library()))
    assert path == ["$ORIGIN/../torch/lib"]


def test_one_op_library():
    folders = {package_folder(), native_module().parent}
    assert len([file for folder in folders for file in folder.rglob("*ops*.so")]) == 1


@pytest.mark.parametrize("library", [op_library, native_module])
def test_no_path_of_the_build_machine(library):
    content = library().read_bytes()
    for path in (str(ROOT / "csrc"), str(Path(torch.__file__).parent / "include")):
        assert path.encode() not in content


def test_instruction_sets_share_no_code():
    """A function that two sets both define weakly is in the library once, compiled for one of them."""
    for build in (ROOT / "build").glob("*"):
        if "sanitized" in build.name:
            continue  # barely inlined, and never shipped
        seen: dict[str, str] = {}
        for folder in sorted(build.glob("CMakeFiles/xlstm_hip_cpu_*.dir")):
            for file in folder.rglob("*.o"):
                for line in output("nm", "--defined-only", file).splitlines():
                    kind, name = line.split()[-2:]
                    if kind == "W":
                        assert seen.setdefault(name, folder.name) == folder.name, f"{name} is in two sets"
