# SPDX-License-Identifier: Apache-2.0
"""One op library for every torch: the library under test, in the torch of other interpreters.

Which they are is for the machine to say, since another torch is a large download:

    python3 -m venv old && old/bin/pip install torch==2.10.0 numpy
    XLSTM_HIP_OTHER_TORCH=old/bin/python:new/bin/python ./scripts/test cpu -- tests/build/test_torches.py

They need not have xlstm_hip, nor be of this version of Python. This interpreter is checked as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xlstm_hip
from xlstm_hip._ops import LIBRARY

CHECK = Path(__file__).with_name("torch_check.py")
OTHERS = [path for path in os.environ.get("XLSTM_HIP_OTHER_TORCH", "").split(os.pathsep) if path]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without what knows this version of Python, alone in a folder."""
    folder = tmp_path_factory.mktemp("package")
    leave_out = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(xlstm_hip.__file__).parent, folder / "xlstm_hip", ignore=leave_out)
    shutil.copy(LIBRARY, folder / "xlstm_hip")
    return folder


def check(interpreter: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [interpreter, CHECK],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_op_library_works_in_this_torch() -> None:
    check(sys.executable, dict(os.environ))


@pytest.mark.parametrize("interpreter", OTHERS)
def test_the_op_library_works_in_another_torch(package: Path, interpreter: str) -> None:
    output = check(interpreter, {**os.environ, "PYTHONPATH": str(package)})
    assert f", {package}" in output, "another xlstm_hip was checked"
