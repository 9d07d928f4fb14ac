# SPDX-License-Identifier: Apache-2.0
"""What the interpreter records of waves, to be timed: instructions in their order, cycles of LDS, lines of memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assembly import KERNARG, WORKGROUP_X, kernel_text

ALL = 10**9
RUN, LDS, MEMORY = range(3)  # interpreter/events.h

BODY = f"""
  s_load_dwordx2 s[8:9], {KERNARG}, 0x0
  v_lshlrev_b32 v1, 2, v0
  v_lshlrev_b32 v2, 7, v0
  s_mov_b32 s10, 3
  s_waitcnt lgkmcnt(0)
round:
  s_sub_u32 s10, s10, 1
  s_cmp_lg_u32 s10, 0
  s_cbranch_scc1 round
  global_load_dword v3, v1, s[8:9]
  ds_write_b32 v2, v1
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_add_u32 v3, v3, {WORKGROUP_X}
  global_store_dword v1, v3, s[8:9] offset:64
"""


@pytest.fixture(autouse=True)
def recording(device: ModuleType) -> Iterator[None]:
    yield
    device.set_recording(0)
    device.forget_recordings()


def instructions(words: list[int]) -> tuple[list[int], list[tuple[int, ...]]]:
    """The order in which they ran, and (index of the instruction, kind, ...) of each request."""
    order: list[int] = []
    requests: list[tuple[int, ...]] = []
    left = iter(words)
    for word in left:
        kind, rest = word >> 30, word & 0x3FFFFFFF
        if kind == RUN:
            first = rest & 0xFFFFF
            order += range(first, first + 1 + (rest >> 20))
        elif kind == LDS:
            requests.append((order[-1], LDS, rest))
        else:
            lines = tuple(itertools.islice(left, rest & 255))
            requests.append((order[-1], MEMORY, rest >> 16 & 127, rest >> 8 & 255, *lines))
    return order, requests


def launch(device: ModuleType, grid: int, values: np.ndarray) -> Any:
    with device.Module(device.assemble(kernel_text(BODY, ("*",), name="recorded", lds=8192))) as module:
        module.launch("recorded", grid=grid, block=64, args=(values,))
        return device.recordings()


def aligned() -> np.ndarray:
    """96 numbers that begin a line of 128 bytes."""
    room = np.zeros(128 + 96, np.uint32)
    begin = -room.ctypes.data % 128 // 4
    return room[begin : begin + 96]


def test_nothing_is_recorded_unasked(device: ModuleType) -> None:
    assert launch(device, 1, aligned()) == []


def test_a_wave_in_order(device: ModuleType) -> None:
    device.set_recording(ALL)
    values = aligned()
    (found,) = launch(device, 1, values)
    assert (found["kernel"], found["grid"], found["block"]) == ("recorded", [1, 1, 1], [64, 1, 1])
    ((group,),) = [found["groups"]]
    order, requests = instructions(group["waves"][0])
    assert order == [*range(5), *(5, 6, 7) * 3, *range(8, 14)]
    line = values.ctypes.data // 128 % 2**32
    scalar, *vector = requests
    assert scalar[:4] == (0, MEMORY, 1, 1)
    assert vector == [
        (8, MEMORY, 64, 4, line, line + 1),
        (9, LDS, 64),  # each lane in the first bank
        (12, MEMORY, 64, 4, line, line + 1, line + 2),
    ]


def test_what_is_recorded_runs_as_ever(device: ModuleType) -> None:
    plain, recorded = aligned(), aligned()
    launch(device, 1, plain)
    device.set_recording(ALL)
    launch(device, 1, recorded)
    assert np.array_equal(plain, recorded)


def test_a_sample_is_of_pairs_that_an_xcd_has_at_once(device: ModuleType) -> None:
    device.set_recording(20 * 12)  # of about 20 instructions each
    (found,) = launch(device, 20_000, aligned())
    numbers = [group["number"] for group in found["groups"]]
    assert 8 <= len(numbers) <= 16
    apart = [{abs(k - other) for other in numbers} for k in numbers]
    near = [k for k in apart if any(0 < x <= 8 * 38 and x % 8 == 0 for x in k)]
    assert len(near) >= len(numbers) - 2
    assert max(numbers) > 15_000 and min(numbers) < 5_000


def test_a_small_grid_runs_whole(device: ModuleType) -> None:
    device.set_recording(20 * 12)
    (found,) = launch(device, 7, aligned())
    assert [group["number"] for group in found["groups"]] == list(range(7))
