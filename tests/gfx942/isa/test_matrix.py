# SPDX-License-Identifier: Apache-2.0
"""v_mfma against NumPy."""

from __future__ import annotations

import struct
from types import ModuleType

import numpy as np
import pytest

from builds import CHIP
from exact_floats import F32
from matrix_models import BY_LABEL, FORMS, KINDS, ONE_OF_BYTES, Form, input_index, output_index
from wave_programs import WAVE, registers, run, run_counted, span, with_lanes

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.mnemonic)
F16 = BY_LABEL["16x16x16_f16"]
DOUBLES = {
    blocks: f"v_mfma_f64_{shape}f64" if CHIP == "gfx90a" else f"v_mfma_f64_{shape}{of_blocks}_f64"
    for blocks, shape, of_blocks in ((1, "16x16x4", ""), (4, "4x4x4", "_4b"))
}


def of_this_chip(*labels: str) -> list[str]:
    """Of the forms that some chip has."""
    return [label for label in labels if label in BY_LABEL]


def packed(elements: np.ndarray, bits: int) -> np.ndarray:
    """[element, lane] as registers."""
    each = 32 // bits
    grouped = elements.astype(np.uint64).reshape(-1, each, WAVE)
    shifts = (np.arange(each, dtype=np.uint64) * np.uint64(bits))[None, :, None]
    return (grouped << shifts).sum(axis=1).astype(np.uint32)


def multiply(
    device: ModuleType,
    form: Form,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    modifiers: str = "",
    where: str = "vvaa",  # which half of the register file A, B, C and D are in
) -> np.ndarray:
    """A [block, i, k] and B [block, j, k] as bits, C [block, i, j]; D likewise."""
    blocks, rows, depths = input_index(form)
    a_bits, b_bits = KINDS[form.a].bits, KINDS[form.b].bits
    images = [packed(a[blocks, rows, depths], a_bits), packed(b[blocks, rows, depths], b_bits)]
    at = output_index(form)
    images.append(np.ascontiguousarray(c[at]).view(np.uint32))
    first = (8, 16, 32, 96)
    operands = [(kind, at, len(image)) for kind, at, image in zip(where, first, images, strict=False)]
    result = (where[3], first[3], form.outputs())
    text = f"{form.mnemonic} {span(*result)}, {', '.join(span(*o) for o in operands)} {modifiers}"
    loads = {}
    for operand, image in zip(operands, images, strict=True):
        loads |= dict(zip(registers(*operand), image, strict=True))
    found = run(device, text, loads, registers(*result))
    d = np.empty_like(c)
    d[at] = found.view(form.out)
    return d


