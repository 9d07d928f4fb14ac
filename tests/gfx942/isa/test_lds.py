# SPDX-License-Identifier: Apache-2.0
"""LDS instructions against NumPy, and how long LDS takes for them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from builds import CHIP
from lds_programs import LANES, PARTS, SIZE, WAIT, content, on_lds
from wave_programs import WAVE, lanes_on, registers, run, run_counted, span, with_lanes


def taken(memory: np.ndarray, address: np.ndarray, size: int) -> np.ndarray:
    """[lane, byte]"""
    return memory[address[:, None] + np.arange(size)]


MASKS = [(1 << WAVE) - 1, 0x8000_0000_1234_F00F, 0]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("alignment", [1, 4, 16])
def test_dwords(device: ModuleType, count: int, alignment: int, mask: int) -> None:
    random, memory, on = np.random.default_rng(count), content(), lanes_on(mask)
    size, offset = 4 * count, 16
    slots = random.permutation((SIZE - size - offset) // 16)[:WAVE] * 16
    address = slots + random.integers(0, 16 // alignment, WAVE) * alignment * (count == 1)
    address = address.astype(np.uint32) + np.uint32(0 if count == 1 or alignment == 16 else alignment % 16)
    address[0], address[1] = SIZE - size - offset - (SIZE - size) % alignment, 0
    old = random.integers(0, 1 << 32, (4, WAVE), np.uint32)
    loads = {"v3": address} | dict(zip(registers("v", 20, 4), old, strict=True))
    name = {1: "b32", 2: "b64", 3: "b96", 4: "b128"}[count]

    body = f"ds_read_{name} {span('v', 20, count)}, v3 offset:{offset}"
    found, after = on_lds(device, body, memory, loads, registers("v", 20, 4), mask)
    expected = old.copy()
    expected[:count, on] = taken(memory, address + offset, size).view(np.uint32)[on].T
    assert np.array_equal(found, expected)
    assert np.array_equal(after, memory)

    address = slots.astype(np.uint32)  # lanes that overlap would leave it open which one stays
    body = f"ds_write_{name} v3, {span('v', 20, count)} offset:{offset}"
    _, after = on_lds(device, body, memory, loads | {"v3": address}, [], mask)
    expected = memory.copy()
    for lane in np.flatnonzero(on):
        at = int(address[lane]) + offset
        expected[at : at + size] = old[:count, lane].copy().view(np.uint8)
    assert np.array_equal(after, expected)


TRANSPOSED = "ds_read_b64_tr_b16 v[20:21], v3"
of_gfx950 = pytest.mark.skipif(CHIP != "gfx950", reason="gfx950's instruction")


def columns_of(memory: np.ndarray, address: np.ndarray) -> np.ndarray:
    """CDNA4's document, 11.4: sixteen lanes read a matrix of 4 rows and 16 columns of 16 bits, four lanes a row. Lane c
    of them gets column c. [register, lane]"""
    matrices = taken(memory, address, 8).view(np.uint16).reshape(WAVE // 16, 4, 16)
    return np.ascontiguousarray(matrices.transpose(0, 2, 1)).reshape(WAVE, 4).view(np.uint32).T


@of_gfx950
def test_columns_of_a_matrix_in_memory(device: ModuleType) -> None:
    memory = np.arange(SIZE // 2, dtype=np.uint16).view(np.uint8)  # 32 columns in LDS: word k 32 + m is of row k
    lane = LANES % 16
    address = (64 * (4 * (LANES // 16) + lane // 4) + 8 * (lane % 4)).astype(np.uint32)
    found, after = on_lds(device, f"{TRANSPOSED} offset:32", memory, {"v3": address}, ["v20", "v21"])
    words = [[32 * (4 * (k // 16) + row) + 16 + k % 16 for row in range(4)] for k in range(WAVE)]
    assert np.array_equal(found.T, np.array(words, np.uint16).view(np.uint32))
    assert np.array_equal(after, memory)


@of_gfx950
def test_columns_of_any_addresses(device: ModuleType) -> None:
    memory = content()
    address = (np.random.default_rng(8).permutation(SIZE // 8)[:WAVE] * 8).astype(np.uint32)
    found, _ = on_lds(device, TRANSPOSED, memory, {"v3": address}, ["v20", "v21"])
    assert np.array_equal(found, columns_of(memory, address))


@of_gfx950
def test_columns_are_refused_where_nothing_says_what_they_are(device: ModuleType) -> None:
    address = (8 * LANES).astype(np.uint32)
    with pytest.raises(device.Fault, match="lanes that are off"):
        on_lds(device, TRANSPOSED, content(), {"v3": address}, [], MASKS[1])
    with pytest.raises(device.Fault, match="no multiple of 8"):
        on_lds(device, TRANSPOSED, content(), {"v3": address + np.uint32(4)}, [])


@of_gfx950
def test_columns_of_bytes_that_were_never_written(device: ModuleType) -> None:
    """The second row of each matrix is, so that the first register of each lane is undefined."""
    body = [
        "v_lshlrev_b32 v3, 3, v0",
        "s_mov_b32 exec_lo, 0xff0fff0f",
        "s_mov_b32 exec_hi, 0xff0fff0f",
        "ds_write_b64 v3, v[10:11]",
        "s_mov_b64 exec, -1",
        WAIT,
        TRANSPOSED,
        WAIT,
    ]
    loads: dict[str, object] = {"v0": LANES.astype(np.uint32), "v10": 1, "v11": 2}
    found = run(device, "\n".join(body), loads, ["v21"], lds=SIZE)
    assert found.shape == (1, WAVE)
    with pytest.raises(device.Fault, match="undefined value"):
        run(device, "\n".join(body), loads, ["v20"], lds=SIZE)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stride", [1, 64])
def test_two_places(device: ModuleType, count: int, stride: int) -> None:
    random, memory = np.random.default_rng(7), content()
    unit = 4 * count
    offsets = (3, 1) if stride == 64 and count == 2 else (5, 2)
    size = SIZE - max(offsets) * unit * stride
    address = (random.permutation(size // unit)[:WAVE] * unit).astype(np.uint32)
    suffix = f"{'st64' if stride == 64 else ''}_b{8 * unit}"
    both = f"offset0:{offsets[0]} offset1:{offsets[1]}"
    addresses = [address + o * unit * stride for o in offsets]

    body = f"ds_read2{suffix} {span('v', 20, 2 * count)}, v3 {both}"
    found, _ = on_lds(device, body, memory, {"v3": address}, registers("v", 20, 2 * count))
    expected = [taken(memory, at, unit).view(np.uint32).T for at in addresses]
    assert np.array_equal(found, np.concatenate(expected))

    data = random.integers(0, 1 << 32, (2 * count, WAVE), np.uint32)
    loads = {"v3": address} | dict(zip(registers("v", 20, 2 * count), data, strict=True))
    body = f"ds_write2{suffix} v3, {span('v', 20, count)}, {span('v', 20 + count, count)} {both}"
    _, after = on_lds(device, body, memory, loads, [])
    expected = memory.copy()
    for at, values in zip(addresses, (data[:count], data[count:]), strict=True):
        expected[at[:, None] + np.arange(unit)] = np.ascontiguousarray(values.T).view(np.uint8)
    assert np.array_equal(after, expected)


def placed(old: np.ndarray, value: np.ndarray, where: str) -> np.ndarray:
    bits = value.astype(np.int64).astype(np.uint32)
    if where == "low":
        return old & np.uint32(0xFFFF0000) | bits & np.uint32(0xFFFF)
    return old & np.uint32(0xFFFF) | bits << np.uint32(16) if where == "high" else bits


@pytest.mark.parametrize("name", PARTS)
def test_reads_of_bytes_and_words(device: ModuleType, name: str) -> None:
    size, is_signed, where = PARTS[name]
    random, memory = np.random.default_rng(3), content()
    address = (random.integers(0, SIZE // size, WAVE) * size).astype(np.uint32)
    address[:2] = 0, SIZE - size
    old = random.integers(0, 1 << 32, WAVE, np.uint32)
    found, _ = on_lds(device, f"ds_read_{name} v20, v3", memory, {"v3": address, "v20": old}, ["v20"])
    value = taken(memory, address, size).view(f"{'i' if is_signed else 'u'}{size}")[:, 0]
    assert np.array_equal(found[0], placed(old, value, where))


@pytest.mark.parametrize(
    "name, size, shift", [("b8", 1, 0), ("b16", 2, 0), ("b8_d16_hi", 1, 16), ("b16_d16_hi", 2, 16)]
)
def test_writes_of_bytes_and_words(device: ModuleType, name: str, size: int, shift: int) -> None:
    random, memory = np.random.default_rng(4), content()
    address = (random.permutation(SIZE // size)[:WAVE] * size).astype(np.uint32)
    data = random.integers(0, 1 << 32, WAVE, np.uint32)
    _, after = on_lds(device, f"ds_write_{name} v3, v20", memory, {"v3": address, "v20": data}, [])
    expected = memory.copy()
    expected[address[:, None] + np.arange(size)] = (data >> shift).view(np.uint8).reshape(WAVE, 4)[:, :size]
    assert np.array_equal(after, expected)


def test_addresses_wrap_around(device: ModuleType) -> None:
    memory = content()
    address = (4 * LANES - 64).astype(np.int64).astype(np.uint32)
    found, _ = on_lds(device, "ds_read_b32 v20, v3 offset:64", memory, {"v3": address}, ["v20"])
    assert np.array_equal(found[0], memory.view(np.uint32)[:WAVE])


# ---- between lanes


@pytest.mark.parametrize("mask", [MASKS[0], MASKS[1]])
def test_bpermute(device: ModuleType, mask: int) -> None:
    random, on = np.random.default_rng(2), lanes_on(mask)
    address = random.integers(0, 1 << 32, WAVE, np.uint32)
    data, old = random.integers(0, 1 << 32, (2, WAVE), np.uint32)
    body = "ds_bpermute_b32 v20, v3, v4 offset:8"
    found, _ = on_lds(device, body, content(), {"v3": address, "v4": data, "v20": old}, ["v20"], mask)
    active_data = np.where(on, data, 0)
    lane = (address.astype(np.uint64) + 8) // 4 % WAVE
    assert np.array_equal(found[0], np.where(on, active_data[lane], old))


def test_permute(device: ModuleType) -> None:
    random, mask = np.random.default_rng(5), MASKS[1]
    on, to = lanes_on(mask), random.permutation(WAVE)
    data, old = random.integers(0, 1 << 32, (2, WAVE), np.uint32)
    loads = {"v3": (4 * to).astype(np.uint32), "v4": data, "v20": old}
    found, _ = on_lds(device, "ds_permute_b32 v20, v3, v4", content(), loads, ["v20"], mask)
    sent = np.zeros(WAVE, np.uint32)
    sent[to[on]] = data[on]
    assert np.array_equal(found[0], np.where(on, sent, old))


def test_two_values_for_one_lane_are_undefined(device: ModuleType) -> None:
    loads = {"v3": 0, "v4": LANES.astype(np.uint32), "v20": 0}
    with pytest.raises(device.Fault, match="undefined value[^$]*lane 0"):
        on_lds(device, "ds_permute_b32 v20, v3, v4", content(), loads, ["v20"])
    on_lds(device, "ds_permute_b32 v20, v3, v4", content(), loads | {"v4": 7}, ["v20"])


# From the ISA document: what lanes 0 to 31 get of the values 1 to 32.
SWIZZLES = {
    "0xe000": "1 11 9 19 5 15 d 1d 3 13 b 1b 7 17 f 1f 2 12 a 1a 6 16 e 1e 4 14 c 1c 8 18 10 20",
    "0xe010": "1 9 5 d 3 b 7 f 2 a 6 e 4 c 8 10 11 19 15 1d 13 1b 17 1f 12 1a 16 1e 14 1c 18 20",
    "0xe01f": "1 2 3 4 5 6 7 8 9 a b c d e f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f 20",
    "0xc020": "2 3 4 5 6 7 8 9 a b c d e f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f 20 1",
    "0xc420": "20 1 2 3 4 5 6 7 8 9 a b c d e f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f",
    "0xc021": "1 4 3 6 5 8 7 a 9 c b e d 10 f 12 11 14 13 16 15 18 17 1a 19 1c 1b 1e 1d 20 1f 2",
    "0xc421": "1f 2 1 4 3 6 5 8 7 a 9 c b e d 10 f 12 11 14 13 16 15 18 17 1a 19 1c 1b 1e 1d 20",
    "swizzle(QUAD_PERM,3,1,0,0)": "4 2 1 1 8 6 5 5 c a 9 9 10 e d d 14 12 11 11 18 16 15 15 1c 1a 19 19 20 1e 1d 1d",
    "swizzle(SWAP,16)": "11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f 20 1 2 3 4 5 6 7 8 9 a b c d e f 10",
    "swizzle(REVERSE,8)": "8 7 6 5 4 3 2 1 10 f e d c b a 9 18 17 16 15 14 13 12 11 20 1f 1e 1d 1c 1b 1a 19",
    "swizzle(BROADCAST,16,3)": "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 14 14 14 14 14 14 14 14 14 14 14 14 14 14 14 14",
    'swizzle(BITMASK_PERM,"01pip")': "b c 9 a f 10 d e b c 9 a f 10 d e b c 9 a f 10 d e b c 9 a f 10 d e",
}


@pytest.mark.parametrize("offset", SWIZZLES)
def test_swizzle(device: ModuleType, offset: str) -> None:
    half = np.array([int(x, 16) for x in SWIZZLES[offset].split()])
    loads = {"v4": (LANES + 1).astype(np.uint32), "v20": 0}
    found, _ = on_lds(device, f"ds_swizzle_b32 v20, v4 offset:{offset}", content(), loads, ["v20"])
    assert found[0].tolist() == [*half, *(half + 32)]


def test_swizzle_of_lanes_that_are_off(device: ModuleType) -> None:
    loads = {"v4": (LANES + 1).astype(np.uint32), "v20": 99}
    mask = 0x5555_5555_5555_5555
    found, _ = on_lds(device, "ds_swizzle_b32 v20, v4 offset:swizzle(SWAP,1)", content(), loads, ["v20"], mask)
    assert found[0].tolist() == [0, 99] * 32


# ---- how long it takes


def banks_of(size: int, read: bool) -> int:
    return 64 if CHIP == "gfx950" and read and size in (8, 16) else 32


def served_together(size: int, read: bool) -> list[list[int]]:
    """Lanes of one clock, as AMD publishes it for 128-bit reads; consecutive ones otherwise. gfx950's as HipKittens
    measured them (analysis/paper_experiments/phases)."""
    if banks_of(size, read) == 64:
        starts = {8: [range(0, 32, 4)], 16: [(0, 12, 20, 24), (4, 8, 16, 28)]}[size]
        return [[h + s + k for s in group for k in range(4)] for h in (0, 32) for group in starts]
    if read and size >= 12:
        pairs = [(0, 20), (4, 16), (8, 28), (12, 24)]
        return [[h + s + k for s in p for k in range(4)] for h in (0, 32) for p in pairs]
    n = {1: 32, 2: 32, 4: 32, 8: 16, 12: 8, 16: 8}[size]
    return [list(range(first, first + n)) for first in range(0, WAVE, n)]


def cycles(address: np.ndarray, size: int, read: bool, on: np.ndarray) -> tuple[int, int]:
    total = ideal = 0
    for group in served_together(size, read):
        banks: dict[int, set[int]] = {}
        for lane in (k for k in group if on[k]):
            for word in range(int(address[lane]) // 4, (int(address[lane]) + size - 1) // 4 + 1):
                banks.setdefault(word % banks_of(size, read), set()).add(word)
        ideal += bool(banks)
        total += max(map(len, banks.values()), default=0)
    return total, ideal


def patterns(size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(size)
    unit = max(size, 4)
    size_left = SIZE - size
    addresses = {f"stride {s}": LANES * s * unit for s in (1, 2, 3, 8, 32)}
    addresses |= {"one place": 0 * LANES, "pairs": LANES // 2 * unit}
    addresses["random"] = random.integers(0, size_left // unit, WAVE) * unit
    if size > 2:
        addresses["unaligned"] = random.integers(0, size_left // 4, WAVE) * 4
    return {name: (x % (size_left - size_left % unit)).astype(np.uint32) for name, x in addresses.items()}


SIZES = {"u8": 1, "u16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16}


@pytest.mark.parametrize("name", SIZES)
def test_cycles(device: ModuleType, name: str) -> None:
    size = SIZES[name]
    count = max(1, size // 4)
    for pattern, address in patterns(size).items():
        for mask in (MASKS[0], MASKS[1]):
            on = lanes_on(mask)
            for read in (True, False):
                suffix = name if read else name.replace("u", "b")
                operands = f"{span('v', 20, count)}, v3" if read else f"v3, {span('v', 20, count)}"
                mnemonic = f"ds_{'read' if read else 'write'}_{suffix}"
                body = "\n".join([*with_lanes(mask), f"  {mnemonic} {operands}", WAIT, "  s_mov_b64 exec, -1"])
                loads = {"v3": address} | dict.fromkeys(registers("v", 20, count), 0)
                _, counted = run_counted(device, body, loads, [], lds=SIZE)
                found = counted[mnemonic]
                expected = cycles(address, size, read, on)
                assert (found.lds_cycles, found.lds_ideal_cycles) == expected, (pattern, read, mask)


def test_published_patterns(device: ModuleType) -> None:
    """16-byte reads of 32 rows: those of 128 bytes conflict, and 16 bytes of padding cure it."""
    is_wide = banks_of(16, True) == 64
    ideal = 4 if is_wide else 8
    for row, expected in ((128, 32 if is_wide else 64), (144, ideal)):
        address = (LANES % 32 * row + LANES // 32 * 16).astype(np.uint32)
        loads = {"v3": address}
        _, counted = run_counted(device, "ds_read_b128 v[20:23], v3\n  s_waitcnt lgkmcnt(0)", loads, [], lds=65536)
        found = counted["ds_read_b128"]
        assert (found.lds_cycles, found.lds_ideal_cycles) == (expected, ideal), row
