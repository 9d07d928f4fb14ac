# SPDX-License-Identifier: Apache-2.0
"""Bytes that native code holds, which neither Python's own tools see nor resident memory tells from free ones."""

from __future__ import annotations

import ctypes
import gc

import pytest

FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def native_bytes() -> int:
    """Allocated by malloc and not freed, in all its arenas. Small Python objects have a place of their own."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("mallinfo2 is of glibc 2.33")
    mallinfo2.restype = _Mallinfo2
    gc.collect()
    found = mallinfo2()
    return found.uordblks + found.hblkhd
