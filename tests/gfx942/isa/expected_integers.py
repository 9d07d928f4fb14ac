# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic and logic of a lane. What a function returns is cut to the result's size afterwards."""

from __future__ import annotations

from collections.abc import Callable

from expected import DENORMALS, Op, Table

_U2, _U3, _I2, _I3 = "u32 u32 -> u32", "u32 u32 u32 -> u32", "i32 i32 -> i32", "i32 i32 i32 -> i32"
_S2, _T2 = "u16 u16 -> u16", "i16 i16 -> i16"


def _low24(x: int) -> int:
    return x & 0xFFFFFF


def _signed24(x: int) -> int:
    return (x & 0xFFFFFF ^ 0x800000) - 0x800000


def _bytes(x: int) -> list[int]:
    return [x >> k & 255 for k in (0, 8, 16, 24)]


def _absolute_differences(a: int, b: int, c: int) -> int:
    return c + sum(abs(x - y) for x, y in zip(_bytes(a), _bytes(b), strict=True))


def _permuted(a: int, b: int, selectors: int) -> int:
    """Bytes 0 to 3 are of source 1, 4 to 7 of source 0; 8 to 11 repeat the sign of bytes 1, 3, 5, 7; 12 is 0x00 and all
    above is 0xff."""
    source_bytes = _bytes(b) + _bytes(a)
    signs = [255 * (source_bytes[k] >> 7) for k in (1, 3, 5, 7)]
    choices = source_bytes + signs + [0]
    return sum((choices[s] if s < 13 else 255) << 8 * k for k, s in enumerate(_bytes(selectors)))


def _field(x: int, at: int, bits: int) -> int:
    """Signed: the bits above repeat the field's own highest one. No bits are 0; beyond the word lies its sign."""
    at, bits = at & 31, bits & 31
    field = x >> at & (1 << bits) - 1
    return field - (1 << bits) if bits and field >> bits - 1 else field


def _unsigned_field(x: int, at: int, bits: int) -> int:
    return x >> (at & 31) & (1 << (bits & 31)) - 1


def _reversed(x: int) -> int:
    return int(f"{x:032b}"[::-1], 2)


def _leading(x: int) -> int:
    return 32 - x.bit_length() if x else -1


def _leading_sign(x: int) -> int:
    """How many bits are as the sign, it included; -1 where all are."""
    return _leading(~x & 0xFFFFFFFF if x < 0 else x)


def _trailing(x: int) -> int:
    return (x & -x).bit_length() - 1 if x else -1


def _shift_add_64(a: int, by: int, c: int) -> int:
    """More than 4 is not supported, and is no shift."""
    by &= 7
    return (a << (by if by <= 4 else 0)) + c


def _wide(a: int, b: int, c: int) -> tuple[int, int]:
    """A sum of 65 bits; the highest goes to the mask."""
    total = a * b + c
    return total, total >> 64 & 1


def _sum(subtract: bool = False, swapped: bool = False) -> Callable[..., tuple[int, int]]:
    """With the carry, or the borrow, of an unsigned 32-bit sum."""

    def f(a: int, b: int, carry: int = 0) -> tuple[int, int]:
        if swapped:
            a, b = b, a
        total = a - b - carry if subtract else a + b + carry
        return total, int(not 0 <= total < 1 << 32)

    return f


