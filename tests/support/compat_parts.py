# SPDX-License-Identifier: Apache-2.0
"""Modules of xlstm_hip.compat beside the libraries that they stand in for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import xlstm_hip


def compat_part(name: str) -> Any:
    """Without xlstm_hip.compat itself, which puts modules under other libraries' names for the rest of the process."""
    package = ModuleType("xlstm_hip.compat")
    package.__path__ = [str(Path(xlstm_hip.__file__).parent / "compat")]
    with mock.patch.dict(sys.modules, {"xlstm_hip.compat": package}):
        return importlib.import_module(f"xlstm_hip.compat.{name}")
