# SPDX-License-Identifier: Apache-2.0
"""Another project's attention for MI300X, which clang compiles here (support/moonmath.py), against float64."""

from __future__ import annotations

from types import ModuleType

import pytest

from against_float64 import DIM, check_attention, complaints, random


@pytest.fixture(scope="module")
def moonmath(device: ModuleType) -> ModuleType:
    import moonmath

    if not moonmath.folder():
        pytest.skip("MOONMATH_AMD_KERNELS does not name a clone of https://github.com/moonmath-ai/amd-kernels")
    return moonmath


@pytest.mark.parametrize("rounding", ["rtne", "rtna", "rtz"])
@pytest.mark.parametrize("heads, queries, keys", [(1, 384, 384), (2, 300, 300), (1, 300, 500), (1, 1024, 1024)])
def test_forward(device: ModuleType, moonmath: ModuleType, rounding: str, heads: int, queries: int, keys: int) -> None:
    """It counts on the scalar offset in the range of a buffer, as AMD's own code does; nothing else is found."""
    q, k, v = (random(1, heads, n, DIM, seed=s) for n, s in ((queries, 1), (keys, 2), (keys, 3)))
    out, complained = complaints(device, ["buffer-offset"], lambda: moonmath.forward(rounding, q, k, v))
    sequence = tuple(x[0].transpose(0, 1) for x in (q, k, v))
    check_attention([sequence], False, out[0].transpose(0, 1))
    assert not complained
