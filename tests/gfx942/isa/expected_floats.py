# SPDX-License-Identifier: Apache-2.0
"""Float arithmetic of a lane: exact and rounded once, or an approximation as near as the ISA says it is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from exact_floats import DOWN, F16, F32, F64, FORMATS, NAN, NEAREST, SOME_NAN, TOWARDS_ZERO, UP, Format
from expected import DENORMALS, NO_DX10_CLAMP, NOT_IEEE, ROUNDINGS, Lane, Near, Op, Result, Table, random_value

ALL_MODES = ROUNDINGS + DENORMALS + NO_DX10_CLAMP
TABLE: Table = {}


def _arithmetic(method: Callable[..., int | None], fmt: Format, swapped: bool = False) -> Callable[..., Result]:
    def f(lane: Lane, *x: int) -> Result:
        return method(*(x[::-1] if swapped else x), lane.mode.rounding(fmt))

    return f


def larger(lane: Lane, fmt: Format, a: int, b: int) -> int:
    """v_max: with MODE.ieee a signalling NaN comes back quiet; any other NaN loses against a number; -0 < +0."""
    if lane.mode.ieee:
        for x in (a, b):
            if fmt.is_signalling(x):
                return fmt.quieted(x)
    if fmt.is_nan(a):
        return b
    if fmt.is_nan(b):
        return a
    if fmt.is_zero(a) and fmt.is_zero(b):
        return b if fmt.minus(a) else a
    return a if fmt.number(a) >= fmt.number(b) else b


def smaller(lane: Lane, fmt: Format, a: int, b: int) -> int:
    if not fmt.is_nan(a) and not fmt.is_nan(b):
        return fmt.negated(larger(lane, fmt, fmt.negated(a), fmt.negated(b)))
    return larger(lane, fmt, a, b)  # of NaN both take the same


def _three(pick: Callable[..., int], fmt: Format) -> Callable[..., Result]:
    return lambda lane, a, b, c: pick(lane, fmt, pick(lane, fmt, a, b), c)


def _middle(fmt: Format) -> Callable[..., Result]:
    """With a NaN it is v_min3. Else the largest of all is left out, where -0 equals +0, and the larger of the rest is
    it: the ISA's own definition, which is no order of zeros."""

    def f(lane: Lane, a: int, b: int, c: int) -> Result:
        if any(fmt.is_nan(x) for x in (a, b, c)):
            return _three(smaller, fmt)(lane, a, b, c)
        most = fmt.number(_three(larger, fmt)(lane, a, b, c))
        if most == fmt.number(a):
            return larger(lane, fmt, b, c)
        return larger(lane, fmt, a, c) if most == fmt.number(b) else larger(lane, fmt, a, b)

    return f


def _fraction(fmt: Format) -> Callable[..., Result]:
    """x + -floor(x), rounded, and never 1."""

    def f(lane: Lane, x: int) -> Result:
        floor = fmt.integral_part(x, DOWN)
        r = NAN if floor is NAN else fmt.difference(x, floor, lane.mode.rounding(fmt))
        return r if r is NAN else min(r, fmt.one - 1) if not fmt.minus(r) else r

    return f


def _exponent(fmt: Format) -> Callable[..., Result]:
    """x = significand * 2**exponent with 0.5 <= |significand| < 1, as frexp() in C; 0 for zeros, infinities, NaN."""

    def f(x: int) -> Result:
        if fmt.is_zero(x) or fmt.is_nan(x) or fmt.is_infinite(x):
            return 0
        m, e = fmt.parts(x)
        return m.bit_length() + e

    return f


def _significand(fmt: Format) -> Callable[..., Result]:
    def f(x: int) -> Result:
        if fmt.is_nan(x):
            return NAN
        if fmt.is_zero(x) or fmt.is_infinite(x):
            return x
        m, _ = fmt.parts(x)
        return fmt.rounded(fmt.minus(x), m, -m.bit_length())

    return f


def _legacy(lane: Lane, a: int, b: int) -> Result:
    """0 times anything is +0."""
    return 0 if F32.is_zero(a) or F32.is_zero(b) else F32.product(a, b, lane.mode.rounding(F32))


