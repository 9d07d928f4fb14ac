# SPDX-License-Identifier: Apache-2.0
"""Random programs, compiled from one C++ source for gfx942 and for this machine, must give the same bits.

A program is a function of a few words: integers of 8 to 64 bits, floats of 16 to 64, arithmetic, shifts, selections,
conversions, division, arrays, branches and loops that differ from lane to lane. Nothing in it is undefined, contracted
or approximate; NaN is written out as one, since their bits are anyone's.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support
python tests/gfx942/isa/random_expressions.py FIRST_SEED COUNT    more of them
"""

from __future__ import annotations

import ctypes
import random
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType

import numpy as np

import builds

INTEGERS = {f"{s}{n}": n for n in (8, 16, 32, 64) for s in "iu"}
FLOATS = {"f16": 16, "f32": 32, "f64": 64}
WORDS, PROGRAMS, LANES = 8, 12, 192

_PRELUDE = """\
#ifdef __HIP__
#define DEVICE __attribute__((device)) static inline
#else
#define DEVICE static inline
#endif
namespace ours {  // HIP's headers, which the compiler adds, have functions of some of these names
using i8 = signed char; using u8 = unsigned char; using i16 = short; using u16 = unsigned short;
using i32 = int; using u32 = unsigned; using i64 = long; using u64 = unsigned long;
using f16 = _Float16; using f32 = float; using f64 = double;

// A value that the compiler knows nothing of: LLVM 19 divides unsigned numbers as short ones where they were extended
// from signed ones.
template <class T> DEVICE T unknown(T x) {
  u64 y = u64(x);
#ifdef __HIP_DEVICE_COMPILE__
  asm("" : "+v"(y));
#else
  asm("" : "+r"(y));
#endif
  return T(y);
}
// Where C++ leaves a result open, one of them.
template <class T> DEVICE T quotient(T x, T y) {
  const T a = unknown(x), b = unknown(y);
  if (b == 0) return a;
  return T(-1) < T(0) && b == T(-1) ? T(0) - a : a / b;
}
template <class T> DEVICE T remainder(T x, T y) {
  const T a = unknown(x), b = unknown(y);
  if (b == 0) return a;
  return T(-1) < T(0) && b == T(-1) ? T(0) : a % b;
}
template <class T, class F> DEVICE T whole(F x, F low, F high) { return x > low && x < high ? T(x) : T(0); }
// A denominator whose fraction is all ones is one that LLVM's steps of fma do not divide by correctly.
DEVICE f32 ratio(f32 a, f32 b) { return a / b; }
DEVICE f64 ratio(f64 a, f64 b) {
  u64 x = __builtin_bit_cast(u64, b), ones = 0xfffffffffffff;
  return a / ((x & ones) == ones ? __builtin_bit_cast(f64, x - 1) : b);
}
DEVICE u32 leading(u32 x) { return x ? __builtin_clz(x) : 32; }
DEVICE u32 leading(u64 x) { return x ? __builtin_clzl(x) : 64; }
DEVICE u32 trailing(u32 x) { return x ? __builtin_ctz(x) : 32; }
DEVICE u32 trailing(u64 x) { return x ? __builtin_ctzl(x) : 64; }
DEVICE u32 high(u32 a, u32 b) { return u64(a) * b >> 32; }
DEVICE i32 high(i32 a, i32 b) { return i64(a) * b >> 32; }
DEVICE u64 high(u64 a, u64 b) { return (unsigned __int128)(a) * b >> 64; }
DEVICE i64 high(i64 a, i64 b) { return (__int128)(a) * b >> 64; }
// Of a zero the sign is lost, since min and max choose either.
DEVICE f32 least(f32 a, f32 b) { f32 r = __builtin_fminf(a, b); return r == 0 ? 0 : r; }
DEVICE f64 least(f64 a, f64 b) { f64 r = __builtin_fmin(a, b); return r == 0 ? 0 : r; }
DEVICE f32 most(f32 a, f32 b) { f32 r = __builtin_fmaxf(a, b); return r == 0 ? 0 : r; }
DEVICE f64 most(f64 a, f64 b) { f64 r = __builtin_fmax(a, b); return r == 0 ? 0 : r; }
DEVICE f16 of_bits16(u64 x) { f16 r = __builtin_bit_cast(f16, u16(x)); return r != r ? f16(__builtin_nanf("")) : r; }
DEVICE f32 of_bits32(u64 x) { f32 r = __builtin_bit_cast(f32, u32(x)); return r != r ? __builtin_nanf("") : r; }
DEVICE f64 of_bits64(u64 x) { f64 r = __builtin_bit_cast(f64, x); return r != r ? __builtin_nan("") : r; }
DEVICE u64 bits(f16 x) { return x != x ? 0x7e00 : __builtin_bit_cast(u16, x); }
DEVICE u64 bits(f32 x) { return x != x ? 0x7fc00000 : __builtin_bit_cast(u32, x); }
DEVICE u64 bits(f64 x) { return x != x ? 0x7ff8000000000000 : __builtin_bit_cast(u64, x); }
template <class T> DEVICE u64 bits(T x) { return u64(x); }
// LLVM makes of a rounded product a v_fma_mixlo_f16 that adds +0.
DEVICE f16 half(f64 x) { f16 r = f16(x); return r == 0 ? 0 : r; }
DEVICE f16 half(f32 x) { f16 r = f16(x); return r == 0 ? 0 : r; }
DEVICE f16 half(f16 x) { return x; }
"""
_ENTRY = """\
#ifdef __HIP__
extern "C" __attribute__((global)) void {name}(const u64* in, u64* out) {{
  u32 lane = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  {name}_of(in + {words} * lane, out + {results} * lane);
}}
#else
extern "C" void {name}(const u64* in, u64* out, int lanes) {{
  for (int lane = 0; lane < lanes; ++lane) {name}_of(in + {words} * lane, out + {results} * lane);
}}
#endif
"""
_LIMITS = {8: 120, 16: 30000, 32: 2000000000, 64: 9000000000000000000}


