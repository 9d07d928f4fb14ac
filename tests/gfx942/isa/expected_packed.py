# SPDX-License-Identifier: Apache-2.0
"""Two operations in one instruction, a function of one element each; mixed precision; dot products."""

from __future__ import annotations

from collections.abc import Callable

from exact_floats import F16, F32, NAN
from expected import DENORMALS, NOT_IEEE, ROUNDINGS, Lane, Op, Result, Table
from expected_floats import ALL_MODES, larger, smaller

_TWO, _THREE = "{0} {0} -> {0}", "{0} {0} {0} -> {0}"


def _integers(kind: str, f: Callable[..., int], signature: str = _TWO) -> Op:
    return Op(signature.format(kind + "x2"), f)


def _floats(fmt_name: str, f: Callable[..., Result], signature: str = _TWO, modes: tuple[int, ...] = ALL_MODES) -> Op:
    return Op(signature.format(fmt_name + "x2"), f, takes_lane=True, modes=modes)


TABLE: Table = {
    "v_pk_mov_b32": Op("b32x2 b32x2 -> b32x2", lambda a, b: (a, b)),
    "v_pk_add_u16": _integers("u16", lambda a, b: a + b),
    "v_pk_add_i16": _integers("i16", lambda a, b: a + b),
    "v_pk_sub_u16": _integers("u16", lambda a, b: a - b),
    "v_pk_sub_i16": _integers("i16", lambda a, b: a - b),
    "v_pk_mul_lo_u16": _integers("u16", lambda a, b: a * b),
    "v_pk_mad_u16": _integers("u16", lambda a, b, c: a * b + c, _THREE),
    "v_pk_mad_i16": _integers("i16", lambda a, b, c: a * b + c, _THREE),
    "v_pk_lshlrev_b16": _integers("u16", lambda n, a: a << (n & 15)),
    "v_pk_lshrrev_b16": _integers("u16", lambda n, a: a >> (n & 15)),
    "v_pk_ashrrev_i16": _integers("i16", lambda n, a: a >> (n & 15)),
}
for _kind in ("u16", "i16"):
    TABLE[f"v_pk_min_{_kind}"], TABLE[f"v_pk_max_{_kind}"] = _integers(_kind, min), _integers(_kind, max)
for _name, _fmt in (("f16", F16), ("f32", F32)):
    _rounding = lambda lane, fmt=_fmt: lane.mode.rounding(fmt)  # noqa: E731
    TABLE[f"v_pk_add_{_name}"] = _floats(_name, lambda lane, a, b, fmt=_fmt, r=_rounding: fmt.sum(a, b, r(lane)))
    TABLE[f"v_pk_mul_{_name}"] = _floats(_name, lambda lane, a, b, fmt=_fmt, r=_rounding: fmt.product(a, b, r(lane)))
    TABLE[f"v_pk_fma_{_name}"] = _floats(
        _name, lambda lane, a, b, c, fmt=_fmt, r=_rounding: fmt.fma(a, b, c, r(lane)), _THREE
    )
TABLE["v_pk_max_f16"] = _floats("f16", lambda lane, a, b: larger(lane, F16, a, b), modes=DENORMALS + NOT_IEEE)
TABLE["v_pk_min_f16"] = _floats("f16", lambda lane, a, b: smaller(lane, F16, a, b), modes=DENORMALS + NOT_IEEE)


def _mixed(lane: Lane, a: int, b: int, c: int) -> Result:
    return F32.fma(a, b, c, lane.mode.rounding(F32))


def _mixed_to_half(lane: Lane, a: int, b: int, c: int) -> Result:
    """A float first, which is then a half: LLVM takes these for a rounding to 16 bits of the float's fma."""
    r = _mixed(lane, a, b, c)
    return NAN if r is NAN else F16.of_format(F32, r, lane.mode.rounding(F16))


TABLE["v_fma_mix_f32"] = Op("mix mix mix -> f32", _mixed, takes_lane=True, modes=ROUNDINGS)
TABLE["v_fma_mixlo_f16"] = Op("mix mix mix -> f16", _mixed_to_half, takes_lane=True, half="lower", modes=ROUNDINGS)
TABLE["v_fma_mixhi_f16"] = Op("mix mix mix -> f16", _mixed_to_half, takes_lane=True, half="upper", modes=ROUNDINGS)


def _dot(signed: bool) -> Callable[[int, int, int], int]:
    def byte(x: int, k: int) -> int:
        b = x >> 8 * k & 255
        return b - 256 if signed and b > 127 else b

    return lambda a, b, c: c + sum(byte(a, k) * byte(b, k) for k in range(4))


TABLE["v_dot4_i32_i8"] = Op("b32 b32 i32 -> i32", _dot(signed=True))
TABLE["v_dot4_u32_u8"] = Op("b32 b32 u32 -> u32", _dot(signed=False))
