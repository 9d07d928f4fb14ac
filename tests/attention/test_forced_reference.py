# SPDX-License-Identifier: Apache-2.0
"""Attention with XLSTM_HIP_BACKEND=reference: the tables of arguments again, against the truth."""

from __future__ import annotations

import pytest
import torch
from test_attention_table import RAGGED
from test_attention_table import ROWS as CASES

from support.attention.decode_rows import MLA_ROWS, ROWS, run_mla, run_row
from support.attention.problem import Case, check
from xlstm_hip.reference import attention_ops


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")


@pytest.mark.parametrize("case", CASES, ids=[str(n) for n in range(len(CASES))])
def test_row(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_all_kinds(causal: bool) -> None:
    check(Case(lengths=RAGGED, layout="packed", causal=causal, heads=(3, 3), dims=(40, 40)))


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_decoding(number: int) -> None:
    run_row(ROWS[number])


@pytest.mark.parametrize("number", range(len(MLA_ROWS)))
def test_mla(number: int) -> None:
    run_mla(MLA_ROWS[number])


def test_signatures_are_the_ops() -> None:
    names = [name for name in vars(attention_ops) if name.startswith("attention_")]
    assert len(names) == 5
    for name in names:
        function = getattr(attention_ops, name)
        schema = getattr(torch.ops.xlstm_hip, name).default._schema
        code = function.__code__
        assert list(code.co_varnames[: code.co_argcount]) == [argument.name for argument in schema.arguments]
