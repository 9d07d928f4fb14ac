# SPDX-License-Identifier: Apache-2.0
"""dir() of the package and of its public modules shows what is public, and nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import xlstm_hip

ROOT = Path(__file__).parents[2]
MODULES = sorted(xlstm_hip.PUBLIC_MODULES)
NEEDS = {"hf": "transformers", "ray_serve": "ray.serve"}


def module(name: str) -> object:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return getattr(xlstm_hip, name)


def test_the_package() -> None:
    assert dir(xlstm_hip) == sorted({*xlstm_hip.__all__, *MODULES})
    assert all(hasattr(xlstm_hip, name) for name in xlstm_hip.__all__)
    assert {"hf", "models", "attention", "layers", "quantize", "mlstm_interface"} <= set(dir(xlstm_hip))
    with pytest.raises(AttributeError, match="module 'xlstm_hip' has no attribute 'nothing'"):
        _ = xlstm_hip.nothing


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module(name: str) -> None:
    public = module(name)
    assert public is importlib.import_module(f"xlstm_hip.{name}")
    assert public.__all__ and len(public.__all__) == len(set(public.__all__))
    assert dir(public) == sorted(public.__all__)
    assert all(hasattr(public, x) for x in public.__all__)
    assert public.__doc__


@pytest.mark.parametrize("name", MODULES)
def test_its_objects_are_the_ones_inside(name: str) -> None:
    """Nothing is a copy: an object's own module has the same one."""
    public = module(name)
    for x in (getattr(public, attribute) for attribute in public.__all__):
        if hasattr(x, "__qualname__"):
            assert getattr(importlib.import_module(x.__module__), x.__qualname__) is x


def test_importing_the_package_imports_no_model() -> None:
    """Public modules wait until they are asked for, and torch.compile (seconds) until something is compiled: loading a
    checkpoint does not need it either.
    """
    code = """
import sys, xlstm_hip
heavy = {"xlstm_hip.models", "xlstm_hip.hf", "xlstm_hip.bench.registry", "xlstm_hip.tune"}
heavy |= {"torch._dynamo", "transformers"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert xlstm_hip.models.generate and "xlstm_hip.models" in sys.modules
xlstm_hip.models.load_pretrained("models/demo", progress=False)
assert not {"torch._dynamo", "transformers"} & set(sys.modules)
from xlstm_hip.quantize import quantize
assert xlstm_hip.quantize.quantize is quantize
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
