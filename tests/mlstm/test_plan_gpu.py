# SPDX-License-Identifier: Apache-2.0
"""How the mLSTM is cut up on GPUs that need not be here: LDS, segments, blocks, and what has no kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from xlstm_hip import _native

DEVICES = {facts["name"]: facts for facts in _native.known_devices()}
WALKS = ("forward", "dq", "dk", "dv")
# Sequences, heads, tokens, DHQK, DHHV.
SHAPES = [
    (1, 8, 8192, 256, 512),
    (1, 8, 2048, 256, 512),
    (8, 8, 8192, 256, 512),
    (8, 16, 8192, 128, 256),
    (1, 4, 1 << 20, 256, 512),
    (3, 5, 1000, 64, 64),
    (1, 1, 1, 16, 16),
    (2, 1, 33, 512, 512),
    (1, 1, 100000, 1, 512),
]
# Chips that nobody wrote a line for, by arch, units and LDS: MI355X, RX 9060 XT, B200, MI100.
UNLISTED = [
    ("gfx950", 256, 160 << 10),
    ("gfx1200", 16, 64 << 10),
    ("sm_100", 148, 227 << 10),
    ("gfx908", 120, 64 << 10),
]
EACH_CALL = list(itertools.product((*DEVICES, *UNLISTED), SHAPES, (2, 4)))
Device = str | tuple[str, int, int]


def plan(device: Device, shape: tuple[int, int, int, int, int], element_bytes: int = 2) -> dict[str, Any]:
    return _native.plan_mlstm_gpu(device, *shape, element_bytes)


def facts_of(device: Device) -> dict[str, Any]:
    if isinstance(device, str):
        return DEVICES[device]
    arch, units, lds = device
    return {"compute_units": units, "lds_bytes": lds, "wave_size": 64 if arch.startswith("gfx9") else 32}


def columns_of(walk: str, shape: tuple[int, int, int, int, int]) -> tuple[int, int]:
    """Rows and columns of the state that a walk keeps."""
    dqk, dhv = shape[3:]
    return (dqk, dhv) if walk in ("forward", "dv") else (dhv, dqk)


def test_devices_are_the_published_ones() -> None:
    facts = {name: (d["arch"], d["compute_units"], d["wave_size"], d["lds_bytes"] >> 10) for name, d in DEVICES.items()}
    assert facts == {
        "MI300X": ("gfx942", 304, 64, 64),
        "MI355X": ("gfx950", 256, 64, 160),
        "MI250X": ("gfx90a", 110, 64, 64),  # one of its two dies, which is what HIP calls a device
        "RX 7900 XTX": ("gfx1100", 48, 32, 64),  # of two CUs each, which is what HIP counts
        "RX 9070 XT": ("gfx1201", 32, 32, 64),  # the same
        "H200": ("sm_90", 132, 32, 227),
        "A100": ("sm_80", 108, 32, 163),
    }
    for name, d in DEVICES.items():
        assert plan(name, SHAPES[0])["compute_units"] == d["compute_units"]


@pytest.mark.parametrize("device, shape, element_bytes", EACH_CALL)
def test_every_plan_holds(device: Device, shape: tuple[int, int, int, int, int], element_bytes: int) -> None:
    facts = facts_of(device)
    sequences, heads, length = shape[:3]
    cut = plan(device, shape, element_bytes)
    for walk in WALKS:
        p = cut[walk]
        rows, columns = columns_of(walk, shape)
        chunks = -(-length // p["chunk"])
        assert p["lds_bytes"] <= facts["lds_bytes"], walk
        assert p["rows"] >= rows, walk
        pair = 2 if p["schedule"] == "hopper" and p["rows"] == 512 else 1  # blocks that share a state
        assert p["tiles"] % pair == 0, walk
        assert p["tiles"] * p["y_tile"] >= columns > (p["tiles"] - pair) * p["y_tile"], walk
        assert p["segments"] * p["segment_chunks"] >= chunks > (p["segments"] - 1) * p["segment_chunks"], walk
        assert p["blocks"] == sequences * heads * p["tiles"] * p["segments"], walk
        assert p["segments"] == 1 or p["segment_chunks"] >= (2 if facts["wave_size"] == 64 else 8), walk
    assert len({cut[walk]["chunk"] for walk in WALKS[1:]}) == 1  # backward's walks share the scores
    assert cut["dq"] == cut["dk"]
    recurrent = cut["recurrent"]
    assert recurrent["blocks"] >= sequences * heads * recurrent["tiles"]
    assert recurrent["tiles"] * recurrent["columns"] >= shape[4]
    assert recurrent["threads"] <= 256 and recurrent["threads"] % facts["wave_size"] == 0


def test_a_chip_is_planned_for_by_what_it_says_of_itself() -> None:
    """A known one as by its name, any other by its family's rule, and by its own units and LDS."""
    for name, d in DEVICES.items():
        for shape in SHAPES:
            assert plan((d["arch"], d["compute_units"], d["lds_bytes"]), shape) == plan(name, shape)
    assert plan(("gfx942:sramecc+:xnack-", 304, 64 << 10), SHAPES[0]) == plan("MI300X", SHAPES[0])
    few, many = (plan(("gfx942", units, 64 << 10), SHAPES[0])["forward"]["blocks"] for units in (20, 304))
    assert few < many
    with pytest.raises(ValueError, match="no kernel for these fits the 101376 bytes of LDS"):
        plan(("sm_89", 142, 99 << 10), SHAPES[0], 4)
    for wrong in (("gfx942", 304), 7, ("gfx942", "304", 1)):
        with pytest.raises(ValueError, match="device: expected a name, or"):
            plan(wrong, SHAPES[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compute_units: expected >= 1, got 0"):
        plan(("gfx942", 0, 64 << 10), SHAPES[0])


def test_what_bulk_copies_cannot_take_has_the_common_schedule() -> None:
    cut = _native.plan_mlstm_gpu("H200", *SHAPES[0], 2, panels=False)
    assert {cut[walk]["schedule"] for walk in WALKS} == {"common"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] == 1 and s[2] >= 2048], ids=str)
