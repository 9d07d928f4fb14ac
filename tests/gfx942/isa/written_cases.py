# SPDX-License-Identifier: Apache-2.0
"""Instructions that no function of one lane describes: what goes between lanes and scalars, accumulators, MODE, the
program counter. A few lines each, in the kernels of instruction_runs.py, and what they leave behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from builds import CHIP
from exact_floats import F32
from expected import USUAL
from instruction_runs import ALL, LANES, Left, Wave
from matrix_models import of_byte

LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Case:
    name: str  # of a branch target too
    covers: str  # mnemonics
    text: str
    after: Callable[[Wave], Left]


def untouched(w: Wave) -> Left:
    return Left(list(w.old), w.old_scalar, w.mask, w.exec, w.scc, w.m0)


def _lanes(w: Wave, f: Callable[[int], int]) -> list[int]:
    """v8 where EXEC is on."""
    return [x & ~LOW | f(k) & LOW if w.exec >> k & 1 else x for k, x in enumerate(w.old)]


def _scalar(w: Wave, x: int) -> Left:
    """s40."""
    return replace(untouched(w), scalar=w.old_scalar & ~LOW | x & LOW)


def _first_lane(w: Wave) -> int:
    """The lowest that is on; lane 0 where none is."""
    return (w.exec & -w.exec).bit_length() - 1 if w.exec else 0


CASES: list[Case] = []


def _case(covers: str, text: str, after: Callable[[Wave], Left] = untouched) -> None:
    name = f"case{len(CASES)}"
    CASES.append(Case(name, covers, text.replace("LABEL", name), after))


# ---- lanes and scalars. Reading or writing one lane does not ask EXEC.
_case("v_readfirstlane_b32", "v_readfirstlane_b32 s40, v2", lambda w: _scalar(w, w.sources[0][_first_lane(w)]))
for _lane in (0, 17, 63):
    _case("v_readlane_b32", f"v_readlane_b32 s40, v2, {_lane}", lambda w, k=_lane: _scalar(w, w.sources[0][k]))
_case("v_readlane_b32", "v_readlane_b32 s40, v2, s16", lambda w: _scalar(w, w.sources[0][w.scalars[0] & 63]))
_case("v_readlane_b32", "v_readlane_b32 s40, v2, m0", lambda w: _scalar(w, w.sources[0][w.m0 & 63]))


def _written(w: Wave, lane: int, x: int) -> Left:
    vectors = list(w.old)
    vectors[lane & 63] = vectors[lane & 63] & ~LOW | x & LOW
    return replace(untouched(w), vectors=vectors)


_case("v_writelane_b32", "v_writelane_b32 v8, s16, 5", lambda w: _written(w, 5, w.scalars[0]))
_case("v_writelane_b32", "v_writelane_b32 v8, -16, 63", lambda w: _written(w, 63, -16))
_case("v_writelane_b32", "v_writelane_b32 v8, s18, m0", lambda w: _written(w, w.m0, w.scalars[1]))


def _swapped(w: Wave) -> Left:
    """v9 shows what v2 has become."""
    found = []
    for k, old in enumerate(w.old):
        a, b = old & LOW, w.sources[0][k] & LOW
        found.append(b | a << 32 if w.exec >> k & 1 else a | b << 32)
    return replace(untouched(w), vectors=found)


_ALL_LANES = "s_mov_b64 s[50:51], exec\n s_mov_b64 exec, -1\n {}\n s_mov_b64 exec, s[50:51]"
_case("v_swap_b32", "v_swap_b32 v8, v2\n" + _ALL_LANES.format("v_mov_b32 v9, v2"), _swapped)


# ---- lanes that change places: rows of as many lanes
def _changed(w: Wave, rows: int) -> Left:
    """v9 shows what v2 has become."""
    a, b = ([x & LOW for x in v] for v in (w.old, w.sources[0]))
    first = [b[k - rows] if k & rows else a[k] for k in range(LANES)]
    second = [b[k] if k & rows else a[k + rows] for k in range(LANES)]
    return replace(untouched(w), vectors=[x | y << 32 for x, y in zip(first, second, strict=True)])


for _rows in (16, 32):
    _text = f"v_permlane{_rows}_swap_b32 v8, v2\n v_mov_b32 v9, v2"
    _case(f"v_permlane{_rows}_swap_b32", _ALL_LANES.format(_text), lambda w, rows=_rows: _changed(w, rows))


# ---- any function of three bits
def _of_bits(w: Wave, table: int, k: int) -> int:
    a, b, c = (v[k] for v in w.sources)
    return sum((table >> (4 * (a >> n & 1) + 2 * (b >> n & 1) + (c >> n & 1)) & 1) << n for n in range(32))


for _table in (0xE0, 0x96, 0x1B, 0x80, 0x01, 0xCA):
    _case(
        "v_bitop3_b32",
        f"v_bitop3_b32 v8, v2, v4, v6 bitop3:{_table:#x}",
        lambda w, t=_table: replace(untouched(w), vectors=_lanes(w, lambda k: _of_bits(w, t, k))),
    )
    _case(
        "v_bitop3_b16",
        f"v_bitop3_b16 v8, v2, v4, v6 bitop3:{_table:#x}",
        lambda w, t=_table: replace(untouched(w), vectors=_lanes(w, lambda k: _of_bits(w, t, k) & 0xFFFF)),
    )

# ---- accumulators
_READ = "\n v_accvgpr_read_b32 v8, a{}"
_case(
    "v_accvgpr_write_b32 v_accvgpr_read_b32",
    "v_accvgpr_write_b32 a3, v2" + _READ.format(3),
    lambda w: replace(untouched(w), vectors=_lanes(w, lambda k: w.sources[0][k])),
)
for _source, _value in (("s16", lambda w: w.scalars[0]), ("-16", lambda w: -16), ("4.0", lambda w: 0x40800000)):
    _case(
        "v_accvgpr_write_b32 v_accvgpr_read_b32",
        f"v_accvgpr_write_b32 a3, {_source}" + _READ.format(3),
        lambda w, x=_value: replace(untouched(w), vectors=_lanes(w, lambda k: x(w))),
    )
# Lanes that are off keep what the accumulator had: source 1, where all lanes wrote it.
_case(
    "v_accvgpr_mov_b32",
    _ALL_LANES.format("v_accvgpr_write_b32 a1, v4\n v_accvgpr_write_b32 a2, v2")
    + "\n v_accvgpr_mov_b32 a1, a2\n"
    + _ALL_LANES.format("v_accvgpr_read_b32 v8, a1"),
    lambda w: replace(
        untouched(w),
        vectors=[x & ~LOW | (w.sources[0] if w.exec >> k & 1 else w.sources[1])[k] & LOW for k, x in enumerate(w.old)],
    ),
)

# ---- nothing happens
for _text in (
    "v_nop",
    "s_nop 3",
    "s_sleep 1",
    "s_setprio 2",
    "s_icache_inv",
    "s_dcache_wb",
    "s_sethalt 0",
    "s_waitcnt 0",
):
    _case(_text.split()[0], _text)

# ---- MODE: {width - 1, offset, register} = {9, 0, 1} holds what the wave was given
_case("s_getreg_b32", "s_getreg_b32 s40, hwreg(HW_REG_MODE, 0, 10)", lambda w: _scalar(w, w.mode))
_case("s_getreg_b32", "s_getreg_b32 s40, hwreg(HW_REG_MODE, 4, 3)", lambda w: _scalar(w, w.mode >> 4 & 7))
_case(
    "s_setreg_b32",
    "s_setreg_b32 hwreg(HW_REG_MODE, 2, 4), s16\n s_getreg_b32 s40, hwreg(HW_REG_MODE, 0, 10)",
    lambda w: _scalar(w, w.mode & ~0x3C | (w.scalars[0] & 15) << 2),
)
_case(
    "s_setreg_imm32_b32",
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0x12345676\n s_getreg_b32 s40, hwreg(HW_REG_MODE, 0, 10)",
    lambda w: _scalar(w, w.mode & ~0x30 | 2 << 4),
)

# ---- jumps: s40 is 7 where none is taken
_SKIPPED = " LABEL\n s_mov_b32 s40, 7\nLABEL:"
_CONDITIONS: dict[str, Callable[[Wave], bool]] = {
    "s_branch": lambda w: True,
    "s_cbranch_scc0": lambda w: not w.scc,
    "s_cbranch_scc1": lambda w: bool(w.scc),
    "s_cbranch_vccz": lambda w: w.mask == 0,
    "s_cbranch_vccnz": lambda w: w.mask != 0,
    "s_cbranch_execz": lambda w: w.exec == 0,
    "s_cbranch_execnz": lambda w: w.exec != 0,
}
for _name, _taken in _CONDITIONS.items():
    _case(_name, _name + _SKIPPED, lambda w, f=_taken: untouched(w) if f(w) else _scalar(w, 7))
# Backwards: as often as the low bits of s16 say.
_case(
    "s_cbranch_scc1",
    "s_and_b32 s50, s16, 15\n s_mov_b32 s40, 0\nLABEL:\n s_add_u32 s40, s40, 3\n s_sub_u32 s50, s50, 1\n"
    " s_cmp_gt_i32 s50, 0\n s_cbranch_scc1 LABEL",
    lambda w: replace(_scalar(w, 3 * max(w.scalars[0] & 15, 1)), scc=0),
)
# s_getpc has the address of what follows it, s_swappc the same to come back to.
_case(
    "s_getpc_b64 s_setpc_b64",
    "s_getpc_b64 s[50:51]\nLABEL:\n s_add_u32 s50, s50, LABEL_end - LABEL\n s_addc_u32 s51, s51, 0\n"
    " s_setpc_b64 s[50:51]\n s_mov_b32 s40, 7\nLABEL_end:\n s_cmp_lg_u32 s25, 0",
)
_case(
    "s_swappc_b64",
    "s_getpc_b64 s[50:51]\nLABEL:\n s_add_u32 s50, s50, LABEL_callee - LABEL\n s_addc_u32 s51, s51, 0\n"
    " s_swappc_b64 s[52:53], s[50:51]\n s_add_u32 s40, s40, 1\n s_branch LABEL_end\n"
    "LABEL_callee:\n s_mov_b32 s40, 41\n s_setpc_b64 s[52:53]\nLABEL_end:\n s_cmp_lg_u32 s25, 0",
    lambda w: _scalar(w, 42),
)

# ---- floats of a byte
_BYTES = of_byte(np.arange(256), 4).tolist()  # the chip's
_IS_OCP = CHIP == "gfx950"
_SIZES = [abs(x) for x in _BYTES[:128] if x == x]  # by code, which ends with the largest number, and the next one
_SIZES.append(480.0 if _IS_OCP else 256.0)
_QUIET_NAN = 0x7FC00000


def _to_fp8(x: int) -> int:
    """The nearest code, the even one of two as near; NaN where that is behind the largest number's. FNUZ has one NaN
    and one zero, OCP's format has both with either sign."""
    number = F32.number(x)
    code = len(_SIZES) - 1
    if abs(number) < _SIZES[-1]:
        code = min(range(len(_SIZES)), key=lambda c: (abs(_SIZES[c] - abs(number)), c & 1))
    if _IS_OCP:
        return code | 128 * F32.minus(x)
    return code | 128 * (number < 0) if 0 < code < 128 else code


