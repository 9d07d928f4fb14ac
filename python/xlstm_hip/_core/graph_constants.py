# SPDX-License-Identifier: Apache-2.0
"""Functions whose results a torch.compile graph takes as constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def constant_in_graphs(function: Function) -> Function:
    """torch.compiler.assume_constant_result, which imports torch._dynamo: one second of every process's start."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
