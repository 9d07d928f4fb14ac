# SPDX-License-Identifier: Apache-2.0
"""From a table's function of one lane to what a wave must leave behind: operands, modifiers, EXEC, MODE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from exact_floats import F16, F32, FORMATS, NAN, SOME_NAN, SOME_ZERO, Format
from expected import Lane, Mode, Near, Op, element, typed, width
from instruction_forms import Form, Operand, constant_bits
from instruction_runs import LANES, Left, Wave

ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Register:
    """What a register must hold: the bits of `care`, or an approximation."""

    value: int
    care: int = ALL_BITS
    near: Near | None = None
    fmt: Format | None = None

    def holds(self, actual: int) -> bool:
        if self.near is None or self.fmt is None:
            return (actual ^ self.value) & self.care == 0
        low = actual & (1 << self.fmt.bits) - 1
        if (actual ^ self.value) & self.care >> self.fmt.bits << self.fmt.bits:
            return False
        return _is_near(self.near, self.fmt, low)


def _is_near(near: Near, fmt: Format, bits: int) -> bool:
    if fmt.is_nan(bits):
        return False
    actual, v = fmt.number(bits), near.value
    if bits == fmt.of_number(v) or (near.or_zero and actual == 0):
        return True
    if v == 0 or math.isinf(v) or math.isinf(actual):
        return False
    last_exponent = max(math.frexp(v)[1] - 1, 1 - fmt.bias) - fmt.fraction
    return abs(actual - v) <= near.ulps * 2.0**last_exponent


# ---- sources


def dpp_lane(control: str, lane: int) -> int | None:
    """The lane that a value comes from; None where there is none."""
    kind, _, amount = control.partition(":")
    row, at = lane & ~15, lane & 15
    if kind == "quad_perm":
        return (lane & ~3) + int(amount[1 + 2 * (lane & 3)])
    if kind == "row_mirror":
        return row + 15 - at
    if kind == "row_half_mirror":
        return lane & ~7 | 7 - (lane & 7)
    n = int(amount)
    if kind == "row_shl":
        return lane + n if at + n < 16 else None
    if kind == "row_shr":
        return lane - n if at - n >= 0 else None
    if kind == "row_ror":
        return row + (at - n) % 16
    if kind in ("wave_shl", "wave_rol"):
        return lane + 1 if lane < 63 else 0 if kind == "wave_rol" else None
    if kind in ("wave_shr", "wave_ror"):
        return lane - 1 if lane > 0 else 63 if kind == "wave_ror" else None
    if kind == "row_newbcast":
        return row + n
    assert kind == "row_bcast"  # 15: each row's last lane to the next row; 31: lane 31 to the upper half
    if n == 15:
        return row - 1 if row else None
    return 31 if lane >= 32 else None


def _selected(x: int, o: Operand) -> int:
    """SDWA's part of a register, as 32 bits."""
    kind, _, at = o.select.partition("_")
    if kind == "DWORD":
        return x & 0xFFFFFFFF
    bits = 8 if kind == "BYTE" else 16
    part = x >> bits * int(at) & (1 << bits) - 1
    return (part | -(part >> bits - 1) << bits) & 0xFFFFFFFF if o.sign_extend else part


def _modified(x: int, o: Operand, fmt: Format) -> int:
    x = fmt.magnitude(x) if o.absolute else x
    return fmt.negated(x) if o.negate else x


def _source(form: Form, wave: Wave, j: int, kind: str, at: int) -> int:
    """A source's bits, of the lane `at`."""
    o = form.operands[j]
    if o.kind == "constant":
        return constant_bits(o.text, kind)
    x = wave.scalars[0] if o.kind == "scalar" else wave.sources[j][at]
    if form.select:
        return _selected(x, o)
    return x >> 16 if width(kind) == 16 and form.op_sel >> j & 1 else x


