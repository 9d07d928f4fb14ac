# SPDX-License-Identifier: Apache-2.0
"""Other projects' source distributions, which hold tests of theirs: downloaded from PyPI into build/peers, never
copied into this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PEERS = Path(__file__).resolve().parents[2] / "build/peers"
# Each at the version that the list of expected differences was read with. PyPI has no tests/models or tests/generation
# of transformers, nothing of FlashMLA, and of mlstm_kernels' tests one that imports what none of its releases has:
# tests/integrations, flash_mla_calls.py and tests/compat/test_mlstm_calls.py make those calls.
SDISTS = {"flash_attn": "2.8.3.post2", "transformers": "5.23.0", "xlstm": "2.0.6"}
# Packages that those tests import and the extra `test` does not contain.
PACKAGES = ("einops==0.8.1", "parameterized==0.9.0")
BUILD_PACKAGES = ("setuptools==80.9.0", "wheel==0.45.1", "packaging==25.0")  # flash_attn's setup.py


def pip(*arguments: str | Path, path: Path | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), environment.get("PYTHONPATH"))))
    # pip runs flash_attn's setup.py to learn the package's name, which else looks for a CUDA compiler.
    subprocess.run(command, check=True, env={**environment, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})


def packages(folder: str = "packages", names: tuple[str, ...] = PACKAGES) -> Path:
    """A folder for PYTHONPATH with what the tests import."""
    path = PEERS / folder
    if not path.exists():
        pip("install", "--no-deps", "--target", path, *names)
    return path


def sdist(name: str) -> Path:
    """The folder of an unpacked source distribution, downloaded if it is not there yet."""
    version = SDISTS[name]
    folder = PEERS / f"{name}-{version}"
    if not folder.exists():
        downloads = PEERS / "downloads"
        # pip wants the build requirements although nothing is built: torch and scikit-build-core are the environment's.
        options = ("--no-deps", "--no-build-isolation", "--no-binary", name)
        build = packages("build_packages", BUILD_PACKAGES)
        pip("download", *options, "--dest", downloads, f"{name}=={version}", path=build)
        with tempfile.TemporaryDirectory(dir=PEERS) as unpacked:
            with tarfile.open(downloads / f"{name}-{version}.tar.gz") as archive:
                archive.extractall(unpacked, filter="data")
            Path(unpacked, folder.name).rename(folder)
    return folder
