# SPDX-License-Identifier: Apache-2.0
"""Wheels of PyPI, pinned by version and hash in a requirements file: downloaded, and some of their files unpacked."""

from __future__ import annotations

import fcntl
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from code_objects import run


class NotDownloaded(RuntimeError):
    """pip found no way to a wheel; why is its last line."""


def make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """The folder as make fills it, unless it is there. Processes wait for one another, and it is never half there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.parent / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)


def unpack(requirements: Path, folder: Path, members: Sequence[str]) -> None:
    """The files whose names match a pattern, below the folder. pip compares the hashes: another file is an error."""
    wheels = folder / "wheels"
    tags = [f"--platform={x}" for x in ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2010_x86_64")]
    versions = ("--python-version=3.11", "--implementation=cp", "--only-binary=:all:", "--no-deps", "--require-hashes")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    try:
        run(*pip, *versions, *tags, "-r", requirements, "-d", wheels)
    except RuntimeError as error:
        if "DO NOT MATCH THE HASHES" in str(error):
            raise
        raise NotDownloaded(str(error).strip().splitlines()[-1]) from error
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [x for x in archive.namelist() if re.fullmatch("|".join(members), x)])
    shutil.rmtree(wheels)