def _values(form: Form, op: Op, wave: Wave, lane: int, at: int | None) -> list[int]:
    mode, j, values = Mode(wave.mode), 0, []
    for kind in op.sources:
        if kind in ("mask", "vcc"):
            values.append(wave.mask >> lane & 1)
            continue
        from_lane = at if j == 0 else lane
        x = 0 if from_lane is None else _source(form, wave, j, kind, from_lane)
        o, fmt = form.operands[j], FORMATS.get(kind)
        if kind == "mix":
            values.append(_mixed_source(form, x, o, j))
        elif fmt:
            x &= (1 << fmt.bits) - 1
            if op.flushes and mode.flushes_inputs(fmt):
                x = fmt.flushed(x)
            values.append(_modified(x, o, fmt))
        elif o.negate or o.absolute:  # of a move or a selection: a float's, bit by bit
            values.append(_modified(x & (1 << width(kind)) - 1, o, F32 if width(kind) == 32 else FORMATS["f64"]))
        else:
            values.append(typed(x, kind))
        j += 1
    return values


def _mixed_source(form: Form, x: int, o: Operand, j: int) -> int:
    if form.op_sel_hi >> j & 1:
        half = x >> (16 if form.op_sel >> j & 1 else 0) & 0xFFFF
        wide = F32.of_format(F16, half)
        x = F32.infinity | F32.quiet_bit if wide is NAN else wide
    return _modified(x & 0xFFFFFFFF, o, F32)


# ---- results


def _finished(form: Form, op: Op, mode: Mode, fmt: Format, r: Any) -> Any:
    """Denormals, omod, clamp. omod is ignored with MODE.ieee and where denormals are kept; its zero is +0."""
    multiplies = form.multiply != 1 and not mode.ieee and mode.flushes_outputs(fmt)
    if isinstance(r, Near):
        v = r.value * form.multiply + 0.0 if multiplies else r.value
        flushes = op.flushes and mode.flushes_outputs(fmt)
        small = flushes and min(abs(v), abs(r.value)) < 2.0 ** (1 - fmt.bias) * (1 + 2.0**-9)
        return Near(min(max(v, 0.0), 1.0) if form.clamp else v, r.ulps, r.or_zero or small)
    if r is NAN:
        return 0 if form.clamp and mode.dx10_clamp else NAN
    if r is SOME_NAN:
        return r
    if op.flushes and mode.flushes_outputs(fmt):
        r = fmt.flushed(r)
    if multiplies and fmt.is_nan(r) and not form.clamp:
        return SOME_NAN
    if multiplies and not fmt.is_nan(r):
        scaled = fmt.scaled(r, round(math.log2(form.multiply)))
        assert scaled is not None
        r = 0 if fmt.is_zero(fmt.flushed(scaled)) else scaled
    if form.clamp:
        if fmt.is_nan(r):
            r = 0 if mode.dx10_clamp else r
        elif r == fmt.sign:
            r = SOME_ZERO
        elif fmt.minus(r):
            r = 0
        else:
            r = min(r, fmt.one)
    return r


def _bits(kind: str, r: Any) -> tuple[int, int]:
    """Bits, and which of them matter."""
    n = width(element(kind))
    if r in (NAN, SOME_NAN):
        nan = FORMATS[element(kind)].infinity | (FORMATS[element(kind)].quiet_bit if r is NAN else 0)
        return nan, nan
    if r is SOME_ZERO:
        return 0, (1 << n - 1) - 1
    return int(r) & (1 << n) - 1, (1 << n) - 1


