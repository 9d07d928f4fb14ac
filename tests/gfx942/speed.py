# SPDX-License-Identifier: Apache-2.0
"""How many wave instructions a second the interpreter runs on one core: plain vector code, and matrix products.

PYTHONPATH=build_backend:tests/amd:tests/gfx942/support python tests/gfx942/speed.py
"""

from __future__ import annotations

import time

import device
from assembly import kernel_text

ROUNDS = 20000
VECTOR = """
  v_add_f32 v1, v1, v2
  v_mul_f32 v4, v1, v2
  v_fma_f32 v5, v4, v2, v1
  v_fmac_f32 v3, v5, v2
  v_add_u32 v6, v0, v3
  v_lshl_add_u32 v7, v6, 2, v0
  v_cmp_gt_u32 vcc, v7, v6
  v_cndmask_b32 v8, v7, v6, vcc
  v_max_f32 v9, v1, v2
  v_and_b32 v10, v9, v8
"""
MATRIX = "  v_mfma_f32_16x16x16_bf16 v[12:15], v[16:17], v[18:19], v[12:15]\n" * 10


def program(body: str) -> str:
    registers = "".join(f"  v_mov_b32 v{r}, 1.0\n" for r in range(1, 20))
    head = f"{registers}  s_mov_b32 s8, {ROUNDS}\nround:\n"
    return head + body + "  s_sub_u32 s8, s8, 1\n  s_cmp_lg_u32 s8, 0\n  s_cbranch_scc1 round"


def per_second(body: str) -> float:
    module = device.Module(device.assemble(kernel_text(program(body), name="speed")))
    device.reset_counters()
    start = time.perf_counter()
    module.launch("speed", grid=1, block=64)
    seconds = time.perf_counter() - start
    (counted,) = device.counters()
    module.close()
    return sum(i.executed for i in counted.instructions) / seconds


if __name__ == "__main__":
    for name, body in (("plain vector code", VECTOR), ("16x16x16 bf16 products", MATRIX)):
        best = max(per_second(body) for _ in range(5))
        print(f"{name}: {best / 1e6:.1f} million wave instructions a second on one core")
