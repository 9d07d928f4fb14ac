# SPDX-License-Identifier: Apache-2.0
"""The emulated device for the tests here; without a compiler for AMD GPUs they are skipped."""

from __future__ import annotations

import sys
from collections.abc import Generator
from types import ModuleType

import pytest
import torch

import builds
from code_objects import NoCompiler


def _dtypes(item: pytest.Item) -> set[torch.dtype]:
    """Of a row of a table."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    found = (x if isinstance(x, torch.dtype) else builds.dtype_of(x) for x in values)
    return {x for x in found if isinstance(x, torch.dtype)}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if builds.HERE in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.gfx942)
    without_code = [item for item in here if not all(map(builds.has_code, _dtypes(item)))]
    if without_code:
        config.hook.pytest_deselected(items=without_code)
        items[:] = [item for item in items if item not in without_code]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A test that asks for a dtype whose kernels were not compiled for this chip."""
    try:
        return (yield)
    except RuntimeError as error:
        if builds.is_complete() or "there is no code for" not in str(error):
            raise
        pytest.skip(str(error))


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


@pytest.fixture(scope="session")
def peers(device: ModuleType) -> ModuleType:
    """triton_peers, where Triton can be had."""
    import triton_peers
    import wheels

    if sys.version_info[:2] != (3, 11):
        pytest.skip("Triton's wheel is for Python 3.11")
    try:
        triton_peers.ensure_triton()
    except wheels.NotDownloaded as error:
        pytest.skip(f"Triton's wheel cannot be downloaded: {error}")
    return triton_peers