def _add_arithmetic(kind: str) -> None:
    fmt = FORMATS[kind]
    two, three, one = f"{kind} {kind} -> {kind}", f"{kind} {kind} {kind} -> {kind}", f"{kind} -> {kind}"

    def add(name: str, signature: str, f: Callable[..., Result], **more: Any) -> None:
        TABLE[f"v_{name}_{kind}"] = Op(signature, f, takes_lane=True, **{"modes": ALL_MODES, **more})

    add("add", two, _arithmetic(fmt.sum, fmt))
    add("mul", two, _arithmetic(fmt.product, fmt))
    add("fma", three, _arithmetic(fmt.fma, fmt), half="lower" if fmt is F16 else "")
    if fmt is not F64:
        add("sub", two, _arithmetic(fmt.difference, fmt))
        add("subrev", two, _arithmetic(fmt.difference, fmt, swapped=True))
    if fmt is not F16:
        add("fmac", two, _arithmetic(fmt.fma, fmt), reads_result=True)
        add("fract", one, _fraction(fmt))
    picks = DENORMALS + NOT_IEEE
    add("max", two, lambda lane, a, b: larger(lane, fmt, a, b), modes=picks)
    add("min", two, lambda lane, a, b: smaller(lane, fmt, a, b), modes=picks)
    for name, mode in (("trunc", TOWARDS_ZERO), ("floor", DOWN), ("ceil", UP), ("rndne", NEAREST)):
        add(name, one, lambda lane, x, mode=mode: fmt.integral_part(x, mode))  # whatever MODE's rounding is
    by = "i16:exponent" if fmt is F16 else "i32:exponent"
    add("ldexp", f"{kind} {by} -> {kind}", lambda lane, x, n: fmt.scaled(x, n, lane.mode.rounding(fmt)))
    to = "i16" if fmt is F16 else "i32"
    TABLE[f"v_frexp_exp_{to}_{kind}"] = Op(f"{kind} -> {to}", _exponent(fmt))
    TABLE[f"v_frexp_mant_{kind}"] = Op(one, _significand(fmt))


for _kind in FORMATS:
    _add_arithmetic(_kind)
_F3 = "f32 f32 f32 -> f32"
TABLE["v_fmamk_f32"] = Op(_F3, _arithmetic(F32.fma, F32), takes_lane=True, literal=1)  # source 0 * constant + source 1
TABLE["v_fmaak_f32"] = Op(_F3, _arithmetic(F32.fma, F32), takes_lane=True, literal=2)  # source 0 * source 1 + constant
TABLE["v_mul_legacy_f32"] = Op("f32 f32 -> f32", _legacy, takes_lane=True, modes=ALL_MODES)
TABLE["v_max3_f32"] = Op(_F3, _three(larger, F32), takes_lane=True, modes=DENORMALS + NOT_IEEE)
TABLE["v_min3_f32"] = Op(_F3, _three(smaller, F32), takes_lane=True, modes=DENORMALS + NOT_IEEE)
TABLE["v_med3_f32"] = Op(_F3, _middle(F32), takes_lane=True, modes=DENORMALS + NOT_IEEE)


# ---- approximations. Where the argument is out of their domain the ISA's examples give the NaN with a sign.


def _approximation(
    fmt: Format, f: Callable[[float], float | None], flushes: bool, ulps: float
) -> Callable[..., Result]:
    invalid = NAN if fmt is F64 else fmt.sign | fmt.infinity | fmt.quiet_bit

    def g(x: int) -> Result:
        if fmt.is_nan(x):
            return NAN
        value = f(fmt.number(fmt.flushed(x) if flushes else x))
        if value is None:
            return invalid
        smallest = 2.0 ** (1 - fmt.bias)
        if flushes and 0 < abs(value) < smallest * (1 - 2.0**-20):
            value = math.copysign(0.0, value)
        return Near(value, ulps, or_zero=flushes and abs(value) < smallest)

    return g


def _exp(x: float) -> float:
    return 2.0**x if x < 1024 else math.inf


def _log(x: float) -> float | None:
    return -math.inf if x == 0 else None if x < 0 else math.log2(x)


