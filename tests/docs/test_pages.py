# SPDX-License-Identifier: Apache-2.0
"""Pages that list what the code has list all of it: environment variables, the layers that an adapter can go to."""

from __future__ import annotations

import re
from pathlib import Path

from test_readme import ROOT, python_of, text_of

from xlstm_hip.models.quantize import GATES, SINGLE_NAMES

# How each language reads a variable, and where users meet it.
READS = {
    "python/**/*.py": r'"(XLSTM_HIP_[A-Z_]+)"',
    "csrc/**/*.cpp": r'getenv\("(\w+)"\)',
    "csrc/**/*.hip": r'getenv\("(\w+)"\)',
    "cmake/*.cmake": r"\$ENV\{([A-Z_]+)\}|ENV:([A-Z_]+)\b",
    "build_backend/*.py": r'environ(?:ment)?(?:\.get\(|\[)"(\w+)"|"(MAX_JOBS|CMAKE_\w+|VIRTUAL_ENV|UV_\w+)"',
    "tests/**/*.py": r'environ(?:\.get\(|\[)"(XLSTM_HIP_OTHER_TORCH|WITHOUT_\w+)"',
}


def variables_read(root: Path) -> set[str]:
    found = set()
    for pattern, read in READS.items():
        for path in root.glob(pattern):
            for match in re.finditer(read, path.read_text(encoding="utf-8")):
                found |= set(filter(None, match.groups()))
    return found


def variables_listed() -> set[str]:
    first_cells = re.findall(r"^\| (`.*?) \|", text_of("docs/environment.md"), re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`([A-Z_]+)`", cell)}


def test_every_environment_variable_is_listed() -> None:
    """And no other, but PYTHON, which shell scripts read."""
    read = variables_read(ROOT)
    assert {"XLSTM_HIP_LOGS", "XLSTM_HIP_GPU_SCHEDULE", "XLSTM_HIP_GPU", "MAX_JOBS", "ROCM_PATH"} <= read
    compilers = {f"{language}CXX" for language in ("HIP", "CUDA")}  # cmake/gpu_compilers.cmake puts them together
    assert variables_listed() == read | compilers | {"PYTHON"}


def test_planted_variables_are_found(tmp_path: Path) -> None:
    (tmp_path / "python/a").mkdir(parents=True)
    (tmp_path / "python/a/b.py").write_text('x = os.environ.get("XLSTM_HIP_NEW")')
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/x.cpp").write_text('const char* x = std::getenv("XLSTM_HIP_OTHER");')
    assert variables_read(tmp_path) == {"XLSTM_HIP_NEW", "XLSTM_HIP_OTHER"}


def test_an_adapter_goes_to_every_large_layer() -> None:
    """The target_modules of docs/finetuning.md: all linear layers of a block but the gates."""
    code = python_of("docs/finetuning.md")
    named = re.search(r"target_modules=\[(.*?)\]", code, re.DOTALL)
    assert named
    targets = set(re.findall(r'"(\w+)"', named[1]))
    assert targets == set(SINGLE_NAMES) - {*GATES, "lm_head"}
