# SPDX-License-Identifier: Apache-2.0
"""Buffer loads and stores against NumPy."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from memory_models import (
    LANES,
    LOADS,
    SIZE,
    STORES,
    content,
    data_rows,
    descriptor,
    loaded,
    stored,
    width,
    with_descriptor,
)
from wave_programs import registers, run, span


def test_raw_buffers(device: ModuleType) -> None:
    """Lanes beyond the buffer load 0 and store nothing; of several dwords those that are within count."""
    data, rows = data_rows(6)
    records = 1000
    for name, (size, *_) in LOADS.items():
        memory = content()
        step = min(size, 4)
        at = (LANES * 16 + LANES % 4 * 4) // step * step
        at[-1] = 0xFFFFFFF0 if size == 1 else records
        extended = np.concatenate([memory[:records], np.zeros(8192, np.uint8)])
        expected = loaded(data, extended, np.minimum(at, 4096), name, at >= 0)
        body = with_descriptor(f"  buffer_load_{name} {span('v', 20, width(name))}, v4, s[16:19], 0 offen offset:0")
        loads = rows | {"v4": at.astype(np.uint32)}
        arrays = [memory, descriptor(memory, records)]
        assert np.array_equal(run(device, body, loads, registers("v", 20, 4), arrays=arrays), expected), name
    for name in STORES:
        memory = content()
        at = LANES * 16
        expected = stored(np.concatenate([memory, np.zeros(64, np.uint8)]), data, at, name, LANES >= 0)[:SIZE]
        expected[records:] = memory[records:]
        body = with_descriptor(f"  buffer_store_{name} {span('v', 20, width(name))}, v4, s[16:19], 0 offen")
        run(device, body, rows | {"v4": at.astype(np.uint32)}, [], arrays=[memory, descriptor(memory, records)])
        assert np.array_equal(memory, expected), name


def test_addresses_of_buffers(device: ModuleType) -> None:
    memory = content()
    dwords = memory.view(np.uint32)
    loads = {f"v{4 + k}": x.astype(np.uint32) for k, x in enumerate((LANES, LANES % 4 * 4, LANES * 4))}

    def found(operands: str, records: int, stride: int = 0) -> np.ndarray:
        body = with_descriptor(f"  buffer_load_dword v20, {operands}")
        return run(device, body, loads, ["v20"], arrays=[memory, descriptor(memory, records, stride)])[0]

    assert np.array_equal(found("v6, s[16:19], 0 offen offset:64", SIZE), dwords[16 + LANES])
    assert np.array_equal(found("v6, s[16:19], s20 offen offset:64", SIZE), dwords[24 + LANES])
    assert np.all(found("off, s[16:19], s20 offset:8", SIZE) == dwords[10])
    assert np.array_equal(found("v4, s[16:19], 0 idxen", 64, 16), dwords[4 * LANES])
    assert np.array_equal(found("v[4:5], s[16:19], s20 idxen offen", 64, 16), dwords[8 + 4 * LANES + LANES % 4])
    within = np.where(LANES < 40, dwords[4 * LANES + 3], 0)
    assert np.array_equal(found("v4, s[16:19], 0 idxen offset:12", 40, 16), within)


@pytest.mark.parametrize(
    "operands, records, stride, flags, says",
    [
        ("v4, s[16:19], 0 offen", 30, 0, 0, "across the end"),
        ("v4, s[16:19], s20 offen", 40, 0, 0, "scalar offset"),
        ("v[4:5], s[16:19], 0 idxen offen", 64, 8, 0, "stride"),
        ("v4, s[16:19], 0 offen", 64, 16, 0, "without an index"),
        ("v4, s[16:19], 0 offen", 64, 0, 1 << 31, "descriptor"),
    ],
)
def test_what_documents_leave_open_stops(
    device: ModuleType, operands: str, records: int, stride: int, flags: int, says: str
) -> None:
    memory = content()
    v = descriptor(memory, records, stride)
    v[1] |= flags
    loads = {"v4": (4 * LANES).astype(np.uint32) // (4 if "idxen" in operands else 1), "v5": 8}
    with pytest.raises(device.Fault, match=says):
        run(device, with_descriptor(f"  buffer_load_dword v20, {operands}"), loads, ["v20"], arrays=[memory, v])
