# SPDX-License-Identifier: Apache-2.0
"""Every instantiation in the built code object is one that a test file here runs, and says so if it has not."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import builds
from kernels_ran import PARTS, check_every_kernel_ran, kernels_of, library_kernels


def test_every_kernel_is_some_files(package: ModuleType, device: ModuleType) -> None:
    known = frozenset().union(*map(kernels_of, PARTS))
    in_library = library_kernels(device)
    assert len(in_library) > 200, "the library does not hold the kernels"
    unknown = {kernel for kernel in in_library.values() if kernel not in known}
    assert not unknown, f"run by no test file that kernels_ran.PARTS knows: {sorted(unknown)}"
    gone = {kernel for part in PARTS.values() if not isinstance(part, str) for kernel in part} - set(
        in_library.values()
    )
    assert not gone, f"in kernels_ran.PARTS, and not in the library: {sorted(gone)}"


@pytest.mark.parametrize("test_file", PARTS)
def test_each_file_asks(test_file: str) -> None:
    text = (builds.HERE / test_file).read_text(encoding="utf-8")
    assert f'check_every_kernel_ran(device, "{test_file}")' in text


def test_other_chips_run_each_file() -> None:
    """In CI, too: what is not executed there is not claimed."""
    script = (builds.ROOT / "scripts" / "test").read_text(encoding="utf-8")
    assert re.search(r'^  "chips +\| \w+ \| ci \|', script, re.MULTILINE), "stage chips is no part of ci"
    stage = script.partition("\nstage_chips() {\n")[2].partition("\n}\n")[0]
    always = stage.partition("local tests=(")[2].partition(")")[0].split()
    missing = {f"tests/gfx942/{test_file}" for test_file in PARTS} - set(always)
    assert not missing, f"stage chips does not run {sorted(missing)}"


def test_what_never_ran_is_named(package: ModuleType, device: ModuleType) -> None:
    device.reset_counters()
    with pytest.raises(AssertionError, match="never ran: .*walk"):
        check_every_kernel_ran(device, "test_mlstm.py")