def test_one_sequence_fills_the_chip(device: str, shape: tuple[int, int, int, int, int]) -> None:
    cut = plan(device, shape)
    for walk in WALKS:
        p = cut[walk]
        most = p["blocks"] // p["segments"] * min(64, -(-shape[2] // p["chunk"]) // 8)  # eight chunks a segment
        units = DEVICES[device]["compute_units"]
        if most >= units:
            # The states between segments cost half a walk: two thirds of a chip, uncut, are as fast as all of it.
            assert p["blocks"] >= (0.65 if p["segments"] == 1 else 0.75) * units, (walk, p)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_that_fills_the_chip_is_not_cut(device: str) -> None:
    cut = plan(device, (8, 8, 8192, 256, 512))
    assert [cut[walk]["segments"] for walk in WALKS] == [1, 1, 1, 1]


def test_short_sequences_without_states_have_no_walks_on_cdna() -> None:
    def schedules(device: str, length: int, batch: int = 1, bytes_: int = 2, **options: Any) -> set[str]:
        p = _native.plan_mlstm_gpu(device, batch, 8, length, 256, 512, bytes_, **{"stateless": True} | options)
        return {p[walk]["schedule"] for walk in WALKS}

    for device in ("MI300X", "MI250X"):
        assert schedules(device, 512) == schedules(device, 1) == {"parallel"}
        for options in ({"stateless": False}, {"panels": False}, {"bytes_": 4}, {"segments": 2}, {"walk_chunk": 32}):
            assert schedules(device, 512, **options) == {"common"}, options
        assert schedules(device, 1025) == schedules(device, 1024, batch=8) == {"common"}
    assert schedules("MI300X", 1024) == {"parallel"}
    assert schedules("RX 7900 XTX", 512) == {"common"} and schedules("H200", 512) == {"hopper"}


