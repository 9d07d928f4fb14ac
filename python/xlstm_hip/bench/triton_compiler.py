# SPDX-License-Identifier: Apache-2.0
"""How Triton compiles a peer's kernels: LLVM's optimiser is off, except for the kernels that need it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Protocol

LLVM = "DISABLE_LLVM_OPT"


class Compiled(Protocol):
    @property
    def triton(self) -> bool: ...
    @property
    def llvm_opt(self) -> bool: ...


def before_triton() -> None:
    """To be called before Triton is imported, which `compiling` then can tell what to do."""
    os.environ.setdefault(LLVM, "1")


@contextlib.contextmanager
def compiling(implementation: Compiled) -> Iterator[None]:
    """Triton asks the environment at each compilation: only the kernel that needs it goes without LLVM's optimiser."""
    before = os.environ.get(LLVM)
    if implementation.triton and implementation.llvm_opt:
        os.environ.pop(LLVM, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[LLVM] = before
