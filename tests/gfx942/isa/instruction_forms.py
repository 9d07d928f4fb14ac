# SPDX-License-Identifier: Apache-2.0
"""The forms of an instruction: its encodings, the kinds of its operands, its modifiers. Candidates only: which of them
exist is for the assembler to say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from exact_floats import F16, F32, F64, FORMATS
from expected import Op, element, width

# What the kernels of instruction_runs.py have in which registers.
SOURCES, DESTINATION = (2, 4, 6), 8  # vectors, each with the one after it
SCALAR = 16
MASK_IN, MASK_OUT = "s[20:21]", "s[40:41]"  # VCC begins as MASK_IN


@dataclass(frozen=True)
class Operand:
    kind: str  # vector, scalar, constant
    text: str = ""  # of a constant
    negate: bool = False
    absolute: bool = False
    sign_extend: bool = False
    select: str = "DWORD"


@dataclass(frozen=True)
class Form:
    mnemonic: str
    suffix: str
    operands: tuple[Operand, ...]
    modifiers: str = ""  # as they stand in the text, but those of SDWA
    vcc: bool = False  # the masks are VCC
    multiply: float = 1
    clamp: bool = False
    select: str = ""  # SDWA's dst_sel; empty where it is not SDWA
    unused: str = "UNUSED_PAD"
    dpp: str = ""
    row_mask: int = 15
    bank_mask: int = 15
    bound_ctrl: bool = False
    op_sel: int = 0  # bits: the sources, then the destination
    op_sel_hi: int = 7
    neg_lo: int = 0
    neg_hi: int = 0
    refused: bool = False  # exists, and the interpreter says that it does not know it

    def text(self, op: Op) -> str:
        """The instruction."""
        parts = []
        for kind in op.results:
            if kind == "mask":
                parts.append("vcc" if self.vcc else MASK_OUT)
            else:
                parts.append(_registers("v", DESTINATION, width(kind)))
        sources = iter(enumerate(self.operands))
        for kind in op.sources:
            if kind == "vcc":
                continue
            if kind == "mask":
                parts.append("vcc" if self.vcc else MASK_IN)
            else:
                j, operand = next(sources)
                parts.append(_operand(operand, j, kind))
        text = f"{self.mnemonic}{self.suffix} {', '.join(parts)}{self.modifiers}"
        if self.select:
            if "mask" not in op.results[:1]:
                text += f" dst_sel:{self.select} dst_unused:{self.unused}"
            text += "".join(f" src{j}_sel:{o.select}" for j, o in enumerate(self.operands))
        return text


def _registers(letter: str, first: int, bits: int) -> str:
    return f"{letter}{first}" if bits <= 32 else f"{letter}[{first}:{first + 1}]"


def _operand(o: Operand, j: int, kind: str) -> str:
    if o.kind == "constant":
        return o.text
    text = _registers("v", SOURCES[j], width(kind)) if o.kind == "vector" else _registers("s", SCALAR, width(kind))
    text = f"sext({text})" if o.sign_extend else text
    text = f"|{text}|" if o.absolute else text
    return f"-{text}" if o.negate else text


def constant_bits(text: str, kind: str) -> int:
    """What a constant means for an operand of the type: small integers are themselves in every type, floats are of the
    operand's own; literals of 32 bits are the upper half of a double, and extended as an integer's sign says."""
    bits = max(width(kind), 16)
    if text.startswith("0x"):
        x = int(text, 16)
        if kind == "f64":
            return x << 32
        return (x ^ 1 << 31) - (1 << 31) & (1 << bits) - 1 if kind == "i64" else x & (1 << bits) - 1
    if "." not in text:
        return int(text) & (1 << bits) - 1
    fmt = FORMATS.get(kind) or {16: F16, 32: F32, 64: F64}[bits]
    if text.startswith("0.15915494"):  # 1 / (2 pi), whose bits the ISA gives
        return {F16: 0x3118, F32: 0x3E22F983, F64: 0x3FC45F306DC9C882}[fmt]
    return fmt.of_number(float(text))


INTEGERS, FLOATS = ("1", "64", "-16", "0"), ("-0.5", "4.0", "0.15915494", "1.0", "-2.0")
BYTES = ("DWORD", "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1")
UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
# Tried with every part of a register, and every way for lanes to change places.
REPRESENTATIVE = ("v_mov_b32", "v_add_u32", "v_add_f32", "v_mul_i32_i24", "v_lshlrev_b16")
DPP = (
    *("quad_perm:[3,2,1,0]", "quad_perm:[0,0,2,2]", "quad_perm:[1,2,3,0]"),
    *(f"{kind}:{n}" for kind in ("row_shl", "row_shr", "row_ror") for n in (1, 4, 15)),
    *("wave_shl:1", "wave_rol:1", "wave_shr:1", "wave_ror:1", "row_mirror", "row_half_mirror"),
    *("row_bcast:15", "row_bcast:31", "row_newbcast:0", "row_newbcast:11"),
)


def forms_of(name: str, op: Op) -> list[Form]:
    if any(t.endswith("x2") for t in op.sources):
        return list(_packed(name, op))
    if "mix" in op.sources:
        return list(_mixed(name, op))
    if op.literal is not None:
        return list(_with_literal(name, op))
    every = [*_plain(name, op), *_modified(name, op), *_sdwa(name, op), *_dpp(name, op), *_op_sel(name, op)]
    return list(dict.fromkeys(every))


def _vectors(op: Op) -> tuple[Operand, ...]:
    return tuple(Operand("vector") for t in op.sources if t not in ("mask", "vcc"))


def _with(operands: tuple[Operand, ...], j: int, o: Operand) -> tuple[Operand, ...]:
    return operands[:j] + (o,) + operands[j + 1 :]


def _types(op: Op) -> list[str]:
    return [t for t in op.sources if t not in ("mask", "vcc")]


def _constants(kind: str) -> tuple[str, ...]:
    if kind == "f64":  # where 1 / (2 pi) has more digits
        return (*(f.replace("0.15915494", "0.15915494309189532") for f in FLOATS), *INTEGERS)
    return FLOATS + INTEGERS if kind in FORMATS else INTEGERS + (FLOATS if width(kind) == 32 else ())


def _plain(name: str, op: Op) -> Iterator[Form]:
    """Registers of both kinds and constants."""
    vectors, scalar = _vectors(op), Operand("scalar")
    for suffix in ("_e32", "_e64"):
        base = Form(name, suffix, vectors, vcc=suffix == "_e32")
        yield base
        for j, kind in enumerate(_types(op)):
            yield replace(base, operands=_with(vectors, j, scalar))
            constants = _constants(kind)
            literals = ("0x3b55", "0xfc01") if width(kind) == 16 else ("0x12b4c3d7", "0xc2f70a3d")
            if suffix == "_e32" and j:  # those have a constant in the first place only
                continue
            for text in (*constants, *literals) if suffix == "_e32" else constants[j :: len(vectors)]:
                yield replace(base, operands=_with(vectors, j, Operand("constant", text)))
        if len(vectors) > 1:
            yield replace(base, operands=tuple(scalar for _ in vectors))


def _modified(name: str, op: Op) -> Iterator[Form]:
    """neg and abs of float sources, clamp and omod of float results."""
    vectors = _vectors(op)
    base = Form(name, "_e64", vectors)
    for j, kind in enumerate(_types(op)):
        if kind not in FORMATS and not (name == "v_cndmask_b32" or name.startswith("v_mov")):
            continue
        yield replace(base, operands=_with(vectors, j, Operand("vector", "", True)))
        if "mask" in op.results[1:]:  # the encoding with a scalar result has no place for abs
            continue
        for negate in (False, True):
            yield replace(base, operands=_with(vectors, j, Operand("vector", "", negate, True)))
        yield replace(base, operands=_with(vectors, j, Operand("scalar", "", True, True)))
    if op.results[0] == "mask":
        return
    if op.results[0] not in FORMATS or name.startswith("v_div_scale"):
        yield replace(base, modifiers=" clamp", clamp=op.saturates, refused=not op.saturates)
        return
    yield replace(base, modifiers=" clamp", clamp=True)
    for text, by in (("mul:2", 2), ("mul:4", 4), ("div:2", 0.5)):
        yield replace(base, modifiers=f" {text}", multiply=by)
    yield replace(base, modifiers=" clamp mul:4", multiply=4, clamp=True)


def _sdwa(name: str, op: Op) -> Iterator[Form]:
    """Parts of registers: each of them at least once for every instruction."""
    types = _types(op)
    if len(types) > 2:
        return
    base = Form(name, "_sdwa", _vectors(op), vcc=True, select="DWORD")
    signed = [t not in FORMATS for t in types]
    choices = [(BYTES[k % 7], BYTES[(k * 3 + 2) % 7], BYTES[(k + 1) % 7], UNUSED[k % 3], bool(k & 1)) for k in range(7)]
    if name in REPRESENTATIVE:
        choices += [(a, "DWORD", "DWORD", "UNUSED_PAD", e) for a in BYTES for e in (False, True)]
        choices += [("DWORD", "DWORD", d, u, False) for d in BYTES[1:] for u in UNUSED]
    for a, b, to, unused, extended in choices:
        operands = tuple(
            Operand(
                "vector",
                select=s,
                sign_extend=extended and signed[j],
                negate=extended and not signed[j],
                absolute=extended and not signed[j] and j == 0,
            )
            for j, s in enumerate((a, b)[: len(types)])
        )
        if to == "DWORD":
            unused = "UNUSED_PAD"
        yield replace(base, operands=operands, select=to, unused=unused)
    scalar = Operand("scalar", select="WORD_1")
    yield replace(base, operands=_with(base.operands, 0, scalar))
    if op.results[0] == "mask":
        yield replace(base, vcc=False)
    elif op.results[0] in FORMATS:
        yield replace(base, modifiers=" clamp mul:2", multiply=2, clamp=True)


def _dpp(name: str, op: Op) -> Iterator[Form]:
    if "mask" in op.results:  # which bits lanes without a source get is not said
        return
    base = Form(name, "_dpp", _vectors(op), vcc=True)
    controls = [(DPP[len(name) % len(DPP)], 15, 15, True)]
    if name in REPRESENTATIVE:
        controls = [(c, 15, 15, b) for c in DPP for b in (False, True)]
        controls += [(c, rows, banks, True) for c in DPP[:6:2] for rows, banks in ((5, 15), (15, 6), (14, 9), (0, 15))]
    for control, rows, banks, bound in controls:
        text = f" {control} row_mask:{rows:#x} bank_mask:{banks:#x}{' bound_ctrl:0' if bound else ''}"
        yield replace(base, modifiers=text, dpp=control, row_mask=rows, bank_mask=banks, bound_ctrl=bound)
    if _types(op)[0] in FORMATS and name in REPRESENTATIVE:
        operands = _with(base.operands, 0, Operand("vector", "", True, True))
        yield replace(
            base, operands=operands, modifiers=text, dpp=control, bound_ctrl=bound, row_mask=rows, bank_mask=banks
        )


def _list(bits: int, n: int) -> str:
    return "[" + ",".join(str(bits >> j & 1) for j in range(n)) + "]"


def _op_sel(name: str, op: Op) -> Iterator[Form]:
    """The upper halves of registers, for 16 bits outside of SDWA."""
    types = _types(op)
    if not any(width(t) == 16 for t in types):
        return
    n = len(types) + 1
    for bits in {1, 2, (1 << len(types)) - 1, 1 << len(types), (1 << n) - 1}:
        yield Form(name, "_e64", _vectors(op), modifiers=f" op_sel:{_list(bits, n)}", op_sel=bits)


def _with_literal(name: str, op: Op) -> Iterator[Form]:
    """A constant in the instruction; two other sources."""
    at = op.literal or 0
    for text in ("0x3fb504f3", "0xff7fffff", "0x7f800001", "0x80000001"):
        operands = _with(_vectors(op), at, Operand("constant", text))
        yield Form(name, "", operands)


def _packed(name: str, op: Op) -> Iterator[Form]:
    n = len(op.sources)
    full = (1 << n) - 1
    wide = width(op.sources[0]) == 64
    constants = ("7", "-3") if not op.is_float else ("1.0",) if wide else ("1.0", "-16", "7")
    r = random.Random(name)
    base = Form(name, "", _vectors(op), op_sel_hi=full)

    def form(lo: int, hi: int, neg_lo: int = 0, neg_hi: int = 0, clamp: bool = False, form: Form = base) -> Form:
        text = f" op_sel:{_list(lo, n)} op_sel_hi:{_list(hi, n)}"
        if neg_lo or neg_hi:
            text += f" neg_lo:{_list(neg_lo, n)} neg_hi:{_list(neg_hi, n)}"
        text += " clamp" if clamp else ""
        return replace(form, modifiers=text, op_sel=lo, op_sel_hi=hi, neg_lo=neg_lo, neg_hi=neg_hi, clamp=clamp)

    yield base
    for lo, hi in {
        (0, 0),
        (full, 0),
        (full, full),
        (1, full - 1),
        *((r.getrandbits(n), r.getrandbits(n)) for _ in range(4)),
    }:
        yield form(lo, hi)
    for j in range(n):
        yield replace(base, operands=_with(base.operands, j, Operand("scalar")))
        for text in constants:
            constant = replace(base, operands=_with(base.operands, j, Operand("constant", text)))
            yield form(0, full & ~(1 << j), form=constant)
            if not wide:
                yield form(0, full, form=constant)
    if element(op.sources[0]) in FORMATS:
        for _ in range(4):
            yield form(r.getrandbits(n), full, r.getrandbits(n), r.getrandbits(n))
        yield form(0, full, clamp=True)
    else:
        yield replace(base, modifiers=" clamp", refused=True)


def _mixed(name: str, op: Op) -> Iterator[Form]:
    """op_sel_hi: the source is a half, the upper one where op_sel is set too. neg and abs as for other floats."""
    base = Form(name, "", _vectors(op), op_sel_hi=0)
    yield base
    for lo, hi in ((0, 7), (7, 7), (1, 1), (2, 3), (4, 6), (0, 4), (5, 5), (7, 0)):
        yield replace(base, modifiers=f" op_sel:{_list(lo, 3)} op_sel_hi:{_list(hi, 3)}", op_sel=lo, op_sel_hi=hi)
    for j in range(3):
        for negate, absolute in ((True, False), (False, True), (True, True)):
            operands = _with(base.operands, j, Operand("vector", "", negate, absolute))
            yield replace(base, operands=operands, modifiers=" op_sel_hi:[1,0,1]", op_sel_hi=5)
        yield replace(base, operands=_with(base.operands, j, Operand("scalar")))
        yield replace(base, operands=_with(base.operands, j, Operand("constant", "4.0")))
    yield replace(base, modifiers=" clamp", clamp=True)