class _Program:
    """Variables are named by their type and a number; all are in scope to the end."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.variables: list[tuple[str, str]] = []  # name, type
        self.lines: list[str] = []

    # ---- expressions of a type
    def of(self, kind: str, depth: int) -> str:
        if depth == 0 or self.r.random() < 0.1:
            return self.leaf(kind)
        return self.float_of(kind, depth - 1) if kind in FLOATS else self.integer_of(kind, depth - 1)

    def leaf(self, kind: str) -> str:
        found = [name for name, k in self.variables if k == kind]
        if found and self.r.random() < 0.85:
            return self.r.choice(found)
        if kind in FLOATS:
            return f"{kind}({self.r.choice(('0.5', '1', '-2.25', '3e-3', '1024', '-1e-7', '65504'))})"
        edge = self.r.choice((0, 1, 3, 7, 10, 255, 1000, -1, (1 << INTEGERS[kind]) // 3, self.r.getrandbits(16)))
        return f"{kind}({edge}l)"

    def integer_of(self, kind: str, depth: int) -> str:
        r, n = self.r, INTEGERS[kind]
        a, b = (lambda: self.of(kind, depth)), (lambda: self.of(kind, depth))
        how = r.randrange(16)
        if how < 5:
            return f"{kind}({a()} {r.choice('+-*&|^')} {b()})"
        if how < 7:
            return f"{kind}({a()} {r.choice(('<<', '>>'))} ({self.of('u32', depth)} & {n - 1}))"
        if how == 7:
            return f"{r.choice(('quotient', 'remainder'))}<{kind}>({a()}, {b()})"
        if how == 8:
            return f"{kind}({r.choice('~-')}{a()})"
        if how < 11:
            return f"({self.condition(depth)} ? {a()} : {b()})"
        if how == 11 and n >= 32:
            return f"high({a()}, {b()})"
        if how == 12:
            word = "u64" if n == 64 else "u32"
            counted = r.choice(("leading", "trailing", "__builtin_popcountl"))
            return f"{kind}({counted}({word}({a()})))"
        if how == 13 and n >= 32:
            turned = f"__builtin_rotateleft{n}(u{n}({a()}), u{n}({b()}) & {n - 1})"
            return f"{kind}({r.choice((turned, f'__builtin_bswap{n}(u{n}({a()}))'))})"
        if how == 14:
            source = r.choice([f for f in FLOATS if f != "f16" or n <= 16])
            low = 0 if kind[0] == "u" else -_LIMITS[n]
            return f"whole<{kind}>({self.of(source, depth)}, {source}({low}), {source}({_LIMITS[n]}))"
        return f"{kind}({self.of(r.choice(list(INTEGERS)), depth)})"

    def float_of(self, kind: str, depth: int) -> str:
        r = self.r
        a, b = (lambda: self.of(kind, depth)), (lambda: self.of(kind, depth))
        suffix = {"f16": "f16", "f32": "f", "f64": ""}[kind]
        how = r.randrange(13)
        if how < 5:  # one rounding each, in a half too
            return f"{kind}({a()} {r.choice('+-*')} {b()})"
        if how == 5:
            return f"({self.condition(depth)} ? {a()} : {b()})"
        if how == 6:
            source = r.choice([k for k, n in INTEGERS.items() if kind != "f16" or n < 16])
            return f"{kind}({self.of(source, depth)})"
        if how == 7:
            return f"{'half' if kind == 'f16' else kind}({self.of(r.choice(list(FLOATS)), depth)})"
        if how == 8:
            return f"{kind}(-{a()})"
        if kind == "f16":
            return f"{kind}({a()} + {b()})"
        if how == 9:
            return f"ratio({a()}, {b()})"
        if how == 10:
            return f"__builtin_fma{suffix}({a()}, {b()}, {a()})"
        if how == 11:
            return f"{r.choice(('least', 'most'))}({a()}, {b()})"
        one = r.choice(("floor", "ceil", "trunc", "rint", "fabs", "sqrt", "ldexp"))
        more = f", i32({self.of('i8', depth)})" if one == "ldexp" else ""
        return f"__builtin_{one}{suffix}({a()}{more})"

    def condition(self, depth: int) -> str:
        kind = self.r.choice(["i32", "u32", "i64", "u64", "f32", "f64", "i16", "u8", "f16"])
        text = f"{self.of(kind, depth)} {self.r.choice(('<', '<=', '>', '>=', '==', '!='))} {self.of(kind, depth)}"
        if depth and self.r.random() < 0.3:
            return f"({text} {self.r.choice(('&&', '||'))} {self.condition(depth - 1)})"
        return f"({text})"

    # ---- statements
    def declare(self, indent: str = "  ") -> None:
        kind = self.r.choice([*INTEGERS, "i32", "u32", *FLOATS, "f32", "f64"])
        text = self.of(kind, self.r.choice((1, 2, 2, 3)))
        name = f"{kind}_{len(self.variables)}"
        self.lines.append(f"{indent}{kind} {name} = {text};")
        self.variables.append((name, kind))

    def assign(self, indent: str) -> None:
        name, kind = self.r.choice(self.variables)
        self.lines.append(f"{indent}{name} = {self.of(kind, 2)};")

    def block(self, indent: str, depth: int) -> None:
        for _ in range(self.r.randint(1, 3)):
            self.statement(indent, depth) if depth and self.r.random() < 0.35 else self.assign(indent)

    def statement(self, indent: str, depth: int) -> None:
        inner, how = indent + "  ", self.r.randrange(4)
        if how == 0:
            self.lines.append(f"{indent}if ({self.condition(1)}) {{")
            self.block(inner, depth - 1)
            if self.r.random() < 0.6:
                self.lines.append(f"{indent}}} else {{")
                self.block(inner, depth - 1)
        elif how == 1:
            counter = f"k{len(self.lines)}"
            times = f"{counter} < ({self.of('u32', 1)} & 7) && {counter} < 8"  # the left side may change underway
            self.lines.append(f"{indent}for (u32 {counter} = 0; {times}; ++{counter}) {{")
            self.block(inner, depth - 1)
            if self.r.random() < 0.4:
                self.lines.append(f"{inner}if ({self.condition(1)}) {self.r.choice(('break', 'continue'))};")
                self.assign(inner)
        elif how == 2:
            kind = self.r.choice(list(INTEGERS) + list(FLOATS))
            array, size = f"a{len(self.lines)}", self.r.choice((2, 4, 8))
            elements = ", ".join(self.of(kind, 1) for _ in range(size))
            self.lines.append(f"{indent}{{")
            self.lines.append(f"{inner}{kind} {array}[{size}] = {{{elements}}};")
            for _ in range(2):
                self.lines.append(f"{inner}{array}[{self.of('u32', 1)} & {size - 1}] = {self.of(kind, 1)};")
            name = self.r.choice([v for v in self.variables if v[1] == kind] or [("", "")])[0]
            index = f"{array}[{self.of('u32', 1)} & {size - 1}]"
            target = name or self.r.choice([v for v in self.variables if v[1] == "u64"])[0]
            self.lines.append(f"{inner}{target} = {index if name else f'bits({index})'};")
        else:
            self.lines.append(f"{indent}switch ({self.of('u32', 1)} & 3) {{")
            for value in range(3):
                self.lines.append(f"{indent}case {value}:")
                self.assign(inner)
                if self.r.random() < 0.7:
                    self.lines.append(f"{inner}break;")
            self.lines.append(f"{indent}default:")
            self.assign(inner)
        self.lines.append(f"{indent}}}")


def source_of(seed: int) -> tuple[str, list[list[str]]]:
    """The file, and of each of its programs the names of what it returns."""
    r = random.Random(seed)
    parts, results = [_PRELUDE], []
    for k in range(PROGRAMS):
        p = _Program(r)
        for word, kind in enumerate(("u64", "i64", "u32", "i32", "f32", "f64", "f16", "u16")):
            value = f"of_bits{FLOATS[kind]}(in[{word}])" if kind in FLOATS else f"{kind}(in[{word}])"
            p.lines.append(f"  {kind} {kind}_{word} = {value};")
            p.variables.append((f"{kind}_{word}", kind))
        for _ in range(r.randint(8, 14)):
            p.declare() if r.random() < 0.6 else p.statement("  ", 2)
        names = [name for name, _ in p.variables]
        stores = "".join(f"  out[{j}] = bits({name});\n" for j, name in enumerate(names))
        body = "\n".join(p.lines)
        parts.append(f"DEVICE void p{k}_of(const u64* in, u64* out) {{\n{body}\n{stores}}}\n")
        parts.append(_ENTRY.format(name=f"p{k}", words=WORDS, results=len(names)))
        results.append(names)
    return "".join(parts) + "}\n", results


def _inputs(r: random.Random) -> np.ndarray:
    """Words that are small, that are edges, that are any bits."""
    edges = (0, 1, 2, 0x7F800000, 0x3F800000, 0x7FF0000000000000, 0x3FF0000000000000, 0x8000000000000000, 0x7FFFFFFF)
    words = [
        r.choice((r.getrandbits(64), r.getrandbits(8), r.choice(edges), (1 << 64) - 1 - r.getrandbits(4)))
        for _ in range(LANES * WORDS)
    ]
    floats = np.array(words, dtype=np.uint64).reshape(LANES, WORDS)
    some = [k for k in range(LANES) if r.random() < 0.6]
    for k in some:  # of a middling size
        floats[k, 4] = np.float32(r.gauss(0, 100)).view(np.uint32)
        floats[k, 5] = np.float64(r.gauss(0, 1e4)).view(np.uint64)
        floats[k, 6] = np.float16(r.gauss(0, 10)).view(np.uint16)
    return floats


# Signed sums wrap around, and every product, sum and quotient is rounded by itself.
_FLAGS = ("-std=c++20", "-fwrapv", "-ffp-contract=off", "-Wno-everything")


def _host(source: str) -> ctypes.CDLL:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(builds.compile_host(source, *_FLAGS))
        file.flush()
        return ctypes.CDLL(file.name)


def differences(device: ModuleType, seed: int) -> Iterator[str]:
    source, results = source_of(seed)
    with device.Module(builds.compile_hip(source, *_FLAGS)) as module:
        host = _host(source)
        r = random.Random(-1 - seed)
        for k, names in enumerate(results):
            inputs = _inputs(r)
            device_results, host_results = (np.zeros((LANES, len(names)), dtype=np.uint64) for _ in range(2))
            module.launch(f"p{k}", grid=LANES // 64, block=64, args=(inputs, device_results))
            getattr(host, f"p{k}")(
                inputs.ctypes.data_as(ctypes.c_void_p), host_results.ctypes.data_as(ctypes.c_void_p), LANES
            )
            lanes, columns = np.nonzero(device_results != host_results)
            if len(lanes):
                lane, column = int(lanes[0]), int(columns[0])
                on_host, on_device = (int(x[lane, column]) for x in (host_results, device_results))
                yield (
                    f"seed {seed}, p{k}, lane {lane}: {names[column]} is {on_host:#x} on the host and "
                    f"{on_device:#x} on gfx942; in {[hex(x) for x in inputs[lane].tolist()]}"
                )


def main() -> int:
    import device

    first, count = int(sys.argv[1]), int(sys.argv[2])
    wrong = 0
    for seed in range(first, first + count):
        try:
            found = list(differences(device, seed))
        except RuntimeError as error:  # the compiler's own, or an instruction that is not implemented
            found = [f"seed {seed}: {error}"]
        for text in found:
            print(text, flush=True)
        wrong += len(found)
    print(f"{count * PROGRAMS} programs, {wrong} differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
