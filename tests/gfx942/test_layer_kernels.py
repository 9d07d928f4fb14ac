# SPDX-License-Identifier: Apache-2.0
"""The layers' ops, their kernels run as gfx942 code: the table of support/layer_cases.py, twice for the same bits.
Every kernel of csrc/layer that the library holds must have run.

Truth and plain torch run on the CPU.
"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from builds import has_code
from kernels_ran import check_every_kernel_ran

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ran: set[torch.dtype] = set()


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_table(package: ModuleType, dtype: torch.dtype) -> None:
    from support import layer_cases as cases

    problems = [f"{case}: {problem}" for case in cases.CASES for problem in cases.measure(case, dtype, "cuda", "cpu")]
    assert not problems, "\n".join(problems)
    _ran.add(dtype)


def test_targets_out_of_range_have_no_loss(package: ModuleType) -> None:
    """The CPU raises; a GPU cannot, as nothing is read back."""
    from xlstm_hip import layers

    targets = torch.tensor([1, 7, -1, -100])
    loss = layers.capped_cross_entropy(torch.zeros(4, 7).to("cuda"), targets.to("cuda"), None, reduction="none").cpu()
    assert loss.isnan().tolist() == [False, True, True, False]


def test_rows_that_are_not_finite(package: ModuleType) -> None:
    from support import layer_cases as cases

    for actual, want in cases.not_finite(torch.float32, "cuda"):
        torch.testing.assert_close(actual.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_many_rows(package: ModuleType, dtype: torch.dtype) -> None:
    from support import layer_cases as cases

    for many, few in cases.of_many_rows(dtype, "cuda"):
        assert many.equal(few)


def test_float64_takes_plain_torch(package: ModuleType) -> None:
    from xlstm_hip import layers
    from xlstm_hip.layers.ops import OPS

    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(layers.swiglu(x.to("cuda"), x.to("cuda")).cpu(), layers.swiglu(x, x))
    with pytest.raises(RuntimeError, match="gate: expected float32, bfloat16 or float16 on a GPU, got float64"):
        OPS.swiglu(x.to("cuda"), x.to("cuda"))


def test_every_kernel_ran(device: ModuleType) -> None:
    if _ran != set(filter(has_code, DTYPES)):
        pytest.skip("not all dtypes of the table ran")
    check_every_kernel_ran(device, "test_layer_kernels.py")
