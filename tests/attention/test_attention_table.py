# SPDX-License-Identifier: Apache-2.0
"""Every argument of attention with every other, forward and backward, against the truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.attention.pairs import pairwise
from support.attention.problem import Case, check, errors, our_results, plain_results, true_results, variant
from support.representative import marked

VALUES: dict[str, list[Any]] = {
    "dtype": [torch.float32, torch.bfloat16, torch.float16, torch.float64],
    "heads": [(2, 2), (4, 2), (6, 1)],
    "dims": [(32, 32), (64, 64), (80, 80), (5, 3), (48, 33), (192, 128)],
    "lengths": [((37, 70), (37, 70)), ((1, 150), (1, 90)), ((70, 33), (70, 33)), ((40, 40), (40, 11)), ((130, 130),)],
    "layout": ["dense", "strided", "packed"],
    "scale": [None, 0.3],
    "causal": [False, True],
    "window": [(-1, -1), (9, 4), (3, -1), (-1, 0)],
    "softcap": [0.0, 2.0],
    "alibi": ["", "h", "bh"],
    "sink": [False, True],
    "dropout_p": [0.0, 0.2],
    "leftpad": [False, True],
    "unused": [False, True],
    "block_size": [None, 32, 64, 256],
    "backward_plan": [
        (),
        (("block_size", 32), ("parts", 3)),
        (("block_size", 128), ("row_panels", 1)),
        (("block_size", 256), ("row_panels", 8), ("parts", 7)),
    ],
}
ROWS = [Case(**row) for row in pairwise(VALUES, lambda row: True)]


@pytest.mark.parametrize(
    "case", marked([(c,) for c in ROWS], lambda row: vars(*row), lambda row: str(ROWS.index(*row)))
)
def test_row(case: Case) -> None:
    check(case)


RAGGED = ((3, 5), (0, 7), (41, 100), (6, 0), (33, 32), (0, 0), (1, 1))


@pytest.mark.parametrize("dtype", VALUES["dtype"], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_all_kinds(dtype: torch.dtype, causal: bool) -> None:
    """Packed: empty sequences, queries without keys, more queries than keys."""
    check(Case(dtype=dtype, lengths=RAGGED, layout="packed", causal=causal, heads=(3, 3), dims=(40, 40)))


@pytest.mark.parametrize("dims", [(256, 256), (128, 128), (96, 96), (1, 1), (16, 256)])
def test_head_dims(dims: tuple[int, int]) -> None:
    check(Case(dims=dims, causal=True, heads=(2, 1)))


def test_the_reference_is_the_truth() -> None:
    for case in ROWS[:: max(1, len(ROWS) // 12)]:
        case = variant(case, dtype=torch.float64)
        actual = errors(plain_results(case, torch.float64), true_results(case))
        assert max(actual.values()) < 1e-13, case


@pytest.mark.parametrize("planted", ["out", "dq", "dk", "dv", "dsink", "lse"])
def test_a_wrong_result_fails(planted: str) -> None:
    case = Case(causal=True, sink=True, dropout_p=0.2)
    check(case)
    actual = our_results(case)
    actual[planted] = actual[planted] * 1.0001
    with pytest.raises(AssertionError, match=planted):
        check(case, actual)
