# SPDX-License-Identifier: Apache-2.0
"""The v_mfma instructions, what the bits of their elements mean, and which element a lane's register holds: from the
register's side, as AMD's matrix instruction calculator prints it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from builds import CHIP
from wave_programs import WAVE

Decode = Callable[[np.ndarray], np.ndarray]


def of_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def of_fnuz(x: np.ndarray, exponent_bits: int) -> np.ndarray:
    fraction_bits, bias = 7 - exponent_bits, 1 << (exponent_bits - 1)
    x = x.astype(np.int64)
    fraction, exponent = x & ((1 << fraction_bits) - 1), (x & 127) >> fraction_bits
    size = np.where(exponent > 0, fraction + (1 << fraction_bits), fraction) * 2.0 ** (
        np.maximum(exponent, 1) - bias - fraction_bits
    )
    return np.where(x == 128, np.nan, np.where(x & 128, -size, size)).astype(np.float32)


def of_ocp(x: np.ndarray, exponent_bits: int) -> np.ndarray:
    """gfx950's bytes: e4m3, and the upper half of a 16-bit float."""
    x = np.asarray(x).astype(np.int64)
    if exponent_bits == 5:
        return (x << 8).astype(np.uint16).view(np.float16).astype(np.float32)
    exponent, fraction = x >> 3 & 15, x & 7
    size = np.where(exponent > 0, fraction + 8, fraction) * 2.0 ** (np.maximum(exponent, 1) - 10)
    return np.where(x & 127 == 127, np.nan, np.where(x & 128, -size, size)).astype(np.float32)


of_byte, ONE_OF_BYTES = (of_ocp, (0x38, 0x3C)) if CHIP == "gfx950" else (of_fnuz, (0x40, 0x40))


def of_xf32(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.uint32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


@dataclass(frozen=True)
class Kind:
    bits: int
    decode: Decode
    examples: np.ndarray  # bits of small values whose sums of products are exact in any order


def _f16(*values: float) -> np.ndarray:
    return np.array(values, np.float16).view(np.uint16)


SMALL = (0.0, 1.0, -1.0, 2.0, -3.0, 0.5, 4.0, -0.25)
FP8 = np.array([k for k in range(256) if k & 127 in (0, 0x38, 0x40, 0x44, 0x48, 0x30, 0x4C) and k != 128], np.uint8)
BF8 = np.array([k for k in range(256) if k & 127 in (0, 0x3C, 0x40, 0x42, 0x44, 0x3E) and k != 128], np.uint8)
KINDS = {
    "f16": Kind(16, lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32), _f16(*SMALL)),
    "bf16": Kind(16, of_bf16, (np.array(SMALL, np.float32).view(np.uint32) >> 16).astype(np.uint16)),
    "f32": Kind(32, lambda x: x.astype(np.uint32).view(np.float32), np.array(SMALL, np.float32).view(np.uint32)),
    "xf32": Kind(32, of_xf32, np.array(SMALL, np.float32).view(np.uint32)),
    "fp8": Kind(8, lambda x: of_byte(x, 4), FP8),
    "bf8": Kind(8, lambda x: of_byte(x, 5), BF8),
    "i8": Kind(8, lambda x: x.astype(np.uint8).view(np.int8).astype(np.int32), np.arange(256, dtype=np.uint8)),
}


@dataclass(frozen=True)
class Form:
    mnemonic: str
    side: int
    k: int
    blocks: int
    a: str
    b: str
    cycles: int

    @property
    def out(self) -> np.dtype:
        return np.dtype(np.int32 if self.a == "i8" else np.float32)

    @property
    def label(self) -> str:
        """The same for all chips: 4x4x4_16b_f16, 16x16x32_fp8_bf8."""
        blocks = f"_{self.blocks}b" if self.blocks > 1 else ""
        kinds = f"_{self.a}_{self.b}" if self.a in ("fp8", "bf8") else f"_{self.a}"
        return f"{self.side}x{self.side}x{self.k}{blocks}{kinds}"

    @property
    def flushes(self) -> bool:
        """gfx90a takes denormals of 16-bit floats, and of what they are added to, for 0."""
        return CHIP == "gfx90a" and self.a in ("f16", "bf16")

    @property
    def lanes_move(self) -> bool:
        """blgp is legal."""
        return CHIP == "gfx90a" or self.blocks > 1 or self.a == "f32"

    def per_lane(self) -> int:
        return self.side * self.k * self.blocks // WAVE

    def outputs(self) -> int:
        return self.side * self.side * self.blocks // WAVE


