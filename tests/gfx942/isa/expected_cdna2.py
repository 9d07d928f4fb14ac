# SPDX-License-Identifier: Apache-2.0
"""What gfx90a has and its successors have not: multiply-adds with two roundings, which know no denormals."""

from __future__ import annotations

from exact_floats import F32
from expected import ROUNDINGS, Lane, Op, Result, Table


def _without_denormals(x: int) -> int:
    return x & 1 << 31 if F32.is_denormal(x) else x


def _multiply_add(lane: Lane, a: int, b: int, c: int) -> Result:
    """Of NaN only that the result is one."""
    if any(map(F32.is_nan, (a, b, c))):
        return None
    a, b, c = map(_without_denormals, (a, b, c))
    mode = lane.mode.rounding(F32)
    product = F32.product(a, b, mode)
    total = None if product is None else F32.sum(_without_denormals(product), c, mode)
    return None if total is None else _without_denormals(total)


_F3 = "f32 f32 f32 -> f32"
TABLE: Table = {
    "v_mad_f32": Op(_F3, _multiply_add, takes_lane=True, modes=ROUNDINGS),
    "v_madmk_f32": Op(_F3, _multiply_add, takes_lane=True, literal=1),
    "v_madak_f32": Op(_F3, _multiply_add, takes_lane=True, literal=2),
    "v_mac_f32": Op("f32 f32 -> f32", _multiply_add, takes_lane=True, reads_result=True, modes=ROUNDINGS),
}
