# SPDX-License-Identifier: Apache-2.0
"""What gfx950 has and gfx942 has not, from LLVM's description of the intrinsics. AMD's own document was not at hand for
v_prng_b32's polynomial and the rows that v_permlane16_swap and v_permlane32_swap exchange; our kernels have neither."""

from __future__ import annotations

from exact_floats import F16, F32
from expected import DENORMALS, ROUNDINGS, Lane, Op, Result, Table
from expected_floats import larger, smaller


def _halves(lane: Lane, a: int, b: int) -> Result:
    """Each as v_cvt_f16_f32 has it."""

    def half(x: int) -> int | None:
        h = F16.of_format(F32, x, lane.mode.rounding(F16))
        if h is not None and F16.is_denormal(h) and lane.mode.flushes_outputs(F16):
            return h & 0x8000
        return h

    return half(a), half(b)


def _bfloats(a: int, b: int) -> int:
    """To nearest even; of a NaN the upper bits, made quiet."""

    def upper(x: int) -> int:
        if F32.is_nan(x):
            return x >> 16 | 0x40
        below, kept = x & 0xFFFF, x >> 16
        return kept + (below > 0x8000 or (below == 0x8000 and kept & 1))

    return upper(a) | upper(b) << 16


def _of_three(choose: object, lane: Lane, *x: int) -> Result:
    """Of NaN only that the result is one."""
    if any(F32.is_nan(v) for v in x):
        return None
    return choose(lane, F32, choose(lane, F32, x[0], x[1]), x[2])  # type: ignore[operator]


TABLE: Table = {
    "v_cvt_pk_f16_f32": Op("f32 f32 -> f16x2", _halves, takes_lane=True, modes=ROUNDINGS + DENORMALS),
    "v_cvt_pk_bf16_f32": Op("f32 f32 -> b32", _bfloats, modes=DENORMALS),
    "v_maximum3_f32": Op("f32 f32 f32 -> f32", lambda lane, *x: _of_three(larger, lane, *x), takes_lane=True),
    "v_minimum3_f32": Op("f32 f32 f32 -> f32", lambda lane, *x: _of_three(smaller, lane, *x), takes_lane=True),
    "v_prng_b32": Op("b32 -> b32", lambda x: x << 1 ^ (197 if x >> 31 else 0)),
}
