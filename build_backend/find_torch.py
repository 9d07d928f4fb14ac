# SPDX-License-Identifier: Apache-2.0
"""Finds the torch of the environment that the package is built for, and what it is, without importing it.

Inside pip's isolated build the interpreter is still the target environment's, so sysconfig and site point
there although torch cannot be imported. uv and `python -m build` run another interpreter; they leave
VIRTUAL_ENV or UV_PROJECT_ENVIRONMENT, and a torch that was asked for as a build requirement is importable.

Run as a script it prints what it found.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST_TORCH = "2.10"


class TorchError(SystemExit):
    """Ends the build with the text alone; a traceback would hide it."""


@dataclass(frozen=True)
class Torch:
    folder: Path  # holds version.py, include/ and lib/
    version: str  # "2.13.0+cpu"
    cuda: str | None
    hip: str | None

    @property
    def gpu(self) -> str:
        return "hip" if self.hip else "cuda" if self.cuda else "cpu"

    @property
    def text(self) -> str:
        kind = {"hip": f"ROCm {self.hip}", "cuda": f"CUDA {self.cuda}", "cpu": "CPU only"}[self.gpu]
        return f"torch {self.version} ({kind}) in {self.folder}"


def environment_folders(root: Path, python: str = "python3*") -> Iterator[Path]:
    """The package folders under a prefix other than the running one; dist-packages is Debian's name."""
    for lib in (
        f"lib*/{python}/site-packages",
        f"local/lib/{python}/dist-packages",
        "lib/python3/dist-packages",
    ):
        yield from sorted(root.glob(lib))


def importable_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent.parent if spec and spec.origin else None


def inherited_folders() -> list[Path]:
    """The folders of the base interpreter that a virtual environment made with --system-site-packages sees."""
    config = Path(sys.prefix) / "pyvenv.cfg"
    inherits = config.is_file() and re.search("include-system-site-packages *= *true", config.read_text())
    if not inherits:
        return []
    return list(environment_folders(Path(sys.base_prefix), f"python3.{sys.version_info.minor}"))


def candidate_folders() -> Iterator[Path]:
    """Package folders that may hold torch, best first."""
    for key in ("purelib", "platlib"):
        yield Path(sysconfig.get_path(key))
    for name in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"):
        if os.environ.get(name):
            yield from environment_folders(Path(os.environ[name]))
    importable = importable_folder()
    if importable:
        yield importable
    yield from inherited_folders()
    yield Path(site.getusersitepackages())


def version_facts(text: str) -> dict[str, str | None]:
    """The constants that torch/version.py assigns; the file is parsed, not run."""
    facts: dict[str, str | None] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        value = node.value.value
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and (value is None or isinstance(value, str)):
            facts[target.id] = value
    return facts


def release(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        raise TorchError(f"cannot read a version from torch's version.py: {version!r}")
    return int(match[1]), int(match[2])


def read_torch(folder: Path) -> Torch:
    """The torch in a folder that holds version.py; an error where it is too old or not complete."""
    facts = version_facts((folder / "version.py").read_text(encoding="utf-8"))
    torch = Torch(folder.resolve(), facts.get("__version__") or "", facts.get("cuda"), facts.get("hip"))
    if release(torch.version) < release(OLDEST_TORCH):
        raise TorchError(f"xlstm_hip needs torch>={OLDEST_TORCH}; found {torch.text}")
    for part in ("include/torch/csrc/stable", "lib/libtorch.so"):
        if not (folder / part).exists():
            raise TorchError(f"{torch.text} has no {part}, which the build needs")
    return torch


def find_torch(torch_dir: str | None = None) -> Torch | None:
    """The torch to build against: torch_dir, else $TORCH_DIR, else the environment's first, else None.

    A folder that is named but holds no torch is an error, and so is a torch that is too old: the next one on
    the list would not be the one that loads the library.
    """
    named = torch_dir or os.environ.get("TORCH_DIR")
    if named:
        if not (Path(named) / "version.py").is_file():
            raise TorchError(f"TORCH_DIR: expected a torch package folder, with version.py in it; got {named}")
        return read_torch(Path(named))
    for folder in candidate_folders():
        if (folder / "torch" / "version.py").is_file():
            return read_torch(folder / "torch")
    return None


if __name__ == "__main__":
    found = find_torch()
    print(found.text if found else "no torch found")
    sys.exit(0 if found else 1)
