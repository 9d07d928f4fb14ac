# SPDX-License-Identifier: Apache-2.0
"""The compiled module _native: facts of the build and the CPU, known devices, launch plans."""

from __future__ import annotations

import importlib
from typing import Any


def native() -> Any:
    """The module _native, or None if it was not built."""
    try:
        return importlib.import_module(".._native", __package__)
    except ModuleNotFoundError:
        return None
