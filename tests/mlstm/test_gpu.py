# SPDX-License-Identifier: Apache-2.0
"""The fused kernels on a GPU: the whole table, and what runs only there. Without a GPU it is skipped.

`python tests/mlstm/test_gpu.py` runs it without pytest (support/gpu_runner.py says how), so nothing here imports pytest
before pytest itself calls.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    if find_spec("xlstm_hip") is None:  # not installed: a library built in place does
        sys.path.insert(0, str(ROOT / "python"))
    from support.gpu_runner import main

    sys.exit(main())


def pytest_generate_tests(metafunc: Any) -> None:
    import pytest
    import torch

    from support.gpu_checks import CHECKS
    from support.gpu_table import full_precision, rows

    name = next(x for x in ("check", "row") if x in metafunc.fixturenames)
    if torch.cuda.is_available():
        full_precision()
        everything = CHECKS if name == "check" else rows()
        params = [pytest.param(x, id=getattr(x, "__name__", str(x)), marks=pytest.mark.gpu) for x in everything]
    else:
        marks = (pytest.mark.gpu, pytest.mark.skip(reason="no GPU that torch can use"))
        params = [pytest.param(None, id="no GPU", marks=marks)]
    metafunc.parametrize(name, params)


def test_execution(check: Any) -> None:
    check("cuda")


def test_table(row: Any, report: Any) -> None:
    from support.gpu_table import measure

    measured, problems = measure(row, "cuda")
    report.add(f"{row.kernel}, GPU", row.dtype, row.case.name, measured)
    assert not problems, "\n".join(problems)