def cdna2_forms(name: str, kind: str, k: int) -> list[Form]:
    """k: of the one block of 32 by 32."""
    shapes = ((32, k, 1, 64), (16, 2 * k, 1, 32), (32, k // 2, 2, 64), (16, k // 2, 4, 32), (4, k // 2, 16, 8))
    return [
        Form(f"v_mfma_{'i' if kind == 'i8' else 'f'}32_{side}x{side}x{n}{name}", side, n, blocks, kind, kind, cycles)
        for side, n, blocks, cycles in shapes
    ]


def halves(kind: str) -> list[Form]:
    return [
        Form(f"v_mfma_f32_16x16x16_{kind}", 16, 16, 1, kind, kind, 16),
        Form(f"v_mfma_f32_32x32x8_{kind}", 32, 8, 1, kind, kind, 32),
        Form(f"v_mfma_f32_4x4x4_16b_{kind}", 4, 4, 16, kind, kind, 8),
        Form(f"v_mfma_f32_16x16x4_4b_{kind}", 16, 4, 4, kind, kind, 32),
        Form(f"v_mfma_f32_32x32x4_2b_{kind}", 32, 4, 2, kind, kind, 64),
    ]


CDNA2 = [
    *cdna2_forms("f32", "f32", 2),
    *cdna2_forms("f16", "f16", 8),
    *cdna2_forms("bf16", "bf16", 4),
    *cdna2_forms("bf16_1k", "bf16", 8),
    *cdna2_forms("i8", "i8", 8),
]
CDNA3 = [
    *halves("f16"),
    *halves("bf16"),
    Form("v_mfma_f32_16x16x4_f32", 16, 4, 1, "f32", "f32", 32),
    Form("v_mfma_f32_32x32x2_f32", 32, 2, 1, "f32", "f32", 64),
    Form("v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, "f32", "f32", 8),
    Form("v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, "f32", "f32", 32),
    Form("v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, "f32", "f32", 64),
    Form("v_mfma_f32_16x16x8_xf32", 16, 8, 1, "xf32", "xf32", 16),
    Form("v_mfma_f32_32x32x4_xf32", 32, 4, 1, "xf32", "xf32", 32),
    *(Form(f"v_mfma_f32_16x16x32_{a}_{b}", 16, 32, 1, a, b, 16) for a in ("fp8", "bf8") for b in ("fp8", "bf8")),
    *(Form(f"v_mfma_f32_32x32x16_{a}_{b}", 32, 16, 1, a, b, 32) for a in ("fp8", "bf8") for b in ("fp8", "bf8")),
    Form("v_mfma_i32_16x16x32_i8", 16, 32, 1, "i8", "i8", 16),
    Form("v_mfma_i32_32x32x16_i8", 32, 16, 1, "i8", "i8", 32),
    Form("v_mfma_i32_4x4x4_16b_i8", 4, 4, 16, "i8", "i8", 8),
    Form("v_mfma_i32_16x16x4_4b_i8", 16, 4, 4, "i8", "i8", 32),
    Form("v_mfma_i32_32x32x4_2b_i8", 32, 4, 2, "i8", "i8", 64),
]
CDNA4 = [
    *(form for form in CDNA3 if form.a != "xf32"),
    *(Form(f"v_mfma_f32_16x16x32_{kind}", 16, 32, 1, kind, kind, 16) for kind in ("f16", "bf16")),
    *(Form(f"v_mfma_f32_32x32x16_{kind}", 32, 16, 1, kind, kind, 32) for kind in ("f16", "bf16")),
    Form("v_mfma_i32_16x16x64_i8", 16, 64, 1, "i8", "i8", 16),
    Form("v_mfma_i32_32x32x32_i8", 32, 32, 1, "i8", "i8", 32),
]
FORMS = {"gfx90a": CDNA2, "gfx942": CDNA3, "gfx950": CDNA4}[CHIP]
BY_LABEL = {form.label: form for form in FORMS}


# ---- where elements lie: of a lane and one of its elements


def input_index(form: Form) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Block, row of A (or column of B) and k, of each [element, lane]."""
    n = form.per_lane()
    element, lane = np.meshgrid(np.arange(n), np.arange(WAVE), indexing="ij")
    groups = lane // form.side
    steps = form.k // n
    return groups // steps, lane % form.side, n * (groups % steps) + element


def output_index(form: Form) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Block, row and column of D, of each [register, lane]."""
    register, lane = np.meshgrid(np.arange(form.outputs()), np.arange(WAVE), indexing="ij")
    if form.side == 4:
        return lane // 4, register % 4, lane % 4
    if form.side == 16:
        return register // 4, 4 * (lane // 16) + register % 4, lane % 16
    return register // 16, 8 * (register % 16 // 4) + 4 * (lane // 32) + register % 4, lane % 32
