# SPDX-License-Identifier: Apache-2.0
"""Scalar instructions with operands of every kind, wave after wave, and what they must leave behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from expected import edges, random_value, typed, width
from expected_scalars import ScalarOp, State
from instruction_forms import constant_bits
from instruction_runs import ALL, LANES, Left, Wave

_NOTHING = [0] * LANES


@dataclass(frozen=True)
class ScalarForm:
    operands: tuple[str, ...]  # as in the text
    text: str


def _register(first: int, bits: int) -> str:
    return f"s{first}" if bits <= 32 else f"s[{first}:{first + 1}]"


def scalar_forms(name: str, op: ScalarOp) -> Iterator[ScalarForm]:
    wide = [width(t) == 64 if t != "k16" else False for t in op.sources]
    registers = [f"s[{16 + 2 * j}:{17 + 2 * j}]" if wide[j] else f"s{16 + 2 * j}" for j in range(len(op.sources))]
    result = [_register(40, width(op.result))] if op.result else []

    def form(operands: list[str]) -> ScalarForm:
        return ScalarForm(tuple(operands), f"{name} {', '.join([*result, *operands])}")

    if "k16" in op.sources:
        at = op.sources.index("k16")
        for k in ("0x0", "0x1", "0x7fff", "0x8000", "0xffff", "0x1234"):
            yield form([*registers[:at], k])
        return
    yield form(registers)
    for j in range(len(op.sources)):
        narrow = ["1.0", "0.15915494", "0x89abcdef", "vcc_lo", "exec_hi", "m0", "src_scc"]
        for text in ["0", "64", "-16", "0x1234abcd", *(["vcc", "exec"] if wide[j] else narrow)]:
            yield form([*registers[:j], text, *registers[j + 1 :]])
        if len(op.sources) == 2 and wide[0] == wide[1] and j:
            yield form([registers[0], registers[0]])


def scalar_waves(op: ScalarOp, count: int) -> list[Wave]:
    r = random.Random(op.signature)
    waves = []
    for _ in range(count):
        values = [0, 0]
        for j, (kind, hint) in enumerate(zip(op.sources, op.hints, strict=True)):
            if kind != "k16":
                values[j] = random_value(r, kind, hint) if hint or r.random() < 0.5 else r.choice(edges(kind))
        if r.random() < 0.1:
            values[1] = values[0]
        waves.append(
            Wave(
                [_NOTHING] * 3, _NOTHING, (values[0], values[1]),
                mask=r.choice((0, r.getrandbits(64))),
                exec=r.choice((0, ALL, r.getrandbits(64))),
                scc=r.getrandbits(1),
                old_scalar=r.getrandbits(64),
                m0=r.getrandbits(32),
            )
        )  # fmt: skip
    return waves


def _value(text: str, kind: str, wave: Wave, j: int) -> int:
    if kind == "k16":
        return int(text, 16)
    named = {
        "vcc": wave.mask, "vcc_lo": wave.mask, "exec": wave.exec, "exec_hi": wave.exec >> 32, "m0": wave.m0,
        "src_scc": wave.scc,
    }  # fmt: skip
    if text in named:
        return typed(named[text], kind)
    if text[0] == "s":
        return typed(wave.scalars[0 if text.startswith(("s16", "s[16")) else 1], kind)
    return typed(constant_bits(text, kind), kind)


def scalar_difference(form: ScalarForm, op: ScalarOp, wave: Wave, left: Left) -> str:
    old = wave.old_scalar
    bits = width(op.result) if op.result else 0
    values = [_value(t, k, wave, j) for j, (t, k) in enumerate(zip(form.operands, op.sources, strict=True))]
    after = op.f(State(wave.scc, old & (1 << bits) - 1, wave.exec), *values)
    scalar = old if after.result is None else old >> bits << bits | after.result & (1 << bits) - 1
    for name, want, actual in (
        ("the result", scalar, left.scalar),
        ("SCC", wave.scc if after.scc is None else after.scc, left.scc),
        ("EXEC", wave.exec if after.exec is None else after.exec, left.exec),
        ("VCC", wave.mask, left.vcc),
        ("M0", wave.m0, left.m0),
    ):
        if want != actual:
            sources = " ".join(f"{v:#x}" for v in values)
            return f"{name}: {want:#x} expected, got {actual:#x}; sources {sources}, old {old:#x}, SCC {wave.scc}"
    return ""
