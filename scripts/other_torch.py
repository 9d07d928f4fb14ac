# SPDX-License-Identifier: Apache-2.0
"""Puts another torch from PyPI into a folder, for the CPU, to run the tests with it.

    python scripts/other_torch.py torch==2.10.0 build/torch-oldest
    PYTHONPATH=build/torch-oldest python -m pytest tests/mlstm/test_compile.py

On PyPI, torch for Linux is the build for CUDA. Loading it takes NVIDIA's libraries, which are three times its size, and
of which a CPU runs two small ones only. The others' place is taken by one library that has their names and no code: a
call of any of them ends the program. The other requirements of torch are the environment's, which has a torch already.

It needs a C compiler, binutils and a network.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement

# torch calls the first while it is loaded, and takes the addresses of the second's functions.
RUN_ON_A_CPU = {"cudart", "cupti"}
STAND_IN = "libnot_on_a_cpu.so"


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def pip_install(folder: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    output(*pip, "--target", folder, *arguments)


def torch_in(folder: Path) -> Distribution:
    (found,) = Distribution.discover(name="torch", path=[str(folder)])
    return found


def runtime(torch: Distribution) -> list[str]:
    """The requirements of a torch that are libraries of NVIDIA's and run on a CPU."""
    found = []
    for requirement in map(Requirement, torch.requires or []):
        if requirement.name == "cuda-toolkit":  # CUDA 13's: each library is an extra
            requirement.extras &= RUN_ON_A_CPU
            requirement.marker = None
            found.append(str(requirement))
        elif re.fullmatch(r"nvidia-cuda-(runtime|cupti)-cu12", requirement.name):
            found.append(f"{requirement.name}{requirement.specifier}")
    return found


def needed(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", "-W", library)))


def loaded_with_torch(folder: Path) -> tuple[set[Path], set[str]]:
    """The libraries that `import torch` loads, and the names of those that are not there."""
    system = dict(re.findall(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)", output("/sbin/ldconfig", "-p"), re.MULTILINE))
    inside = {path.name: path for path in [*folder.glob("torch/lib/*.so*"), *folder.glob("nvidia/**/*.so*")]}
    loaded: set[Path] = set()
    missing: set[str] = set()
    waiting, seen = {"libtorch_python.so"}, set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if path := inside.get(name) or system.get(name):
            loaded.add(Path(path))
            waiting |= needed(Path(path)) - seen
        else:
            missing.add(name)
    return loaded, missing


def defined(library: Path) -> set[str]:
    symbols = output("nm", "-D", "--defined-only", "--without-symbol-versions", library)
    return {line.split()[-1] for line in symbols.splitlines()}


def undefined(library: Path) -> set[str]:
    """As "name" or "name@version", without the weak ones, which may be missing."""
    lines = [line.split() for line in output("nm", "-D", "--undefined-only", library).splitlines()]
    return {name for kind, name in lines if kind == "U"}


def library_of_version(library: Path) -> dict[str, str]:
    """The library that each version of a symbol is looked up in."""
    libraries, name = {}, ""
    for line in output("readelf", "-V", "-W", library).splitlines():
        if found := re.search(r" File: (\S+)", line):
            name = found[1]
        elif found := re.search(r" Name: (\S+) +Flags", line):
            libraries[found[1]] = name
    return libraries


def symbols_of(missing: set[str], loaded: set[Path]) -> dict[str, set[str]]:
    """Version -> the symbols with it that the missing libraries would have; "" for those without a version."""
    provided: set[str] = set().union(*map(defined, loaded))
    symbols: dict[str, set[str]] = {}
    for library in loaded:
        libraries = library_of_version(library)
        for symbol in undefined(library):
            name, _, version = symbol.partition("@")
            if libraries.get(version) in missing if version else name not in provided:
                symbols.setdefault(version, set()).add(name)
    return symbols


def stand_in(folder: Path) -> int:
    """Makes the library without code beside torch's, under the name of each missing one; how many those are."""
    loaded, missing = loaded_with_torch(folder)
    if not missing:
        return 0
    symbols = symbols_of(missing, loaded)
    functions = sorted(set().union(*symbols.values()))
    nodes = [f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in symbols.items() if version]
    libraries = folder / "torch/lib"
    with tempfile.TemporaryDirectory() as work:
        source, versions = Path(work, "source.c"), Path(work, "versions")
        source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in functions))
        versions.write_text("\n".join(nodes))
        linker = f"-Wl,--version-script={versions},-soname,{STAND_IN}"
        output("cc", "-w", "-shared", "-fPIC", "-o", libraries / STAND_IN, source, linker)
    for name in missing:
        (libraries / name).symlink_to(STAND_IN)
    return len(missing)


def install(requirement: Requirement, folder: Path) -> str:
    """Into the folder, which is made anew; returns what was installed, in words."""
    shutil.rmtree(folder, ignore_errors=True)
    pip_install(folder, "--no-deps", str(requirement))
    torch = torch_in(folder)
    if needs := runtime(torch):
        pip_install(folder, *needs)
    missing = stand_in(folder)
    return f"torch {torch.version} in {folder}, {missing} libraries of a GPU left out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch", type=Requirement, help="as pip takes it: torch for the newest, torch==2.10.0")
    parser.add_argument("folder", type=Path, help="made anew")
    arguments = parser.parse_args()
    print(install(arguments.torch, arguments.folder.absolute()), flush=True)


if __name__ == "__main__":
    main()
