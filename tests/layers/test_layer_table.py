# SPDX-License-Identifier: Apache-2.0
"""Every layer on the CPU beside the float64 truth, and a planted error to see the table fail."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from support import layer_cases as cases
from support.layer_cases import CASES, Case
from support.representative import marked

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize(
    "case, dtype",
    marked(
        list(itertools.product(CASES, DTYPES)),
        lambda row: {"case": row[0].name, "dtype": row[1]},
        lambda row: f"{row[0]}-{str(row[1]).removeprefix('torch.')}",
    ),
)
def test_layers(case: Case, dtype: torch.dtype) -> None:
    problems = cases.measure(case, dtype, "cpu", "cpu")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads: int) -> None:
    case = next(c for c in CASES if c.name == "add_rms_norm 19x1030")
    inputs, before = case.arguments(torch.float32), torch.get_num_threads()
    torch.set_num_threads(1)
    alone = cases.results(case.fused, inputs)
    torch.set_num_threads(threads)
    try:
        assert all(x.equal(y) for x, y in zip(cases.results(case.fused, inputs), alone, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["rms_norm 33x512", "head_norm_gate 2x3x4x32", "swiglu 7x1003"])
def test_the_table_sees_a_planted_error(name: str) -> None:
    """The norm's sum without one feature; a gradient a thousandth too large."""
    case = next(c for c in CASES if c.name == name)
    inputs = case.arguments(torch.float32)
    actual = cases.results(case.fused, inputs)
    assert not cases.judge(case, torch.float32, actual)
    planted = [*actual[:-1], actual[-1] * (1 + 1e-3)]
    assert cases.judge(case, torch.float32, planted)

    def short(x: torch.Tensor, *options: Any) -> Any:
        return case.fused(torch.cat((x[..., :-1], x[..., -1:] * (1 + 1e-4)), -1), *options)

    assert cases.judge(case, torch.float32, cases.results(replace(case, fused=short).fused, inputs))