def _merged(form: Form, op: Op, old: int, bits: int, care: int) -> tuple[int, int]:
    """Into the register, which has kept or lost its other part."""
    n = width(op.results[0])
    if form.select not in ("", "DWORD"):
        kind, _, at = form.select.partition("_")
        size = 8 if kind == "BYTE" else 16
        shift = size * int(at)
        part = (1 << size) - 1
        value, untouched, known = (bits & part) << shift, 0, 0xFFFFFFFF & ~(part << shift)
        if form.unused == "UNUSED_PRESERVE":
            untouched = old & 0xFFFFFFFF & ~(part << shift)
        elif form.unused == "UNUSED_SEXT" and bits >> size - 1 & 1:
            untouched = 0xFFFFFFFF & ~((1 << shift + size) - 1)
        if form.unused == "UNUSED_SEXT" and not care >> size - 1 & 1:
            known = (1 << shift) - 1
        return value | untouched, known | (care & part) << shift
    if n == 16:
        upper = op.half == "upper" or form.op_sel >> len(form.operands) & 1
        keeps = 0xFFFF0000 if op.half == "lower" and not upper else 0x0000FFFF if upper else 0
        shift = 16 if upper else 0
        return bits << shift | old & keeps, care << shift | 0xFFFFFFFF & ~(0xFFFF << shift)
    return bits, care


def _packed(form: Form, op: Op, wave: Wave, lane: int) -> tuple[int, int]:
    """Each element by itself: op_sel has the halves that the lower result takes, op_sel_hi those of the upper."""
    mode, bits, care = Mode(wave.mode), 0, 0
    n = width(element(op.sources[0]))
    fmt = FORMATS.get(element(op.sources[0]))
    for k, (sel, neg) in enumerate(((form.op_sel, form.neg_lo), (form.op_sel_hi, form.neg_hi))):
        values = []
        for j, kind in enumerate(op.sources):
            o = form.operands[j]
            source = wave.sources[j][lane] if o.kind == "vector" else wave.scalars[0]
            if o.kind == "constant":  # of 32 bits: a half is below a zero, an integer is extended
                source = constant_bits(o.text, element(kind) if "." in o.text else "i32")
            x = source >> (n if sel >> j & 1 else 0) & (1 << n) - 1
            if fmt:
                x = fmt.flushed(x) if mode.flushes_inputs(fmt) else x
                x = fmt.negated(x) if neg >> j & 1 else x
            values.append(typed(x, element(kind)))
        r = op.f(Lane(lane, mode), *values) if op.takes_lane else op.f(*values)
        r = r[k] if isinstance(r, tuple) else r
        if fmt:
            r = _finished(form, op, mode, fmt, r)
        b, c = _bits(op.results[0], r)
        bits, care = bits | b << n * k, care | c << n * k
    return bits, care


def _pair_move(form: Form, wave: Wave, lane: int) -> tuple[int, int]:
    """v_pk_mov_b32 takes one word of each source: source 0's op_sel is of the lower result, source 1's of the upper."""
    words = []
    for j, o in enumerate(form.operands):
        source = wave.scalars[0] if o.kind == "scalar" else wave.sources[j][lane]
        words.append(
            int(o.text) & 0xFFFFFFFF
            if o.kind == "constant"
            else source >> (32 if form.op_sel >> j & 1 else 0) & 0xFFFFFFFF
        )
    return words[0] | words[1] << 32, ALL_BITS


@dataclass
class Expectation:
    registers: list[Register]
    mask: int | None  # of the scalar destination
    exec: int


def _origin(form: Form, wave: Wave, lane: int) -> tuple[bool, int | None]:
    """Whether a lane is written, and the lane that its first source comes from: None reads 0. DPP's masks take lanes
    out; so does a source that is off or does not exist, unless bound_ctrl is set."""
    on = bool(wave.exec >> lane & 1)
    if not form.dpp:
        return on, lane
    at = dpp_lane(form.dpp, lane)
    if at is not None and not wave.exec >> at & 1:
        at = None
    chosen = form.row_mask >> (lane >> 4) & form.bank_mask >> (lane >> 2 & 3) & 1
    return on and bool(chosen) and (form.bound_ctrl or at is not None), at


