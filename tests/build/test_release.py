# SPDX-License-Identifier: Apache-2.0
"""The findings of scripts/release.py about a library: nothing of this build's, and each fault of a planted one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import xlstm_hip

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(xlstm_hip.__file__).parent

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils is not installed")


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_this_build_links(release: ModuleType) -> None:
    libraries = sorted(PACKAGE.glob("*.so"))
    assert len(libraries) >= 2
    faults = [fault for library in libraries for fault in release.faults_of(library)]
    # An editable install finds torch where the build did; a wheel may not.
    assert [fault for fault in faults if not fault.startswith("looks for libraries in")] == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_planted_faults(release: ModuleType, tmp_path: Path) -> None:
    other_library, library = tmp_path / "libother.so", tmp_path / "_planted.so"
    (tmp_path / "other.cpp").write_text("int other() { return 1; }\n")
    (tmp_path / "planted.cpp").write_text(
        f'int other(); extern "C" int planted() {{ return other(); }}\nconst char* where = "{ROOT}/csrc";\n'
    )
    shared = ["g++", "-shared", "-fPIC"]
    subprocess.run([*shared, "-o", other_library, tmp_path / "other.cpp"], check=True)
    subprocess.run(
        [*shared, "-o", library, tmp_path / "planted.cpp", other_library, f"-Wl,-rpath,{tmp_path}"], check=True
    )
    faults = list(release.faults_of(library))
    assert f"looks for libraries in {tmp_path}" in faults
    assert any(fault.startswith("needs ") and "libother.so" in fault for fault in faults)
    assert f"has the folder {ROOT} in it" in faults


def test_symbols_that_are_too_new(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(release.NEWEST, "GLIBC", (2, 5))
    faults = list(release.faults_of(PACKAGE / "_xlstm_hip_ops.so"))
    assert any(fault.startswith("needs GLIBC_2.") for fault in faults)


def test_a_failing_command_ends_with_its_output(release: ModuleType) -> None:
    with pytest.raises(SystemExit, match="(?s)what it said.*failed: "):
        release.run(sys.executable, "-c", "print('what it said'); raise SystemExit(1)")


def test_an_environment_has_what_is_needed_and_nothing_else(release: ModuleType, tmp_path: Path) -> None:
    found = release.needed(["jinja2>=2; python_version >= '3'", "pytest; extra == 'test'"], {})
    assert set(found) == {"jinja2", "markupsafe"}
    python, packages = release.bare_environment(tmp_path / "environment")
    release.share(found.values(), packages)
    release.run(python, "-c", "import jinja2, markupsafe; assert jinja2.Template('{{ 1 + 1 }}').render() == '2'")
    for missing in ("torch", "pytest", "pip"):
        done = subprocess.run([python, "-c", f"import {missing}"], capture_output=True, text=True)
        assert "No module named" in done.stderr, missing
