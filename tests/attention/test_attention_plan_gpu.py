# SPDX-License-Identifier: Apache-2.0
"""How attention is cut up on GPUs that need not be here: tiles, LDS, blocks and their order, parts of the keys and of
the rows, and what has no kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from xlstm_hip import _native

DEVICES = {facts["name"]: facts for facts in _native.known_devices()}
DIMS = ((64, 64), (1, 1), (80, 80), (128, 128), (128, 64), (192, 128), (130, 5), (256, 256), (16, 256))
# Batch, query heads, key heads, queries, keys.
SHAPES = ((8, 16, 16, 8192, 8192), (1, 32, 8, 4096, 4096), (1, 32, 8, 1, 131072), (3, 6, 1, 37, 70), (2, 2, 2, 0, 5))


def plan(device: str, shape: tuple[int, ...], dims: tuple[int, int], element_bytes: int, **options: Any) -> Any:
    return _native.plan_attention_gpu(device, *shape, *dims, element_bytes, **options)


@pytest.mark.parametrize("device, dims, element_bytes", list(itertools.product(DEVICES, DIMS, (2, 4))))
def test_every_plan_holds(device: str, dims: tuple[int, int], element_bytes: int) -> None:
    for shape in SHAPES:
        batch, heads_q, heads_k, queries, keys = shape
        p = plan(device, shape, dims, element_bytes)
        assert all(have >= expected for have, expected in zip(p["head_dims"], dims, strict=True))
        assert p["full"] == (element_bytes == 4)
        assert p["keys"] in (16, 32, 64, 128, 256)
        assert p["lds_bytes"] <= DEVICES[device]["lds_bytes"]
        assert p["threads"] % DEVICES[device]["wave_size"] == 0 and p["threads"] <= 1024
        rows = queries * heads_q // heads_k
        assert p["blocks"] * p["rows"] >= rows > (p["blocks"] - 1) * p["rows"] or rows == p["blocks"] == 0
        assert p["grid"] == batch * heads_k * p["blocks"] * p["splits"]
        assert plan(device, shape, dims, element_bytes, block_size=p["keys"]) == p
        assert plan(device, shape, dims, element_bytes, has_score_mod=True)["full"]


def test_hopper_takes_its_own_kernel_where_it_fills_half_the_chip() -> None:
    full = (8, 16, 16, 8192, 8192)
    hopper = plan("H200", full, (128, 128), 2, panels=True)
    assert (
        hopper["schedule"] == "hopper"
        and hopper["rows"] == 128
        and hopper["blocks"] == 64
        and hopper["grid"] == 132  # persistent blocks
        and hopper["splits"] == 1
    )
    assert hopper["lds_bytes"] <= DEVICES["H200"]["lds_bytes"]
    for dims, keys in (((256, 256), 80), ((192, 192), 112), ((192, 128), 112)):
        wide = plan("H200", full, dims, 2, panels=True)
        assert wide["schedule"] == "hopper" and wide["rows"] == 128 and wide["keys"] == keys
        assert wide["lds_bytes"] <= DEVICES["H200"]["lds_bytes"]
    half = plan("H200", (1, 8, 8, 2048, 2048), (128, 128), 2, panels=True)  # 128 blocks for 132 units
    assert half["schedule"] == "hopper" and half["splits"] == 1
    few = plan("H200", (1, 4, 4, 2048, 2048), (128, 128), 2, panels=True)
    assert few["schedule"] == "common" and few["splits"] > 1
    for dims, element_bytes, options in (
        ((128, 128), 2, {}),
        ((128, 128), 4, {"panels": True}),
        ((128, 128), 2, {"panels": True, "has_score_mod": True}),
        ((128, 128), 2, {"panels": True, "splits": 2}),
        ((128, 128), 2, {"panels": True, "block_size": plan("H200", full, (128, 128), 2)["keys"]}),
    ):
        assert plan("H200", full, dims, element_bytes, **options)["schedule"] == "common", (dims, options)
    for device in set(DEVICES) - {"H200"}:
        assert plan(device, full, (128, 128), 2, panels=True) == plan(device, full, (128, 128), 2)


@pytest.mark.parametrize("device", DEVICES)
def test_parts_fill_the_chip_and_no_more(device: str) -> None:
    units = DEVICES[device]["compute_units"]
    assert plan(device, SHAPES[0], (128, 128), 2)["splits"] == 1, "blocks of rows alone fill it"
    few = plan(device, SHAPES[2], (128, 128), 2)
    assert units <= few["grid"] * 2 and few["grid"] <= 4 * units
    short = plan(device, (1, 8, 8, 1, 300), (128, 128), 2)
    assert short["splits"] == 1, "too few keys to cut"
    assert plan(device, SHAPES[2], (128, 128), 2, splits=7)["splits"] == 7


def gradients(device: str, shape: tuple[int, ...], dims: tuple[int, int], element_bytes: int = 2, **more: Any) -> Any:
    return _native.plan_attention_backward_gpu(device, *shape, *dims, element_bytes, **more)


@pytest.mark.parametrize("device, dims, element_bytes", list(itertools.product(DEVICES, DIMS, (2, 4))))
def test_every_backward_plan_holds(device: str, dims: tuple[int, int], element_bytes: int) -> None:
    for shape in SHAPES:
        batch, heads_q, heads_k, queries, keys = shape
        p = gradients(device, shape, dims, element_bytes, panels=True)
        one_pass = p["schedule"] == "one pass"
        assert ("of_queries" in p) != one_pass
        sides = [("of_keys", keys, heads_k * p["parts"]), ("of_queries", queries, heads_q)]
        for side, tokens, heads in sides[: 1 if one_pass else 2]:
            side_plan = p[side]
            assert side_plan["grid"] == batch * heads * -(-tokens // side_plan["owned"])
            assert (
                side_plan["lds_bytes"] <= DEVICES[device]["lds_bytes"] and side_plan["owned"] % side_plan["tile"] == 0
            )
        requested = gradients(device, shape, dims, element_bytes, panels=True, parts=p["parts"])
        common = gradients(device, shape, dims, element_bytes, panels=True, common_schedule=True)
        assert requested == p and common["schedule"] == "common" and common["parts"] == p["parts"]


def test_one_pass_of_cdna() -> None:
    shape, dims = (1, 8, 8, 2048, 2048), (128, 128)
    assert gradients("MI300X", shape, dims, panels=True)["schedule"] == "one pass"
    assert gradients("MI300X", shape, dims, panels=True, deterministic=True)["schedule"] == "common"
    assert gradients("MI300X", shape, (64, 64), panels=True)["schedule"] == "one pass"
    assert gradients("MI300X", shape, (256, 256), panels=True)["schedule"] == "common"


def test_the_last_round_of_even_work_is_divided() -> None:
    """1024 blocks for 304 compute units: 28 rounds of 32 heads are whole, and 128 blocks are left for the last."""
    shape, dims = (2, 16, 16, 4096, 4096), (128, 128)
    even = gradients("MI300X", shape, dims, panels=True, even=True)
    assert even["parts"] == 2 and even["whole_blocks"] == 28 and even["of_keys"]["grid"] == 32 * (28 + 4 * 2)
    for more in ({"even": False}, {"even": True, "parts": 1}):
        whole = gradients("MI300X", shape, dims, panels=True, **more)
        assert whole["parts"] == 1 and whole["of_keys"]["grid"] == 1024
    short = gradients("MI300X", (8, 16, 16, 256, 1024), dims, panels=True, even=True)
    assert short["parts"] == 1, "walks too short to share"
    assert gradients("RX 7900 XTX", shape, dims, panels=True, even=True)["parts"] == 1, "CDNA alone"


def test_one_part_of_the_rows_has_hoppers_own_kernels() -> None:
    few, fewer = (1, 4, 4, 2048, 2048), (1, 2, 2, 2048, 2048)
    half = gradients("H200", few, (128, 128), panels=True)
    assert half["schedule"] == "hopper" and half["parts"] == 1 and half["of_keys"]["grid"] == 64
    wide = gradients("H200", few, (256, 256), panels=True)
    assert wide["schedule"] == "hopper" and wide["of_keys"]["owned"] == 64 and wide["of_keys"]["grid"] == 128
    assert wide["of_queries"]["owned"] == 128 and wide["of_queries"]["grid"] == 64
    planned, one = (gradients("H200", fewer, (128, 128), panels=True, parts=n) for n in (0, 1))
    assert planned["schedule"] == "common" and planned["parts"] > 1, "a quarter of the chip"
    assert one["schedule"] == "hopper" and one["parts"] == 1 and one["of_keys"]["grid"] == 32
    assert gradients("H200", few, (128, 128), panels=True, parts=1, common_schedule=True)["schedule"] == "common"
    assert gradients("MI300X", few, (128, 128), parts=3)["of_keys"]["grid"] == 3 * 4 * 16
    assert gradients("H200", few, (128, 128), panels=True, parts=1, has_score_mod=True)["schedule"] == "common"


def test_blocks_of_one_head_share_a_die() -> None:
    """An MI300X deals blocks out to its eight dies in turn."""
    heads, row_blocks = 32, 6
    order = _native.attention_places(heads, 1, row_blocks)
    assert sorted(order) == [(head, 0, block) for head in range(heads) for block in range(row_blocks)]
    for head in range(heads):
        indices = [n for n, unit in enumerate(order) if unit[0] == head]
        assert len({n % 8 for n in indices}) == 1
        assert [order[n][2] for n in indices] == list(reversed(range(row_blocks))), "the last rows see the most keys"
        assert indices[-1] - indices[0] < 8 * row_blocks, "few heads at a time"


@pytest.mark.parametrize("heads, splits, row_blocks", [(1, 1, 1), (3, 1, 5), (12, 2, 3), (5, 7, 1)])
def test_every_block_has_its_place(heads: int, splits: int, row_blocks: int) -> None:
    everything = itertools.product(range(heads), range(splits), range(row_blocks))
    assert sorted(_native.attention_places(heads, splits, row_blocks)) == sorted(everything)


@pytest.mark.parametrize(
    "dims, element_bytes, options, label",
    [
        ((257, 64), 2, {}, "q, v: expected head dims of at most 256 on a GPU, got 257 and 64"),
        ((64, 300), 2, {}, "q, v: expected head dims of at most 256 on a GPU, got 64 and 300"),
        ((128, 128), 2, {"block_size": 256}, "block_size: expected 64 .* got 256"),
        ((128, 128), 4, {"block_size": 64}, "block_size: expected 32 .* got 64"),
    ],
)
def test_what_has_no_kernel(dims: tuple[int, int], element_bytes: int, options: dict[str, Any], label: str) -> None:
    with pytest.raises(ValueError, match=label):
        plan("MI300X", SHAPES[0], dims, element_bytes, **options)


@pytest.mark.parametrize("device, features", list(itertools.product(DEVICES, (512, 576))))
def test_mla_plans(device: str, features: int) -> None:
    facts = DEVICES[device]

    def mla(rows: int, own_schedule: bool = True) -> Any:
        gpu = (facts["arch"], facts["compute_units"], facts["lds_bytes"])
        return _native.plan_mla_gpu(*gpu, 64, 1, rows, 8192, features, own_schedule=own_schedule)

    for rows in (1, 16, 17, 128):
        p, hopper = mla(rows), device == "H200" and rows > 16
        assert p["schedule"] == ("hopper" if hopper else "common")
        assert p["threads"] == 384 or not hopper
        assert p["lds_bytes"] <= facts["lds_bytes"] and p["threads"] % facts["wave_size"] == 0
        assert p["blocks"] * p["rows"] >= rows and p["grid"] == 64 * p["blocks"] * p["splits"]
        common = mla(rows, own_schedule=False)
        assert common["schedule"] == "common" and common["grid"] == p["grid"]
        assert common == p or hopper


@pytest.mark.parametrize("device", DEVICES)
def test_which_floats_of_8_bits_mla_multiplies(device: str) -> None:
    arch = DEVICES[device]["arch"]
    own = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}.get(arch, "")
    for features in (512, 576):
        assert _native.mla_float8_products(arch, features, 512) == own
    assert _native.mla_float8_products(f"{arch}:sramecc+:xnack-", 576, 512) == own
    assert _native.mla_float8_products(arch, 128, 128) == ""
