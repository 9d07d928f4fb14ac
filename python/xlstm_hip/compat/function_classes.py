# SPDX-License-Identifier: Apache-2.0
"""Autograd functions by the names that other libraries give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import Function


def function_class(name: str, call: Callable[..., Any]) -> type[Function]:
    """A class whose `apply` is a function that has its gradient already. There is no forward or backward to call."""
    return type(name, (Function,), {"apply": staticmethod(call), "__doc__": f"{name}.apply(...)."})
