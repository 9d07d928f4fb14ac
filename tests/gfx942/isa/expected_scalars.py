# SPDX-License-Identifier: Apache-2.0
"""Scalar instructions: a result, SCC, and EXEC."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from expected import typed

_EXEC = (1 << 64) - 1


@dataclass(frozen=True)
class State:
    scc: int
    old: int  # what the destination held
    exec: int


@dataclass(frozen=True)
class After:
    """None: as it was."""

    result: int | None = None
    scc: int | None = None
    exec: int | None = None


@dataclass(frozen=True)
class ScalarOp:
    """`k16` is a constant of 16 bits in the instruction."""

    signature: str
    f: Callable[..., After]  # of State and the sources
    sources: tuple[str, ...] = field(init=False)
    hints: tuple[str, ...] = field(init=False)
    result: str = field(init=False)

    def __post_init__(self) -> None:
        sources, _, result = self.signature.partition("->")
        split = [(s.split(":") + [""])[:2] for s in sources.split()]
        object.__setattr__(self, "sources", tuple(t for t, _ in split))
        object.__setattr__(self, "hints", tuple(h for _, h in split))
        object.__setattr__(self, "result", result.strip())


TABLE: dict[str, ScalarOp] = {}


def _op(name: str, signature: str, f: Callable[..., After]) -> None:
    TABLE[f"s_{name}"] = ScalarOp(signature, f)


def _add_unchanged(name: str, signature: str, f: Callable[..., int]) -> None:
    """SCC stays."""
    _op(name, signature, lambda s, *x: After(f(*x)))


def _nonzero(name: str, signature: str, f: Callable[..., int]) -> None:
    """SCC: whether the result is not zero."""
    bits = int(signature.split("->")[1].strip()[1:])

    def g(s: State, *x: int) -> After:
        r = f(*x) & (1 << bits) - 1
        return After(r, int(r != 0))

    _op(name, signature, g)


# ---- sums: SCC is the carry, the borrow, or a signed overflow
def _carry(r: int) -> After:
    return After(r, int(not 0 <= r < 1 << 32))


def _overflow(r: int) -> After:
    return After(r, int(not -(1 << 31) <= r < 1 << 31))


_U, _I, _B, _D = "u32 u32 -> u32", "i32 i32 -> i32", "b32 b32 -> b32", "b64 b64 -> b64"
_op("add_u32", _U, lambda s, a, b: _carry(a + b))
_op("addc_u32", _U, lambda s, a, b: _carry(a + b + s.scc))
_op("sub_u32", _U, lambda s, a, b: _carry(a - b))
_op("subb_u32", _U, lambda s, a, b: _carry(a - b - s.scc))
_op("add_i32", _I, lambda s, a, b: _overflow(a + b))
_op("sub_i32", _I, lambda s, a, b: _overflow(a - b))
_op("addk_i32", "k16 -> i32", lambda s, k: _overflow(typed(s.old, "i32") + typed(k, "i16")))
_add_unchanged("mul_i32", _I, lambda a, b: a * b)
_add_unchanged("mul_hi_u32", _U, lambda a, b: a * b >> 32)
_add_unchanged("mul_hi_i32", _I, lambda a, b: a * b >> 32)
_op("mulk_i32", "k16 -> i32", lambda s, k: After(typed(s.old, "i32") * typed(k, "i16")))
for _n in (1, 2, 3, 4):
    _op(f"lshl{_n}_add_u32", _U, lambda s, a, b, n=_n: _carry((a << n) + b))
# SCC: the first source was chosen. Of two equal ones it is for the maximum, not for the minimum.
for _t, _s in (("u32", _U), ("i32", _I)):
    _op(f"min_{_t}", _s, lambda s, a, b: After(min(a, b), int(a < b)))
    _op(f"max_{_t}", _s, lambda s, a, b: After(max(a, b), int(a >= b)))
_nonzero("abs_i32", "i32 -> i32", abs)


def _absolute_difference(a: int, b: int) -> int:
    """Of the difference's low 32 bits, not of the difference."""
    return abs(typed(a - b, "i32"))


_nonzero("absdiff_i32", _I, _absolute_difference)

# ---- logic
_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _name, _f in _LOGIC.items():
    _nonzero(f"{_name}_b32", _B, _f)
    _nonzero(f"{_name}_b64", _D, _f)
_nonzero("not_b32", "b32 -> b32", operator.invert)
_nonzero("not_b64", "b64 -> b64", operator.invert)


def _save(f: Callable[[int, int], int]) -> Callable[[State, int], After]:
    """The result is EXEC as it was; EXEC becomes f(source, EXEC), and SCC whether that is not zero."""

    def g(s: State, x: int) -> After:
        now = f(x, s.exec) & _EXEC
        return After(s.exec, int(now != 0), now)

    return g


for _name in ("and", "or", "xor", "andn2", "orn2"):
    _op(f"{_name}_saveexec_b64", "b64 -> b64", _save(_LOGIC[_name]))
_op("andn1_saveexec_b64", "b64 -> b64", _save(lambda x, e: ~x & e))
_op("orn1_saveexec_b64", "b64 -> b64", _save(lambda x, e: ~x | e))