def _register(form: Form, op: Op, wave: Wave, lane: int, r: Any) -> Register:
    """The destination with the result of its lane."""
    kind, mode, old = op.results[0], Mode(wave.mode), wave.old[lane]
    above = ALL_BITS ^ 0xFFFFFFFF if width(kind) <= 32 else 0  # of what the kernels store; not the instruction's
    fmt = FORMATS.get(kind)
    if fmt:
        r = _finished(form, op, mode, fmt, r)
        if isinstance(r, Near):  # of a part of it nothing is known
            return (
                Register(old & above, ALL_BITS, r, fmt)
                if form.select in ("", "DWORD")
                else Register(old & above, above)
            )
    elif form.clamp and op.saturates:
        low, high = typed(1 << width(kind) - 1, kind), typed((1 << width(kind) - (kind[0] == "i")) - 1, kind)
        r = max(min(low, 0), min(high, r))
    if kind.endswith("x2"):
        (a, known_a), (b, known_b) = (_bits(kind, x) for x in r)
        bits, care = a | b << 16, known_a | known_b << 16
    else:
        bits, care = _bits(kind, r)
    bits, care = _merged(form, op, old, bits, care)
    return Register(bits | old & above, care | above)


def expectation(form: Form, op: Op, wave: Wave) -> Expectation:
    mode, mask, registers = Mode(wave.mode), 0, []
    for lane in range(LANES):
        old = Register(wave.old[lane])
        writes, at = _origin(form, wave, lane)
        if not writes:
            registers.append(old)
            continue
        if op.sources[0].endswith("x2"):
            move = form.mnemonic == "v_pk_mov_b32"
            bits, care = _pair_move(form, wave, lane) if move else _packed(form, op, wave, lane)
            above = ALL_BITS ^ 0xFFFFFFFF if width(op.results[0]) <= 32 else 0
            registers.append(Register(bits | wave.old[lane] & above, care | above))
            continue
        values = _values(form, op, wave, lane, at)
        if op.reads_result:
            fmt = FORMATS[op.results[0]]
            before = wave.old[lane] & (1 << fmt.bits) - 1
            values.append(fmt.flushed(before) if mode.flushes_inputs(fmt) else before)
        r = op.f(Lane(lane, mode), *values) if op.takes_lane else op.f(*values)
        if "mask" in op.results:
            r, bit = r if isinstance(r, tuple) else (None, r)
            mask |= bit << lane
        registers.append(old if op.results[0] == "mask" else _register(form, op, wave, lane, r))
    return Expectation(registers, mask if "mask" in op.results else None, mask if op.sets_exec else wave.exec)


def difference(form: Form, op: Op, wave: Wave, left: Left) -> str:
    """What is wrong; nothing where all is right."""
    e = expectation(form, op, wave)
    for lane, (register, actual) in enumerate(zip(e.registers, left.vectors, strict=True)):
        if not register.holds(actual):
            want = repr(register.near) if register.near else f"{register.value:016x} (bits {register.care:016x})"
            return (
                f"lane {lane}: {want} expected, got {actual:016x}; old {wave.old[lane]:x}, {_state(form, wave, lane)}"
            )
    masks = {"VCC": wave.mask, "s[40:41]": wave.old_scalar, "EXEC": e.exec}
    if e.mask is not None:
        masks["VCC" if form.vcc else "s[40:41]"] = e.mask
    for (name, expected), actual in zip(masks.items(), (left.vcc, left.scalar, left.exec), strict=True):
        if expected != actual:
            lane = ((expected ^ actual) & -(expected ^ actual)).bit_length() - 1
            return f"{name}: {expected:016x} expected, got {actual:016x}; lane {lane}: {_state(form, wave, lane)}"
    return "" if left.scc == wave.scc else "SCC has changed"


def _state(form: Form, wave: Wave, lane: int) -> str:
    sources = " ".join(f"{s[lane]:x}" for s in wave.sources[: len(form.operands)])
    return (
        f"sources {sources}, s[16:17] {wave.scalars[0]:x}, mask {wave.mask:016x}, EXEC {wave.exec:016x}, "
        f"MODE {wave.mode:03x}"
    )
