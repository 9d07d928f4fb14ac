# SPDX-License-Identifier: Apache-2.0
"""Lays the package out as a kernel repository for Hugging Face's `kernels`: build.toml, torch-ext and csrc, which its
builder reads, and under build/ a folder for each wheel, which `kernels.get_kernel` loads.

    python scripts/hub_kernel.py FOLDER --variant cpu=xlstm_hip-....whl
    python scripts/hub_kernel.py FOLDER --variant rocm72=ROCM.whl:gfx90a,gfx942 --variant cu130=CUDA.whl:8.0,9.0a

A wheel may also be a folder, that of an installed package. It takes from the package only the files that its functions
need: the mLSTM, attention and the layers; no models, commands or stand-ins for other packages, and not the module
_native, which is for one Python alone. The op library's namespace follows from its file's name (csrc/torch/library.h),
so a library that was built once serves the package and the hub. In the tests `kernels` parses build.toml and loads
build/; its builder, which needs Nix, has not been run on the rest.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python/xlstm_hip"
NAME, HUB_NAME, VERSION = "xlstm_hip", "xlstm-hip", 0  # 0: not yet stable, by the hub's convention
OLDEST_TORCH = "2.10"  # as csrc is compiled: the variant's name says it
ENTRIES = ("__init__", "attention/__init__", "layers/__init__")
# The default list of the build, by which the hub's builder is told the chips.
ROCM_ARCHS = tuple(
    re.findall(r"gfx\w+", re.findall(r"set\(default_hip_archs (.*)\)", (ROOT / "cmake/gpu_archs.cmake").read_text())[0])
)
CUDA_ARCHS = ("8.0", "9.0a")
GPU_KERNELS: dict[
    str, tuple[str, tuple[str, ...], tuple[str, ...]]
] = {  # backend: archs' field, archs, endings of sources
    "cpu": ("", (), ()),
    "cuda": ("cuda-capabilities", CUDA_ARCHS, ("hip", "cu")),
    "rocm": ("rocm-archs", ROCM_ARCHS, ("hip",)),
}

WHICH_GPU = """\
#if defined(ROCM_KERNEL)
#define XLSTM_HIP_GPU_HIP
#elif defined(CUDA_KERNEL)
#define XLSTM_HIP_GPU_CUDA
#endif
"""

MODULE = """\
// SPDX-License-Identifier: Apache-2.0
// What the builder's _ops.py imports: loading it registers the ops.
#include <Python.h>

#define XLSTM_JOINED(a, b) a##b
#define XLSTM_JOIN(a, b) XLSTM_JOINED(a, b)
#define XLSTM_QUOTED(a) #a
#define XLSTM_QUOTE(a) XLSTM_QUOTED(a)

PyMODINIT_FUNC XLSTM_JOIN(PyInit_, TORCH_EXTENSION_NAME)() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, XLSTM_QUOTE(TORCH_EXTENSION_NAME), nullptr, 0, nullptr};
  return PyModule_Create(&module);
}
"""

OPS_MODULE = '''# SPDX-License-Identifier: Apache-2.0
"""Loads the op library of this variant, under a name that no other version has."""

from pathlib import Path

import torch

torch.ops.load_library(str(Path(__file__).with_name("{name}.so")))
ops = torch.ops.{name}


def add_op_namespace_prefix(name: str) -> str:
    return f"{name}::{{name}}"
'''

INIT = """

from . import attention, layers  # noqa: E402

__all__ += ["attention", "layers"]
PUBLIC_MODULES = dict.fromkeys(["attention", "layers", "mlstm", "reference"])
"""

# Older versions of `kernels` import the folder below the variant, by the name that the variant's files
# have.
COMPATIBLE = """# SPDX-License-Identifier: Apache-2.0
import importlib.util
import sys
from pathlib import Path

_name = "{name}"
if _name not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parents[1] / "__init__.py")
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
globals().update({{key: value for key, value in vars(sys.modules[_name]).items() if not key.startswith("__")}})
"""


class Variant(NamedTuple):
    backend: str  # cpu, rocm72, cu130
    source: Path
    archs: tuple[str, ...]

    @property
    def kind(self) -> str:
        return {"rocm": "rocm", "cu": "cuda"}.get(self.backend.rstrip("0123456789"), self.backend)


def variant(text: str) -> Variant:
    backend, _, remainder = text.partition("=")
    source, _, archs = remainder.partition(":")
    parsed = Variant(backend, Path(source), tuple(filter(None, archs.split(","))))
    if not re.fullmatch(r"cpu|rocm\d{2,}|cu\d{2,}", backend) or not source:
        raise argparse.ArgumentTypeError(f"expected cpu=WHEEL, rocmXY=WHEEL:ARCHS or cuXYZ=WHEEL:ARCHS, got {text!r}")
    if bool(parsed.archs) == (backend == "cpu"):
        expected = "no archs" if backend == "cpu" else "archs after the wheel, such as :gfx942"
        raise argparse.ArgumentTypeError(f"{backend}: expected {expected}, got {text!r}")
    if not parsed.source.exists():
        raise argparse.ArgumentTypeError(f"{backend}: expected a wheel or a folder, got {source!r}")
    return parsed


# ---- the Python part


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node below this one, without the blocks that only type checkers read."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from run_nodes(child)


def imported(path: Path) -> set[Path]:
    """The package's modules that a module imports, at any place in it."""
    found = set()
    for node in run_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1]
            base = folder / (node.module or "").replace(".", "/")
            names = [base / alias.name for alias in node.names]
            for candidate in (base, *names):
                found |= {p for p in (candidate.with_suffix(".py"), candidate / "__init__.py") if p.is_file()}
    return found


