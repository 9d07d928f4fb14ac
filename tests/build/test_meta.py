# SPDX-License-Identifier: Apache-2.0
"""The project's files: all there, one version everywhere, licensed, and about no particular machine."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FILES = [
    ".ci/run",
    ".clang-format",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CMakeLists.txt",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "csrc/include/xlstm_hip.h",
    "docs/amd_kernels.md",
    "docs/design/index.md",
    "docs/install.md",
    "pyproject.toml",
    "python/xlstm_hip/py.typed",
    "scripts/demo",
    "scripts/test",
]
SOURCES = (".py", ".cpp", ".h", ".hip", ".cmake", ".sh", ".toml", ".in", "CMakeLists.txt")
# Homes, temporary and package folders of one machine; system-wide places that every Debian has are fine.
MACHINE_PATHS = re.compile(r"/(?:work|home|root|Users|tmp|mnt|scratch)/[A-Za-z0-9_.-]+")


def project_files() -> list[Path]:
    """The files that git tracks or would track, or every file if this is no git checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.splitlines()]
    else:
        paths = [path for path in ROOT.rglob("*") if not {"build", ".venv"} & set(path.parts)]
    return [path for path in paths if path.is_file()]


def package_version() -> str:
    match = re.search(r'__version__ = "(.*)"', (ROOT / "python/xlstm_hip/_version.py").read_text())
    assert match
    return match[1]


@pytest.mark.parametrize("name", FILES)
def test_file_is_there(name):
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("name", [".ci/run", "scripts/demo", "scripts/test"])
def test_commands_can_be_run(name):
    assert (ROOT / name).stat().st_mode & 0o111


def test_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()


def test_version_is_the_same_everywhere():
    expected = package_version()
    assert version("xlstm_hip") == expected
    assert f"\nversion: {expected}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{expected}]" in (ROOT / "CHANGELOG.md").read_text()


def test_built_modules_carry_the_version():
    import xlstm_hip
    from xlstm_hip._core.native import native

    assert xlstm_hip.__version__ == native().build_facts()["version"] == package_version()


def test_version_is_written_once():
    """pyproject.toml and CMake read _version.py; what must repeat it (CHANGELOG, CITATION) is held to it above."""
    index = "python/xlstm_hip/_version.py"
    assert f'input = "{index}"' in (ROOT / "pyproject.toml").read_text()
    assert f"file(STRINGS {index} " in (ROOT / "CMakeLists.txt").read_text()
    expected = package_version()
    again = [
        str(path.relative_to(ROOT))
        for path in project_files()
        if path.suffix in (".py", ".toml", ".cmake", ".h", ".in", ".yml", ".txt")
        and re.search(rf'version\S* ?[=:( ] ?"?{re.escape(expected)}\b', path.read_text(), re.IGNORECASE)
    ]
    assert again == [index]


def test_every_source_names_its_licence():
    missing = [
        str(path.relative_to(ROOT))
        for path in project_files()
        if path.name.endswith(SOURCES)
        and path.stat().st_size
        and "SPDX-License-Identifier" not in path.read_text()[:400]
    ]
    assert missing == []


def test_no_file_names_a_path_of_one_machine():
    found = []
    for path in project_files():
        if path.name.endswith((*SOURCES, ".md", ".yaml", ".cff", ".json")) or path.parent.name in (
            "scripts",
            ".ci",
        ):
            found += [f"{path.relative_to(ROOT)}: {text}" for text in MACHINE_PATHS.findall(path.read_text())]
    assert found == []
