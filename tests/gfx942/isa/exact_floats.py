# SPDX-License-Identifier: Apache-2.0
"""Floats of 16, 32 and 64 bits, whose bits are Python integers: arithmetic that is exact and then rounds once."""

from __future__ import annotations

import struct
from dataclasses import dataclass

NEAREST, UP, DOWN, TOWARDS_ZERO = range(4)  # as the MODE register has them
NAN = None  # for a result: any quiet NaN. Which one is not documented where arithmetic makes it or passes it on.
SOME_NAN, SOME_ZERO = "NaN", "0"  # a NaN that may be signalling; a zero of either sign


@dataclass(frozen=True)
class Format:
    bits: int
    fraction: int
    code: str  # of struct
    integer_code: str

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "sign", 1 << self.bits - 1)
        put(self, "infinity", ((1 << self.bits - 1 - self.fraction) - 1) << self.fraction)
        put(self, "quiet_bit", 1 << self.fraction - 1)
        put(self, "bias", (1 << self.bits - 2 - self.fraction) - 1)
        put(self, "least", 1 - self.bias - self.fraction)  # the smallest denormal is 2 to this
        put(self, "one", self.bias << self.fraction)

    sign: int = 0
    infinity: int = 0
    quiet_bit: int = 0
    bias: int = 0
    least: int = 0
    one: int = 0

    # ---- what bits are
    def magnitude(self, x: int) -> int:
        return x & (self.sign - 1)

    def minus(self, x: int) -> bool:
        return x >= self.sign

    def is_nan(self, x: int) -> bool:
        return self.magnitude(x) > self.infinity

    def is_signalling(self, x: int) -> bool:
        return self.is_nan(x) and not x & self.quiet_bit

    def is_infinite(self, x: int) -> bool:
        return self.magnitude(x) == self.infinity

    def is_zero(self, x: int) -> bool:
        return self.magnitude(x) == 0

    def is_denormal(self, x: int) -> bool:
        return 0 < self.magnitude(x) < 1 << self.fraction

    def quieted(self, x: int) -> int:
        return x | self.quiet_bit

    def negated(self, x: int) -> int:
        return x ^ self.sign

    def flushed(self, x: int) -> int:
        return x & self.sign if self.is_denormal(x) else x

    def exponent(self, x: int) -> int:
        """As it is encoded."""
        return self.magnitude(x) >> self.fraction

    def parts(self, x: int) -> tuple[int, int]:
        """The magnitude of a finite number is m * 2**e."""
        encoded, fraction = self.exponent(x), x & (1 << self.fraction) - 1
        return (fraction, self.least) if encoded == 0 else (fraction | 1 << self.fraction, encoded - 1 + self.least)

    def number(self, x: int) -> float:
        return struct.unpack(self.code, struct.pack(self.integer_code, x))[0]

    def of_number(self, x: float) -> int:
        """To nearest."""
        if x != x:
            return self.infinity | self.quiet_bit
        minus = struct.pack(">d", x)[0] >= 128
        if x in (float("inf"), -float("inf")):
            return self.infinity | self.sign * minus
        top, bottom = abs(x).as_integer_ratio()
        return self.rounded(minus, top, 1 - bottom.bit_length())

    # ---- rounding
    def rounded(self, minus: bool, m: int, e: int, mode: int = NEAREST) -> int:
        """The float for (-1)**minus * m * 2**e."""
        sign = self.sign if minus else 0
        if m == 0:
            return sign
        last_exponent = max(m.bit_length() - self.fraction - 1 + e, self.least)  # of the last bit that is kept
        shift = last_exponent - e
        if shift <= 0:
            digits, remainder, half = m << -shift, 0, 1
        else:
            digits, remainder, half = m >> shift, m & (1 << shift) - 1, 1 << shift - 1
        if mode == NEAREST:
            digits += remainder > half or (remainder == half and digits & 1)
        elif remainder and mode == (DOWN if minus else UP):
            digits += 1
        bits = digits + (last_exponent - self.least << self.fraction)  # a carry goes into the exponent by itself
        if bits < self.infinity:
            return sign | bits
        to_infinity = mode in (NEAREST, DOWN if minus else UP)
        return sign | (self.infinity if to_infinity else self.infinity - 1)

    def of_integer(self, x: int, mode: int = NEAREST) -> int:
        return self.rounded(x < 0, abs(x), 0, mode)

    def of_format(self, other: Format, x: int, mode: int = NEAREST) -> int | None:
        if other.is_nan(x):
            return NAN
        if other.is_infinite(x):
            return self.infinity | self.sign * other.minus(x)
        return self.rounded(other.minus(x), *other.parts(x), mode)

    # ---- arithmetic
    def product(self, a: int, b: int, mode: int = NEAREST) -> int | None:
        if self.is_nan(a) or self.is_nan(b):
            return NAN
        minus = self.minus(a) != self.minus(b)
        if self.is_infinite(a) or self.is_infinite(b):
            return NAN if self.is_zero(a) or self.is_zero(b) else self.infinity | self.sign * minus
        (m, e), (n, f) = self.parts(a), self.parts(b)
        return self.rounded(minus, m * n, e + f, mode)

    def sum(self, a: int, b: int, mode: int = NEAREST) -> int | None:
        return self.fma(a, self.one, b, mode)

    def difference(self, a: int, b: int, mode: int = NEAREST) -> int | None:
        return self.fma(a, self.one, b ^ self.sign, mode)

    def fma(self, a: int, b: int, c: int, mode: int = NEAREST) -> int | None:
        if self.is_nan(a) or self.is_nan(b) or self.is_nan(c):
            return NAN
        minus = self.minus(a) != self.minus(b)
        if self.is_infinite(a) or self.is_infinite(b):
            if self.is_zero(a) or self.is_zero(b) or (self.is_infinite(c) and self.minus(c) != minus):
                return NAN
            return self.infinity | self.sign * minus
        if self.is_infinite(c):
            return c
        (ma, ea), (mb, eb), (mc, ec) = self.parts(a), self.parts(b), self.parts(c)
        m, e = ma * mb, ea + eb
        if m == 0 and mc == 0:  # zeros of one sign keep it
            both = minus if minus == self.minus(c) else mode == DOWN
            return self.sign * both
        low = min(e, ec)
        total = (-m if minus else m) << e - low
        total += (-mc if self.minus(c) else mc) << ec - low
        if total == 0:
            return self.sign if mode == DOWN else 0
        return self.rounded(total < 0, abs(total), low, mode)

    def scaled(self, x: int, by: int, mode: int = NEAREST) -> int | None:
        """x * 2**by."""
        if self.is_nan(x):
            return NAN
        if self.is_infinite(x):
            return x
        m, e = self.parts(x)
        return self.rounded(self.minus(x), m, e + max(min(by, 5000), -5000), mode)

    # ---- whole numbers: the sign stays, of zero too
    def integral_part(self, x: int, mode: int) -> int | None:
        if self.is_nan(x):
            return NAN
        m, e = self.parts(x)
        if self.is_infinite(x) or e >= 0:
            return x
        digits, remainder, half = m >> -e, m & (1 << -e) - 1, 1 << -e - 1
        if mode == NEAREST:
            digits += remainder > half or (remainder == half and digits & 1)
        elif remainder and mode == (DOWN if self.minus(x) else UP):
            digits += 1
        return self.rounded(self.minus(x), digits, 0)

    def to_integer(self, x: int, bits: int, signed: bool, mode: int = TOWARDS_ZERO) -> int:
        """The nearest that fits; NaN is 0."""
        if self.is_nan(x):
            return 0
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if self.is_infinite(x):
            return low if self.minus(x) else high
        integral_part = self.integral_part(x, mode)
        assert integral_part is not None
        m, e = self.parts(integral_part)
        value = m << e if e >= 0 else m >> -e
        return max(low, min(high, -value if self.minus(x) else value))


F16 = Format(16, 10, "<e", "<H")
F32 = Format(32, 23, "<f", "<I")
F64 = Format(64, 52, "<d", "<Q")
FORMATS = {"f16": F16, "f32": F32, "f64": F64}
