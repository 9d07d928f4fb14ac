# SPDX-License-Identifier: Apache-2.0
"""run.py: any code object from the command line."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import builds
import run

SOURCE = """#include <hip/hip_runtime.h>
extern "C" __global__ void twice(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
"""


@pytest.fixture(scope="module")
def file(device: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "twice.co"
    path.write_bytes(builds.compile_hip(SOURCE))
    return path


def test_it_lists_kernels(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([str(file)]) == 0
    text = capsys.readouterr().out
    assert "twice: " in text and "argument 1: by_value, 4 bytes" in text


def test_it_lists_checks(capsys: pytest.CaptureFixture[str], device: ModuleType) -> None:
    assert run.main(["--checks"]) == 0
    assert "lds-race: error\n" in capsys.readouterr().out


def test_it_runs_one(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "x.npz"
    arguments = ["--kernel", "twice", "--grid", "2", "--block", "64", "--arg", "f32[128]=range", "--arg", "100"]
    assert run.main([str(file), *arguments, "--save", str(saved)]) == 0
    text = capsys.readouterr().out
    assert "wave instructions" in text and "| binds |" in text
    x = np.arange(128, dtype=np.float32)
    np.testing.assert_array_equal(np.load(saved)["argument_0"], np.where(x < 100, 2 * x, x))


def test_a_fault_is_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kernel", "twice", "--grid", "3", "--block", "64", "--arg", "f32[128]=1", "--arg", "192"]
    assert run.main([str(file), *arguments]) == 1
    error = capsys.readouterr().err
    assert "outside every allocation" in error and "workgroup (2, 0, 0)" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "thrice"], "thrice"),
        (["--kernel", "twice"], "expected 2 arguments, got 0"),
        (["--kernel", "twice", "--arg", "f32[64]=range", "--arg", "64", "--block", "2048"], "2048"),
    ],
)
def test_what_cannot_be_run(file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run.main([str(file), *arguments]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arg", "q32[64]"], "--arg q32[64]: expected one of"),
        (["--arg", "f32[64]=much"], "expected random, range, a .npy file or a number"),
        (["--arg", "many"], "expected a number, or a buffer such as"),
        (["--grid", "0"], "expected 1 to 3 numbers"),
    ],
)
def test_what_is_no_argument(file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main([str(file), "--kernel", "twice", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_file_that_is_no_code_object(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: ModuleType) -> None:
    path = tmp_path / "text.co"
    path.write_bytes(b"not an ELF file, but long enough to be looked at" * 4)
    assert run.main([str(path)]) == 1
    assert capsys.readouterr().err
