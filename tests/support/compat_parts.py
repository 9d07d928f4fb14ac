# SPDX-License-Identifier: Apache-2.0
"""Modules of xlstm_hip.compat beside the libraries that they stand in for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import xlstm_hip


def findable(monkeypatch: pytest.MonkeyPatch, part: ModuleType) -> None:
    """Lets torch.compile, which imports modules by their names, find a part for the length of a test."""
    monkeypatch.setitem(sys.modules, "xlstm_hip.compat", ModuleType("xlstm_hip.compat"))
    monkeypatch.setitem(sys.modules, part.__name__, part)


def compat_part(name: str) -> Any:
    """Without xlstm_hip.compat itself, which puts modules under other libraries' names for the rest of the process.
    Modules that a part imports, other than parts of compat, stay imported."""
    package = ModuleType("xlstm_hip.compat")
    package.__path__ = [str(Path(xlstm_hip.__file__).parent / "compat")]

    def parts() -> dict[str, ModuleType]:
        return {n: module for n, module in sys.modules.items() if f"{n}.".startswith("xlstm_hip.compat.")}

    before = parts()
    sys.modules["xlstm_hip.compat"] = package
    try:
        return importlib.import_module(f"xlstm_hip.compat.{name}")
    finally:
        for n in parts():
            del sys.modules[n]
        sys.modules.update(before)
