# SPDX-License-Identifier: Apache-2.0
"""Attention of AITER's wheel and of moonmath-ai, launched with the measured shapes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import aiter
import device
import moonmath
import timing
from measured import HEAD_DIM, Point
from tensors import array

SCALE = HEAD_DIM**-0.5
LONGEST = 8192  # keys that are run of moonmath's points, with all queries; more keys take time in proportion
DRAWN = 4096  # tokens whose values differ, of one sequence
INSTRUCTIONS = 1_200_000
# attention_forward<true, false, false>: tokens before heads
ATTEND = "_ZN12_GLOBAL__N_117attention_forwardILb1ELb0ELb0EEEvPK14__hip_bfloat16S3_S3_PS1_iifiPKsPsS6_fiPfiiPKi"


def drawn(batch: int, tokens: int, heads: int, seed: int) -> Tensor:
    """(B, S, H, 128) in bfloat16."""
    some = torch.randn(1, min(tokens, DRAWN), heads, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    return some.bfloat16().repeat(batch, math.ceil(tokens / DRAWN), 1, 1)[:, :tokens].contiguous()


# ---- the README of moonmath-ai: long sequences, of which at most LONGEST keys are run


def run_aiter(rounding: str, batch: int, heads: int, length: int) -> None:
    q, k, v = (drawn(batch, n, heads, s) for s, n in enumerate((length, min(length, LONGEST), min(length, LONGEST))))
    aiter.forward(rounding, q, k, v, SCALE)


def run_moonmath(rounding: str, batch: int, heads: int, length: int) -> None:
    """V as it is: how it lies in memory takes no other time."""
    keys = min(length, LONGEST)
    q, k, v = (drawn(batch, n, heads, s) for s, n in enumerate((length, keys, keys)))
    out = torch.empty_like(q)
    unused = [0, 0, 0, 0.0, 0, 0, 0, 0, 0]  # lists of blocks to skip, and parts of the keys
    arguments = [*map(array, (q, k, v, out)), length, keys, math.log2(math.e) * SCALE, heads, *unused]
    grid = (-(-length // moonmath.QUERIES), batch * heads)
    moonmath.module(rounding).launch(ATTEND, grid, 512, arguments)


def of_all_keys(p: Point, launch: timing.Launch, chip: dict[str, float]) -> tuple[float, float]:
    """Milliseconds and MHz: a workgroup's time in proportion to its keys. moonmath shares out the last round."""
    *_, length = p.shape
    rounds = launch.workgroups / chip["cus"]
    dealt = math.ceil(rounds) if p.family.startswith("AITER") else max(1.0, rounds)
    busy = launch.matrix_busy * math.ceil(rounds) / dealt
    mhz = min(chip["peak_mhz"], chip["matrix_mhz"] * busy ** -chip["matrix_power"])
    return dealt * launch.group_cycles * length / min(length, LONGEST) / mhz / 1000, mhz


# ---- AITER's own table


def run_table_forward(causal: bool, batch: int, heads: int, heads_kv: int, length: int) -> None:
    q, k, v = (drawn(batch, length, n, s) for s, n in enumerate((heads, heads_kv, heads_kv)))
    aiter.forward("causal_rtna" if causal else "rtna", q, k, v, SCALE)


def run_backward(accumulator: str, causal: bool, batch: int, heads: int, length: int) -> None:
    q, k, v, d_out = (drawn(batch, length, heads, s) for s in range(4))
    lse, delta = torch.full((batch, heads, length), math.log(length)), torch.zeros(batch, heads, length)
    aiter.backward(accumulator, "rtz", causal, q, k, v, d_out, lse, delta, SCALE)


def other_launches(p: Point, chip: dict[str, float]) -> float:
    """Milliseconds of backward's other launches, by their bytes: the output times its gradient, summed, and, where dq
    was added up in float32, its conversion."""
    accumulator, _, batch, heads, length = p.shape
    bytes_of_value = 2 + 2 + (4 + 2 if accumulator == "a32" else 0)
    return batch * heads * length * HEAD_DIM * bytes_of_value / chip["hbm_gb_a_second"] / 1e6


RUNS = {
    "AITER, forward": run_aiter,
    "moonmath, forward": run_moonmath,
    "AITER, forward, its table": run_table_forward,
    "AITER, causal forward, its table": run_table_forward,
    "AITER, backward, its table": run_backward,
    "AITER, causal backward, its table": run_backward,
}


def run(p: Point) -> None:
    with device.warn(*(check.name for check in device.checks())):
        RUNS[p.family](*p.shape)


def time_of(p: Point, launch: timing.Launch, chip: dict[str, float]) -> tuple[float, float]:
    if not p.family.endswith("table"):
        return of_all_keys(p, launch, chip)
    others = other_launches(p, chip) if "backward" in p.family else 0.0
    return launch.microseconds / 1000 + others, launch.mhz