def _two_floats(w: Wave, word: int) -> Left:
    """v[8:9]."""
    found = list(w.old)
    for k in range(LANES):
        codes = (w.sources[0][k] >> 16 * word + 8 * j & 255 for j in range(2))
        low, high = (_QUIET_NAN if _BYTES[c] != _BYTES[c] else F32.of_number(_BYTES[c]) for c in codes)
        found[k] = low | high << 32 if w.exec >> k & 1 else found[k]
    return replace(untouched(w), vectors=found)


_case("v_cvt_pk_f32_fp8", "v_cvt_pk_f32_fp8 v[8:9], v2", lambda w: _two_floats(w, 0))
for _word in (0, 1):
    _text = f"v_cvt_pk_f32_fp8_sdwa v[8:9], v2 src0_sel:WORD_{_word}"
    _case("v_cvt_pk_f32_fp8", _text, lambda w, word=_word: _two_floats(w, word))


def _two_codes(w: Wave, keep: int, to: int, upper: bool) -> Left:
    """Of the sources with some of their bits, and others set; the second one with its sign turned."""

    def code(k: int, old: int) -> int:
        a, b = ((w.sources[j][k] & keep | to) & LOW for j in (0, 1))
        word = _to_fp8(a) | _to_fp8(b ^ 1 << 31) << 8
        return old & 0xFFFF | word << 16 if upper else old & 0xFFFF0000 | word

    return replace(untouched(w), vectors=_lanes(w, lambda k: code(k, w.old[k] & LOW)))


