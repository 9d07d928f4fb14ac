# SPDX-License-Identifier: Apache-2.0
"""Runs one instruction in kernels of its own, wave after wave with other inputs, and hands back what it left behind."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from types import ModuleType

import numpy as np

import builds
from expected import USUAL, Op, edges, random_value, width
from instruction_forms import Form

LANES = 64
ALL = (1 << LANES) - 1

# A wave takes its vectors from 8 rows of `inputs`: three sources and the old destination, two dwords each, in v[2:9].
# 16 dwords of `scalars` go to s[16:31]: two scalar sources, the lane mask that is VCC at first, EXEC, MODE, SCC, the
# old scalar destination, M0. v8, v9 and scalars go to `outputs`.
_ROWS, _SCALARS = 8, 16
_OUT = 2 * LANES + _SCALARS
_PROLOGUE = f"""\
.macro begin
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  s_mul_i32 s3, s2, {4 * _SCALARS}
  s_add_u32 s6, s6, s3
  s_addc_u32 s7, s7, 0
  s_load_dwordx16 s[16:31], s[6:7], 0x0
  s_mul_i32 s3, s2, {4 * _ROWS * LANES}
  s_add_u32 s4, s4, s3
  s_addc_u32 s5, s5, 0
  s_mul_i32 s3, s2, {4 * _OUT}
  s_add_u32 s8, s8, s3
  s_addc_u32 s9, s9, 0
  .irp k, 0, 1, 2, 3, 4, 5, 6, 7
    global_load_dword v[2+\\k], v1, s[4:5] offset:{4 * LANES}*\\k
  .endr
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_mov_b64 vcc, s[20:21]
  s_mov_b64 s[40:41], s[26:27]
  s_mov_b32 m0, s28
  s_cmp_lg_u32 s25, 0
  s_setreg_b32 hwreg(HW_REG_MODE, 0, 10), s24
  s_mov_b64 exec, s[22:23]
.endm
.macro finish
  s_cselect_b32 s42, 1, 0
  s_mov_b64 s[44:45], exec
  s_mov_b64 exec, -1
  global_store_dword v1, v8, s[8:9]
  global_store_dword v1, v9, s[8:9] offset:{4 * LANES}
  s_mov_b64 exec, 1
  s_mov_b32 s46, m0
  .set slot, {2 * LANES}
  .irp k, 40, 41, 106, 107, 44, 45, 42, 46
    .if \\k == 106
      v_mov_b32 v10, vcc_lo
    .elseif \\k == 107
      v_mov_b32 v10, vcc_hi
    .else
      v_mov_b32 v10, s[\\k]
    .endif
    global_store_dword v1, v10, s[8:9] offset:4*slot
    .set slot, slot + 1
  .endr
  s_endpgm
.endm
"""
_DESCRIPTOR = """\
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 40
  .amdhsa_next_free_sgpr 64
  .amdhsa_accum_offset 32
.end_amdhsa_kernel
"""
_METADATA = """\
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 64
    .vgpr_count: 40
    .agpr_count: 8
    .max_flat_workgroup_size: 64
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}}
"""


def module_text(instructions: Sequence[str]) -> str:
    """A kernel for each, named k0, k1, ..."""
    names = [f"k{k}" for k in range(len(instructions))]
    code = "".join(
        f".globl {n}\n.p2align 8\n.type {n},@function\n"
        f"{n}:\n  begin\n  {text}\n  finish\n.L{n}:\n.size {n}, .L{n}-{n}\n"
        for n, text in zip(names, instructions, strict=True)
    )
    return (
        f'.amdgcn_target "amdgcn-amd-amdhsa--{builds.CHIP}"\n.amdhsa_code_object_version 5\n'
        + f"{_PROLOGUE}.text\n{code}.rodata\n.p2align 6\n"
        + "".join(_DESCRIPTOR.format(name=n) for n in names)
        + f".amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.target: amdgcn-amd-amdhsa--{builds.CHIP}\n"
        + "amdhsa.kernels:\n"
        + "".join(_METADATA.format(name=n) for n in names)
        + "...\n.end_amdgpu_metadata\n"
    )


# What an LLVM assembles, and its own disassembler does not read: of gfx950's, that of ROCm 7.2.
UNREADABLE = {"gfx950": r"v_cmpx_\w+_e64"}


def legal(instructions: Sequence[str]) -> list[bool]:
    """Which of them the chip's assembler knows, and the disassembler reads."""
    command = [*map(str, builds.assembler()), "-"]
    done = subprocess.run(
        [*command, "-o", "/dev/null"], input="\n".join(instructions), capture_output=True, text=True, check=False
    )
    wrong = {int(line) for line in re.findall(r"^<stdin>:(\d+):\d+: error", done.stderr, re.MULTILINE)}
    unreadable = re.compile(UNREADABLE.get(builds.CHIP, "$"))
    return [k + 1 not in wrong and not unreadable.match(text) for k, text in enumerate(instructions)]


@dataclass
class Wave:
    """The inputs of one wave."""

    sources: list[list[int]]
    old: list[int]
    scalars: tuple[int, int]
    mask: int
    exec: int
    scc: int
    mode: int = USUAL
    old_scalar: int = 0
    m0: int = 0

    @cached_property
    def rows(self) -> np.ndarray:
        both = np.array([*self.sources, self.old], dtype=np.uint64)
        return np.stack((both & np.uint64(0xFFFFFFFF), both >> np.uint64(32)), axis=1).astype(np.uint32)

    @cached_property
    def scalar_row(self) -> np.ndarray:
        pairs = [*self.scalars, self.mask, self.exec, self.mode | self.scc << 32, self.old_scalar, self.m0, 0]
        return np.array(pairs, dtype=np.uint64).view(np.uint32)