def test_a_packed_row_may_be_walked_as_one_sequence() -> None:
    """Where that takes less time than so many blocks, and where there are no states and no requests."""

    def plan_of(device: str, sequences: int, heads: int = 8, dims: tuple[int, int] = (256, 512), **options: Any) -> Any:
        options = {"stateless": True, "packed": True} | options
        return _native.plan_mlstm_gpu(device, sequences, heads, 8192, *dims, 2, **options)

    for device in DEVICES:
        assert plan_of(device, 1025)["joined"] and plan_of(device, 1025, 4, (64, 128))["joined"]
        assert not plan_of(device, 1)["joined"]
        for options in ({"stateless": False}, {"packed": False}, {"segments": 2}, {"walk_chunk": 16}):
            if DEVICES[device]["arch"].startswith("gfx9") and "walk_chunk" in options:
                options["walk_chunk"] = 32
            assert not plan_of(device, 1025, **options)["joined"], options
        joined, row = plan_of(device, 1025), _native.plan_mlstm_gpu(device, 1, 8, 8192, 256, 512, 2)
        assert [joined[walk] for walk in WALKS] == [row[walk] for walk in WALKS]
    assert plan_of("H200", 128)["joined"] and plan_of("H200", 82)["joined"]
    assert not plan_of("H200", 16)["joined"]  # as many blocks as the chip has
    assert not plan_of("H200", 128, 4, (128, 256))["joined"]


