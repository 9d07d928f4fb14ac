# SPDX-License-Identifier: Apache-2.0
"""Measuring: clocks, memory, the facts of the machine, and what a benchmark leaves behind.

Its public modules are what the files of benchmarks/ are made of.
"""

import importlib
from typing import Any

__all__ = [
    "contest",
    "environment",
    "machine",
    "memory",
    "metrics",
    "operators",
    "plot",
    "registry",
    "result_files",
    "table",
    "timing",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
