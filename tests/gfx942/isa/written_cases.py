# SPDX-License-Identifier: Apache-2.0
"""Instructions that no function of one lane describes: what goes between lanes and scalars, accumulators, MODE, the
program counter. A few lines each, in the kernels of instruction_runs.py, and what they leave behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from expected import USUAL
from instruction_runs import ALL, LANES, Left, Wave

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