def test_hopper_has_a_schedule_of_its_own() -> None:
    """For 16-bit elements, head dims up to 512 and two chunks of 64; the common one for the rest and other chips."""
    large, small, floats = plan("H200", SHAPES[0]), plan("H200", SHAPES[5]), plan("H200", SHAPES[0], 4)
    assert {(p[walk]["schedule"], p[walk]["chunk"]) for p in (large, small) for walk in WALKS} == {("hopper", 64)}
    short, wide = plan("H200", (1, 8, 127, 256, 512)), plan("H200", (1, 8, 2048, 256, 513))
    assert {p[walk]["schedule"] for p in (short, wide, floats) for walk in WALKS} == {"common"}
    other_devices = [plan(device, SHAPES[0]) for device in DEVICES if device != "H200"]
    assert {p[walk]["schedule"] for p in other_devices for walk in WALKS} == {"common"}
    # A state of 512 rows is two blocks', and a block of 128 rows has 256 columns.
    assert [(large[walk]["rows"], large[walk]["y_tile"]) for walk in WALKS] == [
        (256, 128),
        (512, 64),
        (512, 64),
        (256, 128),
    ]
    assert [small[walk]["rows"] for walk in WALKS] == [128] * 4
    assert plan("H200", SHAPES[3])["forward"]["y_tile"] == 256


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_every_head_dim_has_a_plan(device: str, element_bytes: int) -> None:
    lds = DEVICES[device]["lds_bytes"]
    for d in (*range(1, 515), 600, 1024, 2000):
        for dqk, dhv in ((d, d), (d, 512), (512, d), (d, 4000)):
            cut = plan(device, (1, 2, 100, dqk, dhv), element_bytes)
            assert max(cut[walk]["lds_bytes"] for walk in WALKS) <= lds, (dqk, dhv)


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_of_more_rows_than_registers_is_walked_in_slices(device: str) -> None:
    cut = plan(device, (1, 1, 10000, 513, 1200))
    rows = cut["dv"]["rows"]
    assert [cut[walk]["slices"] for walk in ("forward", "dv", "dk")] == [-(-513 // rows)] * 2 + [-(-1200 // rows)]
    assert all(cut[walk]["segments"] == 1 for walk in WALKS)
    narrow = plan(device, (1, 1, 10000, 512, 1200))
    assert narrow["forward"]["slices"] == 1 and narrow["dk"]["slices"] > 1


def test_few_columns_of_a_state_fill_the_waves_of_cdna() -> None:
    """Of 128 rows by 64 columns each of four waves has a part, where wider states have tiles of 128 columns."""
    assert {plan("MI300X", (8, 4, 2048, 64, 128))[walk]["y_tile"] for walk in ("dq", "dk")} == {64}
    assert plan("MI300X", (8, 4, 2048, 64, 128), 4)["dq"]["y_tile"] == 128  # of floats
    assert plan("MI300X", (8, 4, 2048, 128, 128))["dq"]["y_tile"] == 128
    assert plan("H200", (8, 4, 2048, 64, 128))["dq"]["y_tile"] == 128


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_cdna_the_walk_for_dv_has_the_segments_of_that_for_dk(shape: tuple[int, int, int, int, int]) -> None:
    """It reads the states between them."""
    found = plan("MI300X", shape)
    if found["dk"]["segments"] > 1:
        assert {found[walk]["segments"] for walk in ("dk", "dv")} == {found["dk"]["segments"]}
        assert found["dk"]["segment_chunks"] == found["dv"]["segment_chunks"]


def test_what_is_not_a_device_or_a_shape_is_named() -> None:
    with pytest.raises(ValueError, match="device: expected one of MI300X, .*, got MI400"):
        plan("MI400", SHAPES[0])
    with pytest.raises(ValueError, match="length: expected >= 1, got 0"):
        plan("MI300X", (1, 1, 0, 64, 64))
    with pytest.raises(ValueError, match="element_bytes: expected 2 or 4, got 8"):
        plan("MI300X", SHAPES[0], 8)


def test_one_step_gives_every_compute_unit_of_an_mi300x_a_block() -> None:
    blocks = {heads: plan("MI300X", (1, heads, 1, 256, 512))["recurrent"]["blocks"] for heads in (4, 8, 16, 64)}
    assert blocks[8] >= 304 and blocks[16] >= 304 and blocks[64] >= 304
    assert blocks[4] >= 4 * 64  # tiles of 8 values are the narrowest there are


def test_what_is_asked_for() -> None:
    """segments, walk_chunk and step_columns of a call come before the plan's own; what has no kernel is an error."""

    def requested(
        device: str = "H200", shape: tuple[int, ...] = SHAPES[0], bytes_: int = 2, **options: int
    ) -> dict[str, Any]:
        return _native.plan_mlstm_gpu(device, *shape, bytes_, **options)

    assert requested()["forward"]["schedule"] == "hopper" and requested(segments=5)["forward"]["schedule"] == "hopper"
    for device, chunk in (("H200", 16), ("H200", 32), ("A100", 16), ("MI300X", 32), ("RX 7900 XTX", 16)):
        cut = requested(device, walk_chunk=chunk, segments=5)
        for walk in WALKS:
            assert (cut[walk]["schedule"], cut[walk]["chunk"], cut[walk]["segments"]) == ("common", chunk, 5)
    assert (
        requested(shape=(1, 8, 40, 64, 64), segments=50, walk_chunk=16)["forward"]["segments"] == 3
    )  # one for each chunk
    for columns in (8, 16, 32):
        assert requested(step_columns=columns)["recurrent"]["columns"] == columns
    for options, text in (
        ({"walk_chunk": 64}, "walk_chunk: no kernel for chunks of 64 tokens"),
        ({"device": "MI300X", "walk_chunk": 16}, "walk_chunk: no kernel for chunks of 16 tokens"),
        ({"bytes_": 4, "walk_chunk": 32}, "walk_chunk: no kernel for chunks of 32 tokens"),
        ({"segments": 65}, "segments: expected at most 64 of these head dims on a GPU, got 65"),
        ({"shape": (1, 1, 4096, 64, 1024), "segments": 2}, "segments: expected at most 1 of these head dims"),
        ({"step_columns": 12}, "step_columns: no kernel for 12 columns"),
        ({"shape": (1, 1, 64, 512, 512), "step_columns": 64}, "step_columns: no kernel for 64 columns"),
    ):
        with pytest.raises(ValueError, match=text):
            requested(**options)  # type: ignore[arg-type]
