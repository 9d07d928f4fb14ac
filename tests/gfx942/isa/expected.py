# SPDX-License-Identifier: Apache-2.0
"""What an instruction does in one lane, said independently of the interpreter: from AMD's "CDNA3 Instruction Set
Architecture" and, where that leaves a detail open, from what LLVM's constant folding takes for granted.

The tables are in expected_*.py, an Op for each mnemonic. Values are the bits of registers as Python integers, signed
where the type is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exact_floats import F16, F32, F64, FORMATS, Format

# MODE: rounding of f32, of f16 and f64, denormals of f32, of f16 and f64, DX10_CLAMP, IEEE.
IEEE, DX10_CLAMP = 1 << 9, 1 << 8
USUAL = IEEE | DX10_CLAMP | 0xF0  # denormals kept, to nearest


@dataclass(frozen=True)
class Mode:
    bits: int = USUAL

    def rounding(self, fmt: Format) -> int:
        return self.bits >> (0 if fmt is F32 else 2) & 3

    def flushes_inputs(self, fmt: Format) -> bool:
        return not self.bits >> (4 if fmt is F32 else 6) & 1

    def flushes_outputs(self, fmt: Format) -> bool:
        return not self.bits >> (5 if fmt is F32 else 7) & 1

    @property
    def ieee(self) -> bool:
        return bool(self.bits & IEEE)

    @property
    def dx10_clamp(self) -> bool:
        return bool(self.bits & DX10_CLAMP)


@dataclass(frozen=True)
class Lane:
    """Where a value is computed: what a function may need beside its sources."""

    index: int
    mode: Mode


@dataclass(frozen=True)
class Near:
    """An approximation: right when it is this far from `value` at most, in units of the last place."""

    value: float
    ulps: float = 1.0
    or_zero: bool = False  # where it may be flushed


Result = Any  # int, None (exact_floats.NAN), Near, or a tuple of these


@dataclass(frozen=True)
class Op:
    """`signature` has the types of sources and results, in the order of the text: "f32 f32 -> f32". `mask` is one bit
    of a lane mask, `vcc` the bit of VCC that is not in the text, `x2` two elements that f computes one by one, `mix` a
    float or a half as op_sel_hi says. A hint may follow a type: what its inputs should be."""

    signature: str
    f: Callable[..., Result]
    takes_lane: bool = False  # f's first argument is the Lane
    reads_result: bool = False  # f's last argument is the old destination
    half: str = ""  # "lower" or "upper": 16 bits that leave the other half of the register as it was
    sets_exec: bool = False
    flushes: bool = True  # MODE's denormal bits hold for sources and result
    modes: tuple[int, ...] = ()  # beside the usual one
    inputs: Callable[[random.Random], tuple[int, ...]] | None = None  # sources beyond edge values and random bits
    literal: int | None = None  # the source that is always one: v_fmaak, v_fmamk
    saturates: bool = False  # with clamp, the integer result becomes the nearest that its type has
    hints: tuple[str, ...] = field(init=False)
    sources: tuple[str, ...] = field(init=False)
    results: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        sources, results = self.signature.split("->")
        split = [(s.split(":") + [""])[:2] for s in sources.split()]
        object.__setattr__(self, "sources", tuple(t for t, _ in split))
        object.__setattr__(self, "hints", tuple(h for _, h in split))
        object.__setattr__(self, "results", tuple(results.split()))

    @property
    def is_float(self) -> bool:
        return any(element(t) in FORMATS for t in self.sources + self.results)


Table = dict[str, Op]


def element(kind: str) -> str:
    return "f32" if kind == "mix" else kind.removesuffix("x2")


def width(kind: str) -> int:
    """In bits, of the register too where that is more than 16."""
    if kind in ("mask", "vcc"):
        return 1
    return int(element(kind)[1:]) * (2 if kind.endswith("x2") else 1)


def typed(bits: int, kind: str) -> int:
    """Bits of a register as a value of the type."""
    n = width(kind)
    bits &= (1 << n) - 1
    return bits - (1 << n) if kind[0] == "i" and bits >> n - 1 else bits


# ---- MODEs that floats are tried in, beside the usual one
ROUNDINGS = tuple(USUAL | r | r << 2 for r in (1, 2, 3)) + (USUAL | 1 | 2 << 2,)
DENORMALS = tuple(IEEE | DX10_CLAMP | d << 4 | d << 6 for d in (0, 1, 2)) + (IEEE | DX10_CLAMP | 3 << 6,)
NOT_IEEE = (USUAL & ~IEEE,)
NO_DX10_CLAMP = (USUAL & ~DX10_CLAMP,)

# ---- edge values
_F32 = (
    "00000000 80000000 3f800000 bf800000 3f000000 bf000000 3fc00000 40200000 c0200000 40490fdb 00000001 80000001 "
    "007fffff 80400000 00800000 80800000 7f7fffff ff7fffff 7f800000 ff800000 7fc00001 ffc12345 7f800001 ffa00000 "
    "4b000001 4b800000 4f000000 cf000000 4effffff 4f800000 477fe000 477ff000 33000000 387fc000 3effffff 3f7fffff "
    "7e800000 00ffffff 43800000"
)
_F64 = (
    "0000000000000000 8000000000000000 3ff0000000000000 bff0000000000000 3fe0000000000000 bfe0000000000000 "
    "3ff8000000000000 4004000000000000 c004000000000000 400921fb54442d18 0000000000000001 8000000000000001 "
    "000fffffffffffff 8008000000000000 0010000000000000 8010000000000000 7fefffffffffffff ffefffffffffffff "
    "7ff0000000000000 fff0000000000000 7ff8000000000001 fff8123456789abc 7ff0000000000001 fff4000000000000 "
    "4330000000000001 41dfffffffc00000 41e0000000000000 c1e0000000000000 41dfffffffe00000 41efffffffe00000 "
    "41f0000000000000 47efffffe0000000 47efffffefffffff 47effffff0000000 36a0000000000000 369fffffffffffff "
    "380fffffc0000000 3810000000000000 3fdfffffffffffff 3fefffffffffffff 7fd0000000000000"
)
_F16 = (
    "0000 8000 3c00 bc00 3800 b800 3e00 4100 c100 4248 0001 8001 03ff 8200 0400 8400 7bff fbff 7c00 fc00 7e01 "
    "ff23 7c01 fd00 6401 6800 7800 f800 77ff 37ff 3bff 0801"
)
_B32 = (
    "0 1 2 3 7 8 15 16 17 31 32 33 63 64 65 255 256 0x7fff 0x8000 0xffff 0x10000 0x7fffff 0x800000 0xffffff "
    "0x1000000 0x7fffffff 0x80000000 0x80000001 0xfffffffe 0xffffffff 0xffff8000 0xff800000 0xaaaaaaaa 0x12345678 "
    "0x00ff00ff"
)
_B64 = (
    "0 1 2 31 32 33 63 64 0x7fffffff 0x80000000 0xffffffff 0x100000000 0x7fffffffffffffff 0x8000000000000000 "
    "0xffffffffffffffff 0xfffffffffffffffe 0x8000000000000001 0x123456789abcdef0 0xffffffff00000000 "
    "0x80000000ffffffff"
)
_B16 = "0 1 2 3 7 8 15 16 17 31 0xff 0x100 0x7f 0x80 0x7ffe 0x7fff 0x8000 0x8001 0xfffe 0xffff 0x1234 0xaaaa 0xff00"


def _of(text: str, base: int) -> tuple[int, ...]:
    return tuple(int(x, base) for x in text.split())


_EDGES = {"f16": _of(_F16, 16), "f32": _of(_F32, 16), "f64": _of(_F64, 16)}
_INTEGER_EDGES = {16: _of(_B16, 0), 32: _of(_B32, 0), 64: _of(_B64, 0)}
_HINTS: dict[str, Callable[[random.Random], int]] = {
    "exponent": lambda r: r.choice((r.randint(-30, 30), r.randint(-300, 300), r.randint(-2200, 2200))),
    "class": lambda r: r.choice((1 << r.randrange(10), r.getrandbits(10), r.getrandbits(32))),
    "selector": lambda r: sum(
        r.choice((r.randrange(16), r.randrange(13), r.randrange(256))) << k for k in (0, 8, 16, 24)
    ),
    "field": lambda r: (
        r.choice((31, 63, r.randrange(64), r.getrandbits(16)))
        | r.choice((0, 1, r.randrange(33), r.randrange(65))) << 16
    ),
    "shift": lambda r: r.choice((r.randrange(8), r.getrandbits(32))),
    "whole": lambda r: F32.of_number(float(r.choice((r.randint(-3, 260), r.randint(-70000, 70000), 255, 256)))),
    "below_half": lambda r: F32.of_number(
        r.choice((r.uniform(-9, 9), float(r.randint(-99, 99)), r.uniform(-3e9, 3e9)))
    ),
}


def edges(kind: str, hint: str = "") -> tuple[int, ...]:
    if hint == "whole":
        return tuple(x for x in _EDGES["f32"] if not F32.is_nan(x) and F32.integral_part(x, 0) == x) + (0x7FC00000,)
    kind = element(kind)
    return _EDGES[kind] if kind in _EDGES else _INTEGER_EDGES[width(kind)]


def random_value(r: random.Random, kind: str, hint: str = "") -> int:
    """An edge value, or random bits; floats are mostly of a middling size."""
    if kind.endswith("x2"):
        half = element(kind)
        return random_value(r, half) | random_value(r, half) << width(half)
    if kind == "mix":
        return random_value(r, r.choice(("f32", "f16x2")))
    n = width(kind)
    if hint:
        return _HINTS[hint](r) & (1 << n) - 1
    how = r.random()
    if how < 0.2:
        return r.choice(edges(kind))
    if kind in FORMATS and how < 0.75:
        fmt = FORMATS[kind]
        return r.getrandbits(1) << n - 1 | fmt.of_number(abs(r.gauss(0, 1)) * 2.0 ** r.randint(-6, 6))
    if kind not in FORMATS and how < 0.4:
        return r.getrandbits(r.randint(1, n))
    return r.getrandbits(n)


__all__ = [
    "F16",
    "F32",
    "F64",
    "FORMATS",
    "Lane",
    "Mode",
    "Near",
    "Op",
    "Table",
    "edges",
    "random_value",
    "typed",
    "width",
]