# Sources from 2^-15 to 1, from 2 to 2^16, with few bits so that two codes are often as near; and of any bits.
for _keep, _to in (
    (0x87FFFFFF, 0x38000000),
    (0x87FFFFFF, 0x40000000),
    (0x87F80000, 0x38000000),
    (0x87F80000, 0x40000000),
    (LOW, 0),
):
    for _upper in (False, True):
        _moves = "\n ".join(
            f"v_and_b32 v{r + 18}, {_keep:#x}, v{r}\n v_or_b32 v{r + 18}, {_to:#x}, v{r + 18}" for r in (2, 4)
        )
        _case(
            "v_cvt_pk_fp8_f32",
            f"{_moves}\n v_cvt_pk_fp8_f32 v8, v20, -v22" + " op_sel:[0,0,1]" * _upper,
            lambda w, keep=_keep, to=_to, upper=_upper: _two_codes(w, keep, to, upper),
        )

# ---- vector instructions that are skipped: one bit of a scalar says so
_case(
    "s_setvskip",
    "s_setvskip s16, 3\n v_mov_b32 v8, v2\n s_setvskip 0, 0",
    lambda w: (
        untouched(w) if w.scalars[0] >> 3 & 1 else replace(untouched(w), vectors=_lanes(w, lambda k: w.sources[0][k]))
    ),
)
_case("s_setvskip", "s_setvskip -1, s18\n v_readfirstlane_b32 s40, v2\n v_cmp_eq_u32 vcc, v2, v2\n s_setvskip 0, 7")