def _reciprocal(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    return math.copysign(math.inf, x) if abs(x) < 2.0**-1024 else 1 / x


def _root(x: float) -> float | None:
    return None if x < 0 else math.sqrt(x)


def _reciprocal_root(x: float) -> float | None:
    return math.copysign(math.inf, x) if x == 0 else None if x < 0 else 1 / math.sqrt(x)


def _turned(f: Callable[[float], float]) -> Callable[[float], float | None]:
    """Of x turns: from the nearest quarter, so that quarters are exact. All finite numbers are taken."""

    def g(x: float) -> float | None:
        if math.isinf(x):
            return None
        fraction = math.fmod(x, 1.0)
        if x == 0:
            return 1.0 if f is math.cos else x
        quarters = round(fraction * 4)
        angle = 2 * math.pi * (fraction - quarters / 4)
        s, c = math.sin(angle), math.cos(angle)
        at = quarters % 4
        if f is math.sin:
            return 0.0 + (s, c, -s, -c)[at]  # +0 at the halves
        return 0.0 + (c, -s, -c, s)[at]

    return g


for _name, _f in (("exp", _exp), ("log", _log), ("rcp", _reciprocal), ("rsq", _reciprocal_root), ("sqrt", _root)):
    TABLE[f"v_{_name}_f32"] = Op("f32 -> f32", _approximation(F32, _f, True, 1))
    TABLE[f"v_{_name}_f16"] = Op("f16 -> f16", _approximation(F16, _f, False, 1))
    if _name not in ("exp", "log"):  # a start for Newton's steps
        TABLE[f"v_{_name}_f64"] = Op("f64 -> f64", _approximation(F64, _f, False, 2.0**29))
for _name, _g in (("sin", math.sin), ("cos", math.cos)):
    TABLE[f"v_{_name}_f32"] = Op("f32 -> f32", _approximation(F32, _turned(_g), False, 1))
    TABLE[f"v_{_name}_f16"] = Op("f16 -> f16", _approximation(F16, _turned(_g), False, 1))
TABLE["v_rcp_iflag_f32"] = TABLE["v_rcp_f32"]


# ---- division: v_div_scale of denominator and numerator, Newton's steps, v_div_fmas, v_div_fixup


def _quotient(fmt: Format, a: int, b: int) -> int:
    """a / b of finite numbers that are not zero."""
    (m, e), (n, f) = fmt.parts(a), fmt.parts(b)
    digits, remainder = divmod(m << 200, n)
    return fmt.rounded(fmt.minus(a) != fmt.minus(b), digits << 1 | (remainder != 0), e - f - 201)


def _finite(fmt: Format, x: int) -> bool:
    return not fmt.is_nan(x) and not fmt.is_infinite(x)


def _scale(fmt: Format) -> Callable[..., Result]:
    far, by, tiny = (96, 64, 23) if fmt is F32 else (768, 128, 53)

    def f(x: int, denominator: int, numerator: int) -> Result:
        if fmt.is_zero(denominator) or fmt.is_zero(numerator):
            return NAN, 0
        same_as = lambda y: not fmt.is_nan(x) and not fmt.is_nan(y) and fmt.number(x) == fmt.number(y)  # noqa: E731
        unscaled, up, down = SOME_NAN if fmt.is_nan(x) else x, fmt.scaled(x, by), fmt.scaled(x, -by)
        finite = _finite(fmt, denominator)
        inverse_small = finite and fmt.is_denormal(_quotient(fmt, fmt.one, denominator))
        quotient_small = finite and _finite(fmt, numerator) and fmt.is_denormal(_quotient(fmt, numerator, denominator))
        if fmt.exponent(numerator) - fmt.exponent(denominator) >= far:
            return (up if same_as(denominator) else unscaled), 1
        if fmt.is_denormal(denominator):
            return up, 0
        if inverse_small and quotient_small:
            # The ISA scales up here, which overflows: 1 divided by 2**127 would be NaN.
            return (down if same_as(denominator) else unscaled), 1
        if inverse_small:
            return down, 0
        if quotient_small:
            return (up if same_as(numerator) else unscaled), 1
        return (up if fmt.exponent(numerator) <= tiny else unscaled), 0

    return f


def _fmas(fmt: Format) -> Callable[..., Result]:
    """Undoes the scale, where VCC says that there is one: up where the quotient (source 2 is a first one) is large. The
    scale is the exponent's, so it comes before the rounding: quotients that are denormal round once."""
    by = 64 if fmt is F32 else 128

    def f(a: int, b: int, c: int, scaled: int) -> Result:
        if not scaled:
            return fmt.fma(a, b, c)
        shift = by if fmt.exponent(c) > fmt.bias else -by
        if not all(_finite(fmt, x) for x in (a, b, c)):
            return fmt.fma(a, b, c)
        (ma, ea), (mb, eb), (mc, ec) = fmt.parts(a), fmt.parts(b), fmt.parts(c)
        low = min(ea + eb, ec)
        total = (-1) ** (fmt.minus(a) != fmt.minus(b)) * (ma * mb << ea + eb - low)
        total += (-1) ** fmt.minus(c) * (mc << ec - low)
        return fmt.rounded(total < 0, abs(total), low + shift) if total else fmt.fma(a, b, c)

    return f


def _fixup(fmt: Format) -> Callable[..., Result]:
    least = -150 if fmt is F32 else -1075
    invalid = fmt.sign | fmt.infinity | fmt.quiet_bit

    def f(quotient: int, denominator: int, numerator: int) -> Result:
        sign = fmt.sign * (fmt.minus(denominator) != fmt.minus(numerator))
        for x in (numerator, denominator):
            if fmt.is_nan(x):
                return fmt.quieted(x)
        zeros = fmt.is_zero(denominator), fmt.is_zero(numerator)
        infinities = fmt.is_infinite(denominator), fmt.is_infinite(numerator)
        if all(zeros) or all(infinities):
            return invalid
        if zeros[0] or infinities[1]:
            return sign | fmt.infinity
        if zeros[1] or infinities[0] or fmt.exponent(numerator) - fmt.exponent(denominator) < least:
            return sign
        # Newton's steps make an infinity or NaN of what overflows. The ISA asks for the denominator's exponent, which
        # cannot be that large here; with it 2**64 divided by a denormal would be NaN.
        return sign | (fmt.magnitude(quotient) if _finite(fmt, quotient) else fmt.infinity)

    return f


def _operands(kind: str, third: bool) -> Callable[[random.Random], tuple[int, ...]]:
    """Of a division: any, and those whose exponents lie where the rules above change. What is scaled is one of them."""
    fmt = FORMATS[kind]
    most = 2 * fmt.bias
    apart = (96, -150) if fmt is F32 else (768, -1075)
    small = 23 if fmt is F32 else 53

    def f(r: random.Random) -> tuple[int, ...]:
        a, b = (random_value(r, kind) for _ in range(2))
        if r.random() < 0.7:
            first = r.choice(
                (r.randrange(most + 1), r.randint(0, 2), r.randint(most - 2, most), r.randrange(small + 3))
            )
            second = first + r.choice((*apart, -fmt.bias, 0)) + r.randint(-2, 2)
            second = max(0, min(most, r.choice((second, small + r.randint(-1, 1)))))
            a, b = (r.getrandbits(fmt.bits) & ~fmt.infinity | e << fmt.fraction for e in (first, second))
        return (r.choice((a, b)) if third else random_value(r, kind), a, b)

    return f


for _kind in ("f32", "f64"):
    _fmt, _F = FORMATS[_kind], _kind
    TABLE[f"v_div_scale_{_F}"] = Op(
        f"{_F} {_F} {_F} -> {_F} mask", _scale(_fmt), flushes=False, inputs=_operands(_F, True)
    )
    TABLE[f"v_div_fmas_{_F}"] = Op(f"{_F} {_F} {_F} vcc -> {_F}", _fmas(_fmt), flushes=False)
    TABLE[f"v_div_fixup_{_F}"] = Op(f"{_F} {_F} {_F} -> {_F}", _fixup(_fmt), flushes=False, inputs=_operands(_F, False))