def numbers(form: Form, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    shape = (form.blocks, form.side, form.k)
    c = random.integers(-8, 8, (form.blocks, form.side, form.side)).astype(form.out)
    return random.choice(KINDS[form.a].examples, shape), random.choice(KINDS[form.b].examples, shape), c


def product(form: Form, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    wide = np.int64 if form.a == "i8" else np.float64
    x, y = KINDS[form.a].decode(a).astype(wide), KINDS[form.b].decode(b).astype(wide)
    return c.astype(wide) + np.einsum("bik,bjk->bij", x, y)


@every_form
def test_exact_products(device: ModuleType, form: Form) -> None:
    a, b, c = numbers(form, 1)
    assert np.array_equal(multiply(device, form, a, b, c), product(form, a, b, c).astype(form.out))


@pytest.mark.parametrize("where", ["aavv", "avvv", "vaaa"])
def test_either_half_of_the_register_file(device: ModuleType, where: str) -> None:
    form = BY_LABEL["16x16x16_bf16"]
    a, b, c = numbers(form, 2)
    assert np.array_equal(multiply(device, form, a, b, c, where=where), product(form, a, b, c).astype(np.float32))


@every_form
def test_cycles(device: ModuleType, form: Form) -> None:
    registers_of = {kind: KINDS[kind].bits * form.per_lane() // 32 for kind in (form.a, form.b)}
    a, b = span("v", 8, registers_of[form.a]), span("v", 16, registers_of[form.b])
    text = f"{form.mnemonic} {span('v', 32, form.outputs())}, {a}, {b}, 0"
    _, counted = run_counted(device, text, dict.fromkeys(registers("v", 8, 16), 0), ["v32"])
    found = counted[form.mnemonic]
    assert (found.unit, found.cycles, found.executed) == ("matrix", form.cycles, 1)


def in_order(form: Form, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """With one rounding for each product, in rising k."""
    x, y = (KINDS[kind].decode(m).view(np.uint32) for kind, m in ((form.a, a), (form.b, b)))
    if form.flushes:
        smallest = np.float32(2.0**-14 if form.a == "f16" else 2.0**-126)
        x, y = (np.where(np.abs(m.view(np.float32)) < smallest, m & 0x80000000, m) for m in (x, y))
        c = without_denormals(c)
    d = np.empty_like(c)
    for block, i, j in np.ndindex(c.shape):
        total = int(c[block, i, j].view(np.uint32))
        for k in range(form.k):
            rounded = F32.fma(int(x[block, i, k]), int(y[block, j, k]), total)
            total = 0x7FC00000 if rounded is None else rounded
        d[block, i, j] = struct.unpack("<f", struct.pack("<I", total))[0]
    return without_denormals(d) if form.flushes else d


def without_denormals(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


@pytest.mark.parametrize(
    "name", of_this_chip("4x4x4_16b_bf16", "4x4x4_16b_f16", "4x4x1_16b_f32", "16x16x4_f32", "16x16x8_xf32")
)
def test_roundings(device: ModuleType, name: str) -> None:
    """Values of many sizes, denormals, infinities and NaN among them."""
    form = BY_LABEL[name]
    random = np.random.default_rng(4)
    bits = KINDS[form.a].bits
    shape = (form.blocks, form.side, form.k)
    a, b = (random.integers(0, 1 << bits, shape, np.uint64).astype(f"uint{bits}") for _ in range(2))
    c = random.standard_normal((form.blocks, form.side, form.side)).astype(np.float32) * np.float32(1e-3)
    found, expected = multiply(device, form, a, b, c), in_order(form, a, b, c)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.isnan(expected).any() and np.isfinite(expected).any()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_denormals(device: ModuleType, kind: str) -> None:
    """Kept, or zeros of the same sign on a chip that takes them so: those of A and B, of C, and of D."""
    form = BY_LABEL[f"16x16x16_{kind}"]
    kept = 0 if form.flushes else 1
    smallest, one = (2.0**-24, 0x3C00) if kind == "f16" else (2.0**-133, 0x3F80)
    a, b = np.full((1, 16, 16), 0x8001, np.uint16), np.full((1, 16, 16), one, np.uint16)
    zero = np.zeros((1, 16, 16), np.float32)
    assert np.all(multiply(device, form, a, b, zero) == np.float32(-16 * smallest * kept))
    assert np.all(multiply(device, form, b, a, zero) == np.float32(-16 * smallest * kept))
    least = np.full((1, 16, 16), -(2.0**-149), np.float32)
    found = multiply(device, form, np.full_like(a, 0x8000), b, least)
    assert np.all(found == kept * least) and np.all(np.signbit(found))
    c = np.full((1, 16, 16), -(2.0**-126), np.float32)
    c[0, 3, 5] = -1.5 * 2.0**-126
    tiny = np.zeros((1, 16, 16), np.uint16)
    tiny[0, :, 0] = 0x0080 if kind == "bf16" else 0  # 2^-126: what is left of c[3, 5] is 2^-127
    left = multiply(device, form, tiny, b, c)[0, 3, 5]
    assert left == (np.float32(-(2.0**-127)) * kept if kind == "bf16" else c[0, 3, 5])


def test_integers_wrap_around(device: ModuleType) -> None:
    form = next(form for form in FORMS if form.a == "i8" and form.side == 16 and form.blocks == 1)
    a = np.full((1, 16, form.k), 0x80, np.uint8)
    c = np.full((1, 16, 16), 2**31 - 1, np.int32)
    expected = (2**31 - 1 + form.k * 128 * 128 + 2**31) % 2**32 - 2**31
    assert np.all(multiply(device, form, a, a, c) == expected)


@pytest.mark.skipif(CHIP == "gfx90a", reason="it has none of these")
def test_every_byte_of_the_eight_bit_formats(device: ModuleType) -> None:
    """A has each byte once, B is one."""
    for kind, one in zip(("fp8", "bf8"), ONE_OF_BYTES, strict=True):
        form = BY_LABEL[f"16x16x32_{kind}_{kind}"]
        found = []
        for first in range(0, 256, 16):
            a = np.zeros((1, 16, 32), np.uint8)
            a[0, :, 0] = np.arange(first, first + 16)
            b = np.full((1, 16, 32), one, np.uint8)
            found.append(multiply(device, form, a, b, np.zeros((1, 16, 16), np.float32))[0, :, 0])
        assert np.array_equal(np.concatenate(found), KINDS[kind].decode(np.arange(256)), equal_nan=True)


# ---- modifiers


def moved(lane: int, blgp: int) -> int:
    if blgp in (1, 2):
        return lane % 32 + 32 * (blgp - 1)
    if blgp == 3:
        return (lane + 16) % 64
    return lane % 16 + 16 * (blgp - 4) if blgp >= 4 else lane


@pytest.mark.parametrize("blgp", range(1, 8))
@pytest.mark.parametrize(
    "name",
    [x for x in ("32x32x4_2b_f16", "16x16x4_4b_bf16", "4x4x4_16b_f16", "16x16x4_f32", "32x32x8_bf16")
     if BY_LABEL[x].lanes_move],
)  # fmt: skip
def test_blgp(device: ModuleType, name: str, blgp: int) -> None:
    form = BY_LABEL[name]
    a, b, c = numbers(form, blgp)
    blocks, columns, depths = input_index(form)
    lanes = [moved(lane, blgp) for lane in range(WAVE)]
    permuted = np.empty_like(b)
    permuted[blocks, columns, depths] = b[blocks, columns, depths][:, lanes]
    expected = product(form, a, permuted, c).astype(np.float32)
    assert np.array_equal(multiply(device, form, a, b, c, f"blgp:{blgp}"), expected)


@pytest.mark.parametrize("cbsz, abid", [(1, 0), (1, 1), (2, 3), (3, 5), (4, 14)])
def test_cbsz_and_abid(device: ModuleType, cbsz: int, abid: int) -> None:
    form = BY_LABEL["4x4x4_16b_f16"]
    a, b, c = numbers(form, 9)
    broadcast = a[[block >> cbsz << cbsz | abid for block in range(form.blocks)]]
    expected = product(form, broadcast, b, c).astype(np.float32)
    assert np.array_equal(multiply(device, form, a, b, c, f"cbsz:{cbsz} abid:{abid}"), expected)


# ---- doubles


@pytest.mark.parametrize("side, blocks", [(16, 1), (4, 4)])
@pytest.mark.parametrize("negative", [(0, 0, 0), *([] if CHIP == "gfx90a" else [(1, 0, 0), (0, 1, 1)])])
def test_doubles(device: ModuleType, side: int, blocks: int, negative: tuple[int, int, int]) -> None:
    random = np.random.default_rng(5)
    a, b = (random.integers(-9, 9, (blocks, side, 4)).astype(np.float64) for _ in range(2))
    c = random.integers(-9, 9, (blocks, side, side)).astype(np.float64)
    lane = np.arange(WAVE)
    if blocks == 1:
        block, row, k = 0 * lane, lane % 16, lane // 16
        positions = [(0 * lane, 4 * e + lane // 16, lane % 16) for e in range(4)]
    else:
        block, row, k = lane // 4 % 4, lane % 4, lane // 16
        positions = [(block, lane // 16, lane % 4)]
    images = [a[block, row, k], b[block, row, k], *(c[position] for position in positions)]
    loads = {}
    for at, image in zip((8, 10, *range(16, 16 + 2 * len(positions), 2)), images, strict=True):
        loads[f"v{at}"], loads[f"v{at + 1}"] = np.ascontiguousarray(image).view(np.uint32).reshape(WAVE, 2).T
    size = 2 * len(positions)
    signs = f"neg:[{','.join(map(str, negative))}]" if any(negative) else ""
    body = f"{DOUBLES[blocks]} {span('v', 32, size)}, v[8:9], v[10:11], {span('v', 16, size)} {signs}"
    found = run(device, body, loads, registers("v", 32, size))
    d = np.empty_like(c)
    for position, low, high in zip(positions, found[::2], found[1::2], strict=True):
        d[position] = np.ascontiguousarray(np.stack([low, high], 1)).view(np.float64)[:, 0]
    x, y, z = (m * (1 - 2 * n) for m, n in zip((a, b, c), negative, strict=True))
    assert np.array_equal(d, z + np.einsum("bik,bjk->bij", x, y))


# ---- what is not data


def test_constants_for_c(device: ModuleType) -> None:
    form = F16
    a, b, _ = numbers(form, 6)
    blocks, rows, depths = input_index(form)
    images = [*packed(a[blocks, rows, depths], 16), *packed(b[blocks, rows, depths], 16)]
    loads = dict(zip(("v8", "v9", "v16", "v17"), images, strict=True))
    for text, value in (("0", 0.0), ("1.0", 1.0), ("-4.0", -4.0), ("0.5", 0.5)):
        found = run(device, f"{form.mnemonic} v[32:35], v[8:9], v[16:17], {text}", loads, registers("v", 32, 4))
        expected = product(form, a, b, np.full((1, 16, 16), value, np.float32)).astype(np.float32)
        assert np.array_equal(found.view(np.float32), expected[output_index(form)])


def test_exec_does_not_matter(device: ModuleType) -> None:
    form = F16
    a, b, c = numbers(form, 7)
    blocks, rows, depths = input_index(form)
    images = [*packed(a[blocks, rows, depths], 16), *packed(b[blocks, rows, depths], 16)]
    loads = dict(zip(("v8", "v9", "v16", "v17"), images, strict=True))
    loads |= dict(zip(registers("v", 32, 4), c[output_index(form)].view(np.uint32), strict=True))
    instruction = f"{form.mnemonic} v[32:35], v[8:9], v[16:17], v[32:35]"
    body = f"s_mov_b64 exec, 1\n  {instruction}\n  s_mov_b64 exec, -1"
    found = run(device, body, loads, registers("v", 32, 4)).view(np.float32)
    assert np.array_equal(found, product(form, a, b, c).astype(np.float32)[output_index(form)])


@pytest.mark.parametrize("operand", ["A", "B", "C"])
def test_undefined_inputs_reach_their_rows_and_columns_alone(device: ModuleType, operand: str) -> None:
    """One lane of an operand was never written: storing what comes of it is a fault, storing the rest is none."""
    lane = 16 + 3  # A[3][4..7], B[4..7][3], or C[4..7][3]
    register = {"A": "v8", "B": "v16", "C": "v33"}[operand]
    d = output_index(F16)
    touched = {"A": d[1] == 3, "B": d[2] == 3, "C": (d[1] == 5) & (d[2] == 3)}[operand]
    loads = {r: 0 for r in ("v8", "v9", "v16", "v17", "v32", "v33", "v34", "v35") if r != register}

    def body(store: np.ndarray, element: int) -> str:
        mask = sum(1 << int(k) for k in np.flatnonzero(store))
        only = "\n".join(with_lanes(mask))
        return f"""v_mov_b32 v40, 0
  s_mov_b32 exec_lo, {~(1 << lane) & 0xFFFFFFFF:#x}
  v_mov_b32 {register}, 0
  s_mov_b64 exec, -1
  {F16.mnemonic} v[32:35], v[8:9], v[16:17], v[32:35]
{only}
  v_mov_b32 v40, v{32 + element}"""

    for element in range(4):
        run(device, body(~touched[element], element), loads, ["v40"])
        for k in np.flatnonzero(touched[element])[:2]:
            one = np.arange(WAVE) == k
            with pytest.raises(device.Fault, match=rf"undefined value[^$]*lane {k}\b"):
                run(device, body(one, element), loads, ["v40"])


@pytest.mark.parametrize(
    "text",
    [
        f"{BY_LABEL['32x32x4_2b_f16'].mnemonic} v[32:63], v[8:9], v[16:17], 0 cbsz:2",
        *([] if F16.lanes_move else [f"{F16.mnemonic} v[32:35], v[8:9], v[16:17], 0 blgp:1"]),
        *([] if CHIP == "gfx90a" else ["v_smfmac_f32_16x16x32_f16 v[32:35], v[8:9], v[16:19], v20"]),
    ],
)
def test_what_is_not_implemented_says_so(device: ModuleType, text: str) -> None:
    loads = dict.fromkeys(["v8", "v9", *registers("v", 16, 5), *registers("v", 32, 4)], 0)
    with pytest.raises(device.Fault, match=text.split()[0]):
        run(device, text, loads, ["v32"])


def test_complete(device: ModuleType) -> None:
    expected = {form.mnemonic for form in FORMS} | set(DOUBLES.values())
    assert {x for x in device.operations() if x.startswith("v_mfma")} == expected