@dataclass(frozen=True)
class Left:
    """What a wave left behind."""

    vectors: list[int]  # v[8:9]
    scalar: int  # s[40:41]
    vcc: int
    exec: int
    scc: int
    m0: int


@dataclass
class Family:
    """Instructions that are assembled together."""

    device: ModuleType
    instructions: list[str]
    _module: object = field(default=None, repr=False)

    def run(self, index: int, waves: Sequence[Wave]) -> list[Left]:
        if self._module is None:
            self._module = self.device.Module(builds.assemble(module_text(self.instructions)))
        inputs = np.stack([w.rows for w in waves])
        scalars = np.stack([w.scalar_row for w in waves])
        outputs = np.zeros((len(waves), _OUT), dtype=np.uint32)
        self._module.launch(f"k{index}", grid=len(waves), block=LANES, args=(inputs, scalars, outputs))  # type: ignore[attr-defined]
        found = []
        for out in outputs:
            low, high = out[:LANES].astype(np.uint64), out[LANES : 2 * LANES].astype(np.uint64)
            scalar, vcc, exec_mask, scc_and_m0 = (int(x) for x in out[2 * LANES :].view(np.uint64)[:4])
            vectors = (low | high << np.uint64(32)).tolist()
            found.append(Left(vectors, scalar, vcc, exec_mask, scc=scc_and_m0 & 0xFFFFFFFF, m0=scc_and_m0 >> 32))
        return found


# ---- inputs


def _register(r: random.Random, kind: str, value: int) -> int:
    """A value of 16 bits has anything above it."""
    return value | r.getrandbits(16) << 16 if width(kind) == 16 else value


def _some_lanes(r: random.Random) -> int:
    return r.choice((ALL, r.getrandbits(LANES), r.getrandbits(LANES) | r.getrandbits(LANES)))


def _wave(r: random.Random, op: Op, values: Iterable[Sequence[int]], mode: int, exec_mask: int) -> Wave:
    kinds = [k for k in op.sources if k not in ("mask", "vcc")]
    columns = [[_register(r, k, v) for v in column] for k, column in zip(kinds, zip(*values, strict=True), strict=True)]
    columns += [[r.getrandbits(64) for _ in range(LANES)] for _ in range(3 - len(columns))]
    if op.reads_result:
        old = [random_value(r, op.results[0]) for _ in range(LANES)]
    else:
        old = [r.getrandbits(64) for _ in range(LANES)]
    scalar = random_value(r, kinds[0], op.hints[0])
    return Wave(columns, old, (scalar, 0), r.getrandbits(LANES), exec_mask, r.getrandbits(1), mode, r.getrandbits(64))


def _random_values(r: random.Random, op: Op) -> tuple[int, ...]:
    if op.inputs and r.random() < 0.7:
        return op.inputs(r)
    pairs = [(k, h) for k, h in zip(op.sources, op.hints, strict=True) if k not in ("mask", "vcc")]
    return tuple(r.choice(edges(k, h)) if r.random() < 0.4 and not h else random_value(r, k, h) for k, h in pairs)


def thorough_waves(op: Op) -> list[Wave]:
    """Every pair of edge values, random ones, and MODEs."""
    return _once(op, (), _thorough_waves)


def few_waves(op: Op, form: Form) -> list[Wave]:
    modes = [USUAL]
    if form.clamp and op.flushes:
        modes.append(USUAL & ~0x100)
    if form.multiply != 1 and op.flushes:
        modes += [USUAL & ~0x200, USUAL & ~0x2F0, USUAL & ~0x2A0, USUAL & ~0xF0]
    return _once(op, tuple(modes), _few_waves)


_waves: dict[tuple[object, ...], list[Wave]] = {}


def _once(op: Op, modes: tuple[int, ...], make: Callable[..., list[Wave]]) -> list[Wave]:
    """Instructions of one signature have the same inputs."""
    key = op.signature, op.modes, op.inputs, op.reads_result, modes
    if key not in _waves:
        _waves[key] = make(random.Random(str(key[:2])), op, modes)
    return _waves[key]


def _thorough_waves(r: random.Random, op: Op, _: tuple[int, ...]) -> list[Wave]:
    pairs = [(k, h) for k, h in zip(op.sources, op.hints, strict=True) if k not in ("mask", "vcc")]
    first = [tuple(edges(k, h)) for k, h in pairs[:2]]
    values = [(*v, *(random_value(r, k, h) for k, h in pairs[2:])) for v in product(*first)]
    values += [_random_values(r, op) for _ in range(2 * LANES)]
    values += [_random_values(r, op) for _ in range(-len(values) % LANES)]
    waves = [
        _wave(r, op, values[k : k + LANES], USUAL, ALL if k == 0 else _some_lanes(r))
        for k in range(0, len(values), LANES)
    ]
    for mode in op.modes:
        waves.append(_wave(r, op, [_random_values(r, op) for _ in range(LANES)], mode, ALL))
    waves.append(_wave(r, op, [_random_values(r, op) for _ in range(LANES)], USUAL, 0))
    return waves


def _few_waves(r: random.Random, op: Op, modes: tuple[int, ...]) -> list[Wave]:
    return [_wave(r, op, [_random_values(r, op) for _ in range(LANES)], m, _some_lanes(r)) for m in modes]
