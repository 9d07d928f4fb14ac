# SPDX-License-Identifier: Apache-2.0
"""The emulated device for the tests here; without a compiler for AMD GPUs they are skipped."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import builds
from code_objects import NoCompiler


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if builds.HERE in item.path.parents:
            item.add_marker(pytest.mark.gfx942)


@pytest.fixture(scope="session")
def device() -> ModuleType:
    """device.py, its library built and loaded."""
    try:
        builds.compiler()
        import device

        device.library()
    except NoCompiler as error:
        pytest.skip(f"no compiler for AMD GPUs; ./scripts/test gfx942 installs one as root: {error}")
    return device


@pytest.fixture(scope="session")
def package(device: ModuleType) -> ModuleType:
    """xlstm_hip with kernels for gfx942, in a torch whose device "cuda" runs them."""
    if "xlstm_hip" in sys.modules:
        pytest.skip("another build of xlstm_hip is in use: run these tests by themselves, pytest tests/gfx942")
    import emulated_torch

    return emulated_torch.import_package()