# ---- registers by an index, which is left in M0: 0 to 3 reaches v2 to v5, the two sources' words
def _word(w: Wave, n: int, k: int) -> int:
    return w.sources[n // 2][k] >> 32 * (n % 2) & LOW


def _indexed(w: Wave, which: int, f: Callable[[int, int], int], index: int | None = None) -> Left:
    """v8 = f(index, lane)."""
    by = w.scalars[0] & 3 if index is None else index
    return replace(untouched(w), vectors=_lanes(w, lambda k: f(by, k)), m0=w.m0 & ~0xF0FF | by | which << 12)


def _upper_word(w: Wave) -> list[int]:
    """v9 where EXEC is on."""
    return [x & LOW | _word(w, 0, k) << 32 if w.exec >> k & 1 else x for k, x in enumerate(w.old)]


_INDEX = "s_and_b32 s50, s16, 3\n s_set_gpr_idx_on s50, gpr_idx({})\n {}\n s_set_gpr_idx_off\n s_cmp_lg_u32 s25, 0"
_ON = "s_set_gpr_idx_on s_set_gpr_idx_off"
_case(_ON, _INDEX.format("SRC0", "v_mov_b32 v8, v2"), lambda w: _indexed(w, 1, lambda n, k: _word(w, n, k)))
_case(
    _ON,
    _INDEX.format("SRC1", "v_sub_u32 v8, v2, v2"),
    lambda w: _indexed(w, 2, lambda n, k: _word(w, 0, k) - _word(w, n, k)),
)
_case(
    _ON,
    _INDEX.format("SRC0,SRC2", "v_mad_u32_u24 v8, v2, 3, v2"),
    lambda w: _indexed(w, 5, lambda n, k: (_word(w, n, k) & 0xFFFFFF) * 3 + _word(w, n, k)),
)
_case(
    _ON,
    "s_set_gpr_idx_on 1, gpr_idx(DST)\n v_mov_b32 v8, v2\n s_set_gpr_idx_off",
    lambda w: replace(_indexed(w, 8, lambda n, k: 0, 1), vectors=_upper_word(w)),
)
_case(
    f"{_ON} s_set_gpr_idx_idx s_set_gpr_idx_mode",
    "s_set_gpr_idx_on 3, gpr_idx(SRC0)\n s_set_gpr_idx_mode gpr_idx(DST)\n s_set_gpr_idx_idx 1\n v_mov_b32 v8, v2\n"
    " s_set_gpr_idx_off",
    lambda w: replace(_indexed(w, 8, lambda n, k: 0, 1), vectors=_upper_word(w)),
)
_case(
    _ON,
    "s_set_gpr_idx_on 3, gpr_idx(SRC0,SRC1,SRC2,DST)\n s_set_gpr_idx_off\n v_mov_b32 v8, v2",
    lambda w: _indexed(w, 15, lambda n, k: _word(w, 0, k), 3),
)


def case_waves() -> list[Wave]:
    r = random.Random(942)
    masks = (ALL, r.getrandbits(64), 0, 1 << 63, r.getrandbits(64) & r.getrandbits(64))
    return [
        Wave(
            [[r.getrandbits(32) for _ in range(LANES)] for _ in range(3)],
            [r.getrandbits(64) for _ in range(LANES)],
            (r.getrandbits(64), r.getrandbits(64)),
            mask=0 if k == 1 else r.getrandbits(64),
            exec=masks[k % 5],
            scc=k & 1,
            mode=USUAL,
            old_scalar=r.getrandbits(64),
            m0=r.getrandbits(32),
        )
        for k in range(10)
    ]