def modules() -> list[Path]:
    """The modules that the entries import, with their packages."""
    found: set[Path] = set()
    waiting = [PACKAGE / f"{entry}.py" for entry in ENTRIES]
    while waiting:
        path = waiting.pop()
        if path in found or path.name == "_ops.py":
            continue
        found.add(path)
        waiting += imported(path)
        if path.parent != PACKAGE:
            waiting.append(path.parent / "__init__.py")
    return sorted(found)


def translated(path: Path) -> str:
    """A module with the names of its ops asked of _ops.py rather than written out."""
    text = path.read_text(encoding="utf-8")
    text, count = re.subn(r'"xlstm_hip::(\w+)"', r'add_op_namespace_prefix("\1")', text)
    if count:
        dots = "." * len(path.relative_to(PACKAGE).parts)
        first = "from __future__ import annotations\n"
        text = text.replace(first, f"{first}\nfrom {dots}_ops import add_op_namespace_prefix\n", 1)
    if path == PACKAGE / "__init__.py":
        text += INIT
    if "torch.ops.xlstm_hip" in text or "import xlstm_hip" in text or "from xlstm_hip" in text:
        raise ValueError(f"{path}: names the package or its ops, which have another name in a kernel")
    return text


def write_python(folder: Path) -> None:
    for path in modules():
        target = folder / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(translated(path), encoding="utf-8")
    for data in PACKAGE.rglob("*.json"):
        target = folder / data.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data, target)


# ---- what kernel-builder reads


def isa_flags() -> dict[str, list[str]]:
    """Instruction set -> compiler flags, as cmake/cpu_kernels.cmake has them."""
    text = (ROOT / "cmake/cpu_kernels.cmake").read_text(encoding="utf-8")
    flags: dict[str, list[str]] = {}
    for isa, value in re.findall(r'set\(isa_(\w+)_flags "?([^")]*)"?\)', text):
        if isa != "common":
            words = [flags[w[len("${isa_") : -len("_flags}")]] if w.startswith("$") else [w] for w in value.split()]
            flags[isa] = [flag for group in words for flag in group]
    return flags


def below(folder: Path, *patterns: str) -> list[str]:
    """Files of the repository that is being made, as build.toml names them."""
    return sorted({path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern)})


