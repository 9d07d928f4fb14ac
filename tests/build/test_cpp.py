# SPDX-License-Identifier: Apache-2.0
"""The C++ library without Python or torch: it builds, its tests and its example run, its header is plain C.

The build folder and its options are those of `./scripts/test cpp`, which also runs them under sanitizers;
after that stage nothing is left to compile here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jobs

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cpp"
TESTS = sorted(path.stem for path in (ROOT / "tests" / "cpp").glob("test_*.cpp"))
EXAMPLES = sorted(path.stem for path in (ROOT / "examples" / "cpp").glob("example_*.cpp"))
OPTIONS = (
    "-DGPU=OFF",
    "-DXLSTM_HIP_PYTHON=OFF",
    "-DXLSTM_HIP_WERROR=ON",
    "-DXLSTM_HIP_BUILD_CPP_TESTS=ON",
    "-DXLSTM_HIP_BUILD_EXAMPLES=ON",
)


def run(*command: str | Path, timeout: int) -> str:
    """The output of the command; its output is the message where it fails."""
    # cmake and ninja may be this environment's, which need not be the active one.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [shutil.which(command[0], path=path) or command[0], *command[1:]],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the built programs."""
    run("cmake", "-G", "Ninja", "-S", ".", "-B", BUILD, *OPTIONS, timeout=300)
    run("cmake", "--build", BUILD, "-j", str(jobs.job_limit()), timeout=1200)
    return BUILD


def test_there_are_programs():
    assert TESTS and EXAMPLES


@pytest.mark.parametrize("name", TESTS)
def test_program(programs, name):
    print(run(programs / name, timeout=300))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(programs, name):
    assert "differ by at most" in run(programs / name, timeout=60)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_fits_a_page(name):
    lines = (ROOT / "examples" / "cpp" / f"{name}.cpp").read_text().splitlines()
    assert len(lines) <= 60


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_needs_no_torch_and_no_python(programs, name):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", programs / name, timeout=60))
    runtime = re.compile(r"lib(c|m|stdc\+\+|gcc_s|pthread)\.so|ld-")  # of C and C++
    assert needed and all(runtime.match(library) for library in needed), needed


def test_header_is_plain_c(tmp_path):
    source = tmp_path / "plain.c"
    source.write_text('#include "xlstm_hip.h"\nint main(void) { return xlstm_last_error()[0]; }\n')
    compiler = os.environ.get("CC") or "cc"
    flags = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
    run(compiler, *flags, "-I", ROOT / "csrc" / "include", source, timeout=60)
