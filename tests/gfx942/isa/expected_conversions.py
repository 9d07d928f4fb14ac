# SPDX-License-Identifier: Apache-2.0
"""Conversions and comparisons of a lane."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from exact_floats import DOWN, F16, F32, FORMATS, TOWARDS_ZERO, Format
from expected import DENORMALS, ROUNDINGS, Op, Result, Table

MODES = ROUNDINGS + DENORMALS
TABLE: Table = {}


def _to_integer(source: str, to: str, mode: int = TOWARDS_ZERO, **more: Any) -> Op:
    """Out of range is the nearest that fits, NaN is 0."""
    fmt, bits, signed = FORMATS[source], int(to[1:]), to[0] == "i"
    return Op(f"{source} -> {to}", lambda x: fmt.to_integer(x, bits, signed, mode), modes=ROUNDINGS, **more)


def _of_integer(source: str, to: str) -> Op:
    fmt = FORMATS[to]
    return Op(
        f"{source} -> {to}", lambda lane, x: fmt.of_integer(x, lane.mode.rounding(fmt)), takes_lane=True, modes=MODES
    )


def _of_float(source: str, to: str) -> Op:
    """Rounds as MODE says for the result's type."""
    a, fmt = FORMATS[source], FORMATS[to]
    f = lambda lane, x: fmt.of_format(a, x, lane.mode.rounding(fmt))  # noqa: E731
    return Op(f"{source} -> {to}", f, takes_lane=True, modes=MODES)


for _source in ("i32", "u32"):
    for _to in ("f32", "f64"):
        TABLE[f"v_cvt_{_to}_{_source}"] = _of_integer(_source, _to)
        TABLE[f"v_cvt_{_source}_{_to}"] = _to_integer(_to, _source)
for _source in ("i16", "u16"):
    TABLE[f"v_cvt_f16_{_source}"] = _of_integer(_source, "f16")
    TABLE[f"v_cvt_{_source}_f16"] = _to_integer("f16", _source)
for _source, _to in (("f32", "f64"), ("f64", "f32"), ("f16", "f32"), ("f32", "f16")):
    TABLE[f"v_cvt_{_to}_{_source}"] = _of_float(_source, _to)
TABLE["v_cvt_flr_i32_f32"] = _to_integer("f32", "i32", DOWN)


def _nearest_upwards(x: int) -> int:
    """floor(x + 0.5)."""
    if F32.is_nan(x) or F32.is_infinite(x):
        return F32.to_integer(x, 32, True)
    m, e = F32.parts(x)
    low = min(e, -1)
    total = (m << e - low) * (-1) ** F32.minus(x) + (1 << -1 - low)
    return max(-(1 << 31), min((1 << 31) - 1, total >> -low))


TABLE["v_cvt_rpi_i32_f32"] = Op("f32:below_half -> i32", _nearest_upwards)
for _k in range(4):
    TABLE[f"v_cvt_f32_ubyte{_k}"] = Op("b32 -> f32", lambda x, k=_k: F32.of_integer(x >> 8 * k & 255))
# Four bits with a sign, as sixteenths.
TABLE["v_cvt_off_f32_i4"] = Op("b32 -> f32", lambda x: F32.of_number((x % 16 - (16 if x & 8 else 0)) / 16))


def _halves(a: int, b: int) -> Result:
    """Towards zero, whatever MODE says. Of a NaN only that it is one is known, which no word beside it shares."""
    parts = [F16.of_format(F32, x, TOWARDS_ZERO) for x in (a, b)]
    return tuple(parts)


TABLE["v_cvt_pkrtz_f16_f32"] = Op("f32 f32 -> f16x2", _halves, modes=ROUNDINGS)


def _with_byte(x: int, at: int, old: int) -> int:
    """Whole numbers only: the ISA does not say how others round."""
    shift = 8 * (at & 3)
    return old & ~(255 << shift) | F32.to_integer(x, 8, False) << shift


TABLE["v_cvt_pk_u8_f32"] = Op("f32:whole u32 u32 -> b32", _with_byte)


# ---- comparisons

_INTEGER = {
    "f": lambda a, b: False,
    "lt": operator.lt,
    "eq": operator.eq,
    "le": operator.le,
    "gt": operator.gt,
    "ne": operator.ne,
    "ge": operator.ge,
    "t": lambda a, b: True,
}


def _unordered(a: float, b: float) -> bool:
    return a != a or b != b


# An "n" is for "not": true for NaN, where lt, le, gt, ge, eq and lg are false.
_FLOAT: dict[str, Callable[[float, float], bool]] = {
    "f": lambda a, b: False,
    "lt": operator.lt,
    "eq": operator.eq,
    "le": operator.le,
    "gt": operator.gt,
    "lg": lambda a, b: a < b or a > b,
    "ge": operator.ge,
    "o": lambda a, b: not _unordered(a, b),
    "u": _unordered,
    "nge": lambda a, b: _unordered(a, b) or a < b,
    "nlg": lambda a, b: _unordered(a, b) or a == b,
    "ngt": lambda a, b: _unordered(a, b) or a <= b,
    "nle": lambda a, b: _unordered(a, b) or a > b,
    "neq": lambda a, b: _unordered(a, b) or a != b,
    "nlt": lambda a, b: _unordered(a, b) or a >= b,
    "tru": lambda a, b: True,
}


def _class_bit(fmt: Format, x: int) -> int:
    """Signalling NaN, quiet NaN, then from -infinity to +infinity: normal, denormal, zero, zero, denormal, normal."""
    if fmt.is_nan(x):
        return 0 if fmt.is_signalling(x) else 1
    outwards = 0 if fmt.is_zero(x) else 1 if fmt.is_denormal(x) else 3 if fmt.is_infinite(x) else 2
    return 5 - outwards if fmt.minus(x) else 6 + outwards


def _add(name: str, signature: str, f: Callable[..., Result], **more: Any) -> None:
    TABLE[f"v_cmp_{name}"] = Op(signature, f, **more)
    TABLE[f"v_cmpx_{name}"] = Op(signature, f, sets_exec=True, **more)


for _type in ("i16", "u16", "i32", "u32", "i64", "u64"):
    for _relation, _holds in _INTEGER.items():
        _add(f"{_relation}_{_type}", f"{_type} {_type} -> mask", lambda a, b, f=_holds: int(f(a, b)))
for _type, _fmt in FORMATS.items():
    for _relation, _is in _FLOAT.items():
        _numbers = lambda a, b, f=_is, fmt=_fmt: int(f(fmt.number(a), fmt.number(b)))  # noqa: E731
        _add(f"{_relation}_{_type}", f"{_type} {_type} -> mask", _numbers, modes=DENORMALS)
    _class = lambda x, classes, fmt=_fmt: classes >> _class_bit(fmt, x) & 1  # noqa: E731
    # Whether a denormal is one does not depend on MODE: LLVM takes llvm.is.fpclass for this instruction in any.
    _add(f"class_{_type}", f"{_type} b32:class -> mask", _class, flushes=False, modes=DENORMALS)
