# SPDX-License-Identifier: Apache-2.0
"""The number of waves and blocks that an AMD chip holds at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Registers:
    """The limits of the waves of a SIMD: attention.md's rules, which llc's own remarks follow."""

    lanes: int  # of a wave
    file: int  # registers of a lane in a SIMD, for all of its waves
    granule: int
    most_waves: int

    def waves(self, vgprs: int) -> int:
        taken = -(-max(vgprs, 1) // self.granule) * self.granule
        return min(self.most_waves, self.file // taken)


# CDNA: 512 arch and acc registers together. RDNA3, RDNA4: 1536. Four SIMDs share LDS: a CU's 64 KB, or a WGP's 128 KB.
FAMILIES = {"cdna": Registers(64, 512, 8, 8), **dict.fromkeys(("rdna", "rdna4"), Registers(32, 1536, 24, 16))}
SIMDS = 4
SHARED_LDS = {"cdna": 64 << 10, "rdna": 128 << 10, "rdna4": 128 << 10}
LDS_BYTES = 64 << 10  # that a block may have, on all of them


def waves_and_blocks(family: str, threads: int, vgprs: int, lds: int) -> tuple[int, int]:
    """The waves of a SIMD, by registers, and the blocks of a CU or WGP, by registers and LDS."""
    registers = FAMILIES[family]
    waves = registers.waves(vgprs)
    by_lds = SHARED_LDS[family] // lds if lds else SIMDS * registers.most_waves
    return waves, min(waves * SIMDS // (threads // registers.lanes), by_lds)
