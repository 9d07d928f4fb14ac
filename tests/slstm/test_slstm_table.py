# SPDX-License-Identifier: Apache-2.0
"""The sLSTM and the LSTM on the CPU beside the float64 truth, and planted errors to see the table fail."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from support import cell_cases as cases
from support.cell_cases import CASES
from support.cell_shapes import Case
from support.representative import marked

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize(
    "case, dtype",
    marked(
        list(itertools.product(CASES, DTYPES)),
        lambda row: {
            "case": row[0],
            "cell": (row[0].function, row[0].forget_gate),
            "states": row[0].states,
            "packed": bool(row[0].ends),
            "dtype": row[1],
        },
        lambda row: f"{row[0]}-{str(row[1]).removeprefix('torch.')}",
        pairs_of=("cell", "states", "packed", "dtype"),
    ),
)
def test_cells(case: Case, dtype: torch.dtype) -> None:
    problems = cases.measure(case, dtype, "cpu")
    assert not problems, "\n".join(problems)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cells_on_a_gpu(case: Case, dtype: torch.dtype) -> None:
    problems = cases.measure(case, dtype, "cuda")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("case", [CASES[2], CASES[13], CASES[15]], ids=str)
def test_the_table_sees_a_planted_error(case: Case) -> None:
    """A unit that reads itself a thousandth too strongly; a stabiliser without its gradient."""
    fused = cases.fused(case)

    def too_strong(x: Any, recurrent: Any, *rest: Any) -> Any:
        factor = torch.ones_like(recurrent)
        factor[:, :, 3, 3] = 1.001
        return fused(x, recurrent * factor, *rest)

    def without_gradient(*arguments: Any) -> Any:
        h, last = fused(*arguments)
        return h, (*last[:-1], last[-1].detach() + 0 * arguments[0].sum().to(last[-1].dtype))

    for planted in (too_strong, without_gradient):
        assert cases.judge(case, torch.float32, cases.results(planted, case, torch.float32, "cpu"))
