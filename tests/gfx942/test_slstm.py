# SPDX-License-Identifier: Apache-2.0
"""The recurrent cells' ops, their kernels run as gfx942 code: the table of support/cell_cases.py. Every kernel of
csrc/slstm that the library holds must have run.

Truth and plain torch run on the CPU.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
import torch

from builds import has_code
from kernels_ran import check_every_kernel_ran
from support.cell_shapes import Case

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Small ones; each number of units for which a kernel is made, with and without a matrix that stays in registers.
CASES = (
    Case(2, 5, 1, 32, states=True),
    Case(17, 4, 1, 64),
    Case(1, 5, 1, 96, bias=False),
    Case(3, 6, 1, 128, states=True),
    Case(2, 2, 2, 40, states=True),
    Case(1, 2, 1, 296),
    Case(1, 2, 1, 13, states=True),
    Case(1, 9, 2, 32, states=True, ends=(1, 5, 9)),
    Case(2, 5, 1, 32, forget_gate="exp", states=True),
    Case(2, 5, 1, 32, function="lstm", states=True),
    Case(2, 5, 1, 24, layout="strided"),
)
_ran: set[tuple[Case, torch.dtype]] = set()
ROWS = [row for row in itertools.product(CASES, DTYPES) if has_code(row[1])]


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


@pytest.mark.parametrize("case, dtype", ROWS, ids=lambda x: str(x).removeprefix("torch."))
def test_table(package: ModuleType, case: Case, dtype: torch.dtype) -> None:
    from support import cell_cases as cases

    problems = cases.measure(case, dtype, "cuda")
    assert not problems, "\n".join(problems)
    _ran.add((case, dtype))


def test_a_step_in_place(package: ModuleType) -> None:
    from xlstm_hip.slstm import slstm_step_interface

    torch.manual_seed(0)
    x, recurrent = torch.randn(3, 4, 2, 32).bfloat16(), torch.randn(4, 2, 32, 32).bfloat16()
    states = [torch.zeros(3, 2, 32).bfloat16(), *(torch.zeros(3, 2, 32) for _ in range(3))]
    want, _ = slstm_step_interface(x, recurrent, None, states)
    on_gpu = [s.to("cuda") for s in states]
    h, _ = slstm_step_interface(x.to("cuda"), recurrent.to("cuda"), None, on_gpu, in_place=True)
    assert on_gpu[0].cpu().equal(h.cpu())
    torch.testing.assert_close(h.cpu(), want, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.zeros(1, 2, 4, 1, 8, dtype=torch.float64), "x: expected float32, bfloat16 or float16 on a GPU"),
        (torch.zeros(1, 2, 4, 1, 520), "x: expected at most 512 units in a head on a GPU, got 520"),
    ],
)
def test_bad_input(package: ModuleType, x: Any, message: str) -> None:
    from xlstm_hip.slstm import slstm_interface

    units = x.shape[-1]
    with pytest.raises((TypeError, ValueError), match=message):
        slstm_interface(x.to("cuda"), torch.zeros(4, 1, units, units).to("cuda"))


def test_every_kernel_ran(device: ModuleType) -> None:
    if _ran != set(ROWS):
        pytest.skip("not all rows of the table ran")
    check_every_kernel_ran(device, "test_slstm.py")