# ---- shifts, by the low 5 or 6 bits; fields, whose offset and width are in the second source's bits 0 and 16
_nonzero("lshl_b32", "u32 u32 -> u32", lambda a, n: a << (n & 31))
_nonzero("lshr_b32", "u32 u32 -> u32", lambda a, n: a >> (n & 31))
_nonzero("ashr_i32", "i32 u32 -> i32", lambda a, n: a >> (n & 31))
_nonzero("lshl_b64", "u64 u32 -> u64", lambda a, n: a << (n & 63))
_nonzero("lshr_b64", "u64 u32 -> u64", lambda a, n: a >> (n & 63))
_nonzero("ashr_i64", "i64 u32 -> i64", lambda a, n: a >> (n & 63))
_add_unchanged("bfm_b32", _B, lambda bits, at: ((1 << (bits & 31)) - 1) << (at & 31))
_add_unchanged("bfm_b64", "b32 b32 -> b64", lambda bits, at: ((1 << (bits & 63)) - 1) << (at & 63))


def _field(bits: int) -> Callable[[int, int], int]:
    """The width has 7 bits. Beyond the source lie zeros, or its sign."""
    return lambda x, n: x >> (n & bits - 1) & (1 << (n >> 16 & 127)) - 1


def _signed_field(bits: int) -> Callable[[int, int], int]:
    """Repeats the field's highest bit; a field of no bits is 0."""

    def f(x: int, n: int) -> int:
        size = n >> 16 & 127
        field = _field(bits)(x, n)
        return field - (1 << size) if size and field >> size - 1 else field

    return f


for _bits in (32, 64):
    _nonzero(f"bfe_u{_bits}", f"u{_bits} b32:field -> u{_bits}", _field(_bits))
    _nonzero(f"bfe_i{_bits}", f"i{_bits} b32:field -> i{_bits}", _signed_field(_bits))

# ---- bits
_add_unchanged("brev_b32", "b32 -> b32", lambda x: int(f"{x:032b}"[::-1], 2))
_nonzero("bcnt1_i32_b32", "b32 -> i32", int.bit_count)
_nonzero("bcnt1_i32_b64", "b64 -> i32", int.bit_count)
_add_unchanged("ff1_i32_b32", "b32 -> i32", lambda x: (x & -x).bit_length() - 1 if x else -1)
_add_unchanged("ff1_i32_b64", "b64 -> i32", lambda x: (x & -x).bit_length() - 1 if x else -1)
_add_unchanged("flbit_i32_b32", "b32 -> i32", lambda x: 32 - x.bit_length() if x else -1)
_op("bitset0_b32", "u32 -> b32", lambda s, n: After(s.old & ~(1 << (n & 31)) & 0xFFFFFFFF))
_op("bitset1_b32", "u32 -> b32", lambda s, n: After((s.old | 1 << (n & 31)) & 0xFFFFFFFF))
_op("bitcmp0_b32", "u32 u32 ->", lambda s, a, n: After(None, a >> (n & 31) & 1 ^ 1))
_op("bitcmp1_b32", "u32 u32 ->", lambda s, a, n: After(None, a >> (n & 31) & 1))
_add_unchanged("sext_i32_i8", "b32 -> i32", lambda x: typed(x, "i8"))
_add_unchanged("sext_i32_i16", "b32 -> i32", lambda x: typed(x, "i16"))
_add_unchanged("pack_ll_b32_b16", _B, lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16)
_add_unchanged("pack_lh_b32_b16", _B, lambda a, b: a & 0xFFFF | b & 0xFFFF0000)
_add_unchanged("pack_hh_b32_b16", _B, lambda a, b: a >> 16 | b & 0xFFFF0000)

# ---- moves and choices
_add_unchanged("mov_b32", "b32 -> b32", lambda x: x)
_add_unchanged("mov_b64", "b64 -> b64", lambda x: x)
_add_unchanged("movk_i32", "k16 -> i32", lambda k: typed(k, "i16"))
for _t in ("b32", "b64"):
    _op(f"cmov_{_t}", f"{_t} -> {_t}", lambda s, x: After(x if s.scc else None))
    _op(f"cselect_{_t}", f"{_t} {_t} -> {_t}", lambda s, a, b: After(a if s.scc else b))

# ---- comparisons
_RELATIONS = {
    "eq": operator.eq,
    "lg": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
for _name, _f in _RELATIONS.items():
    for _t in ("i32", "u32"):
        _op(f"cmp_{_name}_{_t}", f"{_t} {_t} ->", lambda s, a, b, f=_f: After(None, int(f(a, b))))
        _k = "i16" if _t == "i32" else "u16"  # extended as the type says
        _op(f"cmpk_{_name}_{_t}", f"{_t} k16 ->", lambda s, a, k, f=_f, t=_k: After(None, int(f(a, typed(k, t)))))
for _name in ("eq", "lg"):
    _op(f"cmp_{_name}_u64", "u64 u64 ->", lambda s, a, b, f=_RELATIONS[_name]: After(None, int(f(a, b))))
