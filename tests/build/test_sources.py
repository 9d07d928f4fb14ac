# SPDX-License-Identifier: Apache-2.0
"""Rules for the sources."""

from __future__ import annotations

import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
OF_A_COMPILER = re.compile(r"__CUDA\w+|__NVCC__|__HIP\w*__|__HIPCC__|__GFX\w+|__gfx\w+|__AMDGCN\w*")


def test_only_arch_and_base_ask_which_compiler_it_is() -> None:
    files = [
        path for path in CSRC.rglob("*") if path.is_file() and not {CSRC / "arch", CSRC / "base"} & set(path.parents)
    ]
    assert len(files) > 100
    asking = {str(path.relative_to(CSRC)): OF_A_COMPILER.findall(path.read_text()) for path in files}
    assert not {name: words for name, words in asking.items() if words}


@pytest.mark.parametrize("family", ["attention", "engine", "layer", "mlstm", "slstm"])
def test_folders_of_a_family_are_a_stack(family: str) -> None:
    """A folder includes those below it: none includes itself again through others."""
    below = defaultdict[Path, set[Path]](set)
    for path in (CSRC / family).rglob("*.*"):
        for name in re.findall(rf'#include "({family}/[^"]+)"', path.read_text()):
            assert (CSRC / name).is_file(), f"{path} includes {name}"
            if (CSRC / name).parent != path.parent:
                below[path.parent].add((CSRC / name).parent)
    assert below
    TopologicalSorter(below).prepare()  # raises CycleError, which names the folders


def test_kernels_compiled_per_element_name_all_elements_on_such_lines() -> None:
    """cmake/element_instances.cmake reads them: what a formatter moves to the next line would not be compiled."""
    found = 0
    for path in CSRC.rglob("*.hip"):
        lines = path.read_text().splitlines()
        if not any("XLSTM_ELEMENT" in line for line in lines if not line.startswith("//")):
            continue
        at = [
            n
            for n, line in enumerate(lines)
            if re.match(r"// Compiled once for each XLSTM_ELEMENT of: \w+( \w+)*$", line)
        ]
        assert at == list(range(at[0], at[0] + len(at))) and not lines[at[-1] + 1].startswith("//"), path
        found += 1
    assert found >= 6