TABLE: Table = {
    "v_add_u32": Op(_U2, lambda a, b: a + b, saturates=True),
    "v_sub_u32": Op(_U2, lambda a, b: a - b, saturates=True),
    "v_subrev_u32": Op(_U2, lambda a, b: b - a, saturates=True),
    "v_add_i32": Op(_I2, lambda a, b: a + b, saturates=True),
    "v_sub_i32": Op(_I2, lambda a, b: a - b, saturates=True),
    "v_add_co_u32": Op("u32 u32 -> u32 mask", _sum()),
    "v_addc_co_u32": Op("u32 u32 mask -> u32 mask", _sum()),
    "v_sub_co_u32": Op("u32 u32 -> u32 mask", _sum(subtract=True)),
    "v_subb_co_u32": Op("u32 u32 mask -> u32 mask", _sum(subtract=True)),
    "v_subrev_co_u32": Op("u32 u32 -> u32 mask", _sum(subtract=True, swapped=True)),
    "v_subbrev_co_u32": Op("u32 u32 mask -> u32 mask", _sum(subtract=True, swapped=True)),
    "v_mul_lo_u32": Op(_U2, lambda a, b: a * b),
    "v_mul_hi_u32": Op(_U2, lambda a, b: a * b >> 32),
    "v_mul_hi_i32": Op(_I2, lambda a, b: a * b >> 32),
    "v_mul_u32_u24": Op(_U2, lambda a, b: _low24(a) * _low24(b)),
    "v_mul_hi_u32_u24": Op(_U2, lambda a, b: _low24(a) * _low24(b) >> 32),
    "v_mul_i32_i24": Op(_I2, lambda a, b: _signed24(a) * _signed24(b)),
    "v_mul_hi_i32_i24": Op(_I2, lambda a, b: _signed24(a) * _signed24(b) >> 32),
    "v_mad_u32_u24": Op(_U3, lambda a, b, c: _low24(a) * _low24(b) + c),
    "v_mad_i32_i24": Op(_I3, lambda a, b, c: _signed24(a) * _signed24(b) + c),
    "v_mad_u64_u32": Op("u32 u32 u64 -> u64 mask", _wide),
    "v_mad_i64_i32": Op("i32 i32 i64 -> i64 mask", _wide),
    "v_add3_u32": Op(_U3, lambda a, b, c: a + b + c),
    "v_lshl_add_u32": Op(_U3, lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": Op(_U3, lambda a, b, c: (a + b) << (c & 31)),
    "v_lshl_add_u64": Op("u64 u32:shift u64 -> u64", _shift_add_64),
    "v_xad_u32": Op(_U3, lambda a, b, c: (a ^ b) + c),
    "v_sad_u32": Op(_U3, lambda a, b, c: abs(a - b) + c),
    "v_sad_u8": Op(_U3, _absolute_differences),
    "v_and_b32": Op(_U2, lambda a, b: a & b),
    "v_or_b32": Op(_U2, lambda a, b: a | b),
    "v_xor_b32": Op(_U2, lambda a, b: a ^ b),
    "v_xnor_b32": Op(_U2, lambda a, b: ~(a ^ b)),
    "v_not_b32": Op("u32 -> u32", lambda a: ~a),
    "v_and_or_b32": Op(_U3, lambda a, b, c: a & b | c),
    "v_or3_b32": Op(_U3, lambda a, b, c: a | b | c),
    "v_lshl_or_b32": Op(_U3, lambda a, b, c: a << (b & 31) | c),
    "v_lshlrev_b32": Op(_U2, lambda n, a: a << (n & 31)),
    "v_lshrrev_b32": Op(_U2, lambda n, a: a >> (n & 31)),
    "v_ashrrev_i32": Op("u32 i32 -> i32", lambda n, a: a >> (n & 31)),
    "v_lshlrev_b64": Op("u32 u64 -> u64", lambda n, a: a << (n & 63)),
    "v_lshrrev_b64": Op("u32 u64 -> u64", lambda n, a: a >> (n & 63)),
    "v_ashrrev_i64": Op("u32 i64 -> i64", lambda n, a: a >> (n & 63)),
    "v_bfe_u32": Op(_U3, _unsigned_field),
    "v_bfe_i32": Op("i32 u32 u32 -> i32", _field),
    "v_bfi_b32": Op(_U3, lambda mask, a, b: mask & a | ~mask & b),
    "v_bfm_b32": Op(_U2, lambda bits, at: ((1 << (bits & 31)) - 1) << (at & 31)),
    "v_bfrev_b32": Op("u32 -> u32", _reversed),
    "v_bcnt_u32_b32": Op(_U2, lambda a, b: a.bit_count() + b),
    "v_ffbh_u32": Op("u32 -> i32", _leading),
    "v_ffbl_b32": Op("u32 -> i32", _trailing),
    "v_ffbh_i32": Op("i32 -> i32", _leading_sign),
    "v_alignbit_b32": Op(_U3, lambda a, b, n: (a << 32 | b) >> (n & 31)),
    "v_alignbyte_b32": Op(_U3, lambda a, b, n: (a << 32 | b) >> 8 * (n & 3)),
    "v_perm_b32": Op("u32 u32 u32:selector -> u32", _permuted),
    "v_add_u16": Op(_S2, lambda a, b: a + b, saturates=True),
    "v_sub_u16": Op(_S2, lambda a, b: a - b, saturates=True),
    "v_subrev_u16": Op(_S2, lambda a, b: b - a, saturates=True),
    "v_mul_lo_u16": Op(_S2, lambda a, b: a * b),
    "v_lshlrev_b16": Op(_S2, lambda n, a: a << (n & 15)),
    "v_lshrrev_b16": Op(_S2, lambda n, a: a >> (n & 15)),
    "v_ashrrev_i16": Op("u16 i16 -> i16", lambda n, a: a >> (n & 15)),
    "v_mad_u16": Op("u16 u16 u16 -> u16", lambda a, b, c: a * b + c, half="lower"),
    "v_mad_i16": Op("i16 i16 i16 -> i16", lambda a, b, c: a * b + c, half="lower"),
    "v_mad_legacy_u16": Op("u16 u16 u16 -> u16", lambda a, b, c: a * b + c),
    "v_pack_b32_f16": Op("f16 f16 -> b32", lambda a, b: b << 16 | a),
    "v_cndmask_b32": Op("b32 b32 mask -> b32", lambda a, b, which: b if which else a, modes=DENORMALS),
    "v_mov_b32": Op("b32 -> b32", lambda a: a),
    "v_mov_b64": Op("b64 -> b64", lambda a: a),
    # How many bits of a lane mask belong to lanes below: of its lower half, then of its upper one.
    "v_mbcnt_lo_u32_b32": Op(_U2, lambda lane, m, n: (m & (1 << lane.index) - 1).bit_count() + n, takes_lane=True),
    "v_mbcnt_hi_u32_b32": Op(
        _U2, lambda lane, m, n: (m << 32 & (1 << lane.index) - 1).bit_count() + n, takes_lane=True
    ),
}
for _type, _signature in (("u32", _U2), ("i32", _I2), ("u16", _S2), ("i16", _T2)):
    TABLE[f"v_min_{_type}"], TABLE[f"v_max_{_type}"] = Op(_signature, min), Op(_signature, max)
for _type, _signature in (("u32", _U3), ("i32", _I3)):
    TABLE[f"v_min3_{_type}"], TABLE[f"v_max3_{_type}"] = Op(_signature, min), Op(_signature, max)
    TABLE[f"v_med3_{_type}"] = Op(_signature, lambda a, b, c: sorted((a, b, c))[1])
