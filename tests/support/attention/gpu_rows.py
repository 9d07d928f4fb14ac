# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of arguments for a GPU, and how one is run there: poisoned memory, twice with the same bits, held
to the truth. Nothing here needs pytest."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from support.attention.pairs import ON_A_GPU, RAGGED, pairwise
from support.attention.problem import Case, check, our_results, variant
from support.poison import poisoned
from xlstm_hip import _native

HALF = (torch.bfloat16, torch.float16)
DTYPES = (*HALF, torch.float32)

# Every kernel of the forward pass: each class of head dims with and without what bends scores, in lengths of several
# tiles and blocks of rows, whole and not. The tables' rows are smaller and cross everything else.
CLASSES = ((64, 64), (128, 128), (192, 128), (256, 256))
LENGTHS = (((150, 300),), ((70, 64), (3, 200)))


Device = str | tuple[str, int, int]  # as _native knows it: a name, or arch, compute units and bytes of LDS


def key_tile(device: Device, case: Case) -> int:
    """The one size of a key tile that the case's kernel has."""
    (hq, hk), (d, dv) = case.heads, case.dims
    bytes_ = torch.finfo(case.dtype).bits // 8
    queries, keys = (max(x) for x in zip(*case.lengths, strict=True))
    bends = bool(case.softcap or case.alibi or case.dropout_p)
    plan = _native.plan_attention_gpu(
        device, len(case.lengths), hq, hk, queries, keys, d, dv, bytes_, has_score_mod=bends
    )
    return int(plan["keys"])


def class_rows() -> Iterator[Case]:
    for dims in CLASSES:
        for dtype in DTYPES:
            for lengths in LENGTHS:
                yield Case(dtype, (4, 2), dims, lengths, layout="packed", causal=True)
            yield Case(dtype, (2, 2), dims, LENGTHS[0], softcap=3.0, alibi="h", dropout_p=0.2, sink=True)


VALUES = {
    "dtype": list(DTYPES),
    "heads": [(2, 2), (4, 2), (6, 1)],
    "dims": [(32, 32), (64, 64), (80, 80), (5, 3), (48, 33), (192, 128)],
    "lengths": [((37, 70), (37, 70)), ((1, 150), (1, 90)), ((70, 33), (70, 33)), ((40, 40), (40, 11)), ((130, 130),)],
    **ON_A_GPU,
    "block_size": [None, -1],  # -1: the kernel's own
    "backward_plan": [(), (("parts", 1),), (("parts", 3),), (("common_schedule", 1),)],
}


def filling_rows() -> Iterator[Case]:
    """Heads enough to fill a chip: Hopper's own backward kernels are for blocks of keys that do."""
    for dims in ((64, 64), (128, 128), (40, 40)):
        for dtype in HALF:
            yield Case(dtype, (96, 48), dims, ((150, 300), (150, 300)), causal=True)
            yield Case(dtype, (64, 64), dims, ((300, 140), (300, 140)), window=(50, 20))
            yield Case(dtype, (96, 32), dims, ((70, 300), (3, 200), (260, 0), (140, 150)), "packed", causal=True)
    for dims in ((128, 128), (40, 64), (64, 128)):
        full = ((150, 300), (150, 300))
        yield Case(torch.bfloat16, (48, 48), dims, full, leftpad=True, unused=True, sink=True)
        yield Case(torch.bfloat16, (48, 48), dims, full, layout="strided", scale=-0.1, window=(60, -1))
        yield Case(torch.bfloat16, (48, 48), dims, ((40, 0), (40, 0)))


def rows(device: Device) -> Iterator[Case]:
    yield from class_rows()
    if device == "H200":
        yield from filling_rows()
    for row in pairwise(VALUES, lambda row: True):
        case = Case(**row)
        yield variant(case, block_size=key_tile(device, case)) if case.block_size else case
    for dtype in DTYPES:
        for causal in (False, True):
            yield Case(dtype, (3, 3), (40, 40), RAGGED, "packed", causal=causal)


def measure(case: Case, device: str, backward: bool) -> None:
    with poisoned():
        actual = our_results(case, device, backward)
        again = our_results(case, device, backward)
    check(case, actual, device)
    for name, x in actual.items():
        assert torch.equal(x.nan_to_num(), again[name].nan_to_num()), f"{name}: other bits the second time"
