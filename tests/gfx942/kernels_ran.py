# SPDX-License-Identifier: Apache-2.0
"""Which kernels of a family (a folder of csrc/) the library holds, and which of them were launched."""

from __future__ import annotations

import functools
import re
from types import ModuleType

from builds import ROOT


@functools.cache
def _names(family: str) -> frozenset[str]:
    sources = [path for path in (ROOT / "csrc" / family).iterdir() if path.suffix in (".h", ".hip")]
    found = (re.findall(r"__global__[^;]*?\bvoid\s+(\w+)\(", path.read_text()) for path in sources)
    return frozenset(name for names in found for name in names)


def function_of(mangled: str) -> str:
    """The innermost name in a mangled one: `walk` of _ZN5xlstm3gpu4walkI..."""
    name, rest = "", mangled.removeprefix("_ZN")
    while length := re.match(r"\d+", rest):
        begin = length.end()
        end = begin + int(length[0])
        name, rest = rest[begin:end], rest[end:]
    return name


def check_every_kernel_ran(device: ModuleType, family: str) -> None:
    held = {
        kernel.name
        for kernel in device.kernels()
        if kernel.name.startswith("_ZN5xlstm")
        and kernel.instructions_in_code > 1
        and function_of(kernel.name) in _names(family)
    }
    ran = {counted.kernel.name for counted in device.counters()}
    assert held, f"the library holds no kernels of csrc/{family}"
    assert held <= ran, "never ran: " + ", ".join(sorted(held - ran))