def elements_of(path: Path) -> list[str]:
    """The types that a GPU source is compiled for one by one, as cmake/element_instances.cmake reads them."""
    lines = re.findall(r"^// Compiled once for each XLSTM_ELEMENT.*: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return " ".join(lines).split()


def write_sources(folder: Path) -> None:
    """csrc as it lies here, and what the builder cannot say: a file for each CPU kernel and instruction set, since
    flags belong to files; which GPU it is; build_info.h, which CMake would write; what Python imports."""
    shutil.rmtree(folder / "csrc", ignore_errors=True)
    shutil.copytree(ROOT / "csrc", folder / "csrc", ignore=shutil.ignore_patterns("native"))
    for path in (folder / "csrc").rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        if "XLSTM_HIP_GPU_HIP" in text:
            first, remainder = text.split("\n", 1)
            path.write_text(f"{first}\n{WHICH_GPU}{remainder}", encoding="utf-8")
    for path in (folder / "csrc").rglob("*.hip"):
        for element in elements_of(path):
            name = path.relative_to(folder / "csrc").as_posix()
            text = f'// SPDX-License-Identifier: Apache-2.0\n#define XLSTM_ELEMENT {element}\n#include "{name}"\n'
            target = folder / "torch-ext/elements" / f"{path.stem}_{element}.hip"
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
    facts = {
        "XLSTM_HIP_VERSION": re.findall(r'__version__ = "(.*)"', (PACKAGE / "_version.py").read_text())[0],
        "XLSTM_HIP_CPU_ISAS": ";".join(isa_flags()),
        "XLSTM_HIP_GPU_ARCHS": ";".join((*ROCM_ARCHS, *(arch.replace(".", "") for arch in CUDA_ARCHS))),
        "XLSTM_HIP_TORCH_TARGET_TEXT": OLDEST_TORCH,
    }
    template = (ROOT / "cmake/build_info.h.in").read_text(encoding="utf-8")
    filled = re.sub(r"@(\w+)@", lambda match: facts.get(match[1], ""), template)
    (folder / "csrc/build_info.h").write_text(filled, encoding="utf-8")
    (folder / "torch-ext/module.cpp").write_text(MODULE, encoding="utf-8")
    for isa in isa_flags():
        target = folder / "torch-ext/isa" / isa
        target.mkdir(parents=True)
        for kernel in sorted((ROOT / "csrc").rglob("*_cpu.cpp")):
            name = kernel.relative_to(ROOT / "csrc").as_posix()
            text = f'// SPDX-License-Identifier: Apache-2.0\n#define XLSTM_ISA {isa}\n#include "{name}"\n'
            (target / name.replace("/", "_")).write_text(text, encoding="utf-8")


def build_toml(folder: Path) -> str:
    by_element = [path.relative_to(folder).as_posix() for path in (folder / "csrc").rglob("*.hip")
                  if elements_of(path)]  # fmt: skip
    headers = below(folder, "csrc/**/*.h", "csrc/**/*_cpu.cpp") + by_element  # what the files of torch-ext include
    host = [path for path in below(folder, "csrc/**/*.cpp") if not path.endswith("_cpu.cpp") and "/torch/" not in path]

    def gpu_sources(endings: tuple[str, ...]) -> list[str]:
        patterns = ("csrc/**/*", "torch-ext/elements/*")
        paths = below(folder, *(f"{pattern}.{ending}" for pattern in patterns for ending in endings))
        return [path for path in paths if path not in by_element]

    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Written by scripts/hub_kernel.py.",
        "[general]", f'name = "{HUB_NAME}"', f"version = {VERSION}", "edition = 5", 'license = "Apache-2.0"',
        'backends = ["cpu", "cuda", "rocm"]', "",
        "[torch]", f"src = {json.dumps([*below(folder, 'csrc/torch/*'), 'torch-ext/module.cpp'])}",
        'include = ["csrc", "csrc/include"]', 'pyext = ["py", "json"]', "",
        "[torch.stable-abi]", *(f'{backend} = "{OLDEST_TORCH}"' for backend in ("cpu", "cuda", "rocm")), "",
    ]  # fmt: skip
    for backend, (field, archs, endings) in GPU_KERNELS.items():
        for isa, flags in isa_flags().items():
            all_flags = ["-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", *flags]
            lines += [
                f"[kernel.{backend}_{isa}]", f'backend = "{backend}"', 'depends = ["torch"]',
                f"src = {json.dumps(below(folder, f'torch-ext/isa/{isa}/*.cpp') + headers)}",
                'include = ["csrc", "csrc/include"]', f"cxx-flags = {json.dumps(all_flags)}", "",
            ]  # fmt: skip
        lines += [
            f"[kernel.{backend}_host]", f'backend = "{backend}"', 'depends = ["torch"]',
            f"src = {json.dumps(host + gpu_sources(endings) + headers)}", 'include = ["csrc", "csrc/include"]',
            *([f"{field} = {json.dumps(archs)}"] if field else []), "",
        ]  # fmt: skip
    return "\n".join(lines)


# ---- what get_kernel loads


def digest(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


def write_variant(folder: Path, of: Variant) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        package = of.source
        if of.source.is_file():
            with zipfile.ZipFile(of.source) as wheel:
                wheel.extract(f"{NAME}/_xlstm_hip_ops.so", scratch)
            package = Path(scratch) / NAME
        library = (package / "_xlstm_hip_ops.so").read_bytes()
    base = f"torch-stable-abi{OLDEST_TORCH.replace('.', '')}-{of.backend}-{platform.machine()}-linux"
    target = folder / "build" / base
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_python(target)
    # Unique for its contents: two versions in a process then have ops of their own.
    contents = hashlib.sha256(library)
    for path in sorted(target.rglob("*.py")):
        contents.update(path.read_bytes())
    name = f"_{NAME}_{of.kind}_{contents.hexdigest()[:12]}"
    (target / f"{name}.so").write_bytes(library)
    (target / "_ops.py").write_text(OPS_MODULE.format(name=name), encoding="utf-8")
    (target / NAME).mkdir()
    (target / NAME / "__init__.py").write_text(COMPATIBLE.format(name=name), encoding="utf-8")
    files = {path.relative_to(target).as_posix(): digest(path) for path in sorted(target.rglob("*")) if path.is_file()}
    metadata = {
        "name": HUB_NAME,
        "id": name,
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": of.kind, **({"archs": list(of.archs)} if of.archs else {})},
        "digest": {"algorithm": "sha256", "files": files},
    }
    (target / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Lays the package out as a kernel repository for Hugging Face's hub.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--variant", type=variant, action="append", default=[], metavar="BACKEND=WHEEL[:ARCHS]")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.folder / "torch-ext", ignore_errors=True)
    write_python(args.folder / "torch-ext" / NAME)
    write_sources(args.folder)
    (args.folder / "build.toml").write_text(build_toml(args.folder), encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", args.folder)
    for one in args.variant:
        print(write_variant(args.folder, one).relative_to(args.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
