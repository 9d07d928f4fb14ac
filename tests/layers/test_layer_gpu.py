# SPDX-License-Identifier: Apache-2.0
"""The layers on a GPU: the table, many rows, graphs replayed with new data, another stream, offsets beyond 32 bits.
Without a GPU it is skipped.

`python tests/layers/test_layer_gpu.py` runs it without pytest, so nothing here imports pytest before pytest calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import SkipTest

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    if find_spec("xlstm_hip") is None:  # not installed: a library built in place does
        sys.path.insert(0, str(ROOT / "python"))

import torch  # noqa: E402

from support import layer_cases as cases  # noqa: E402
from xlstm_hip import layers  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGE = 2**31 + 2**20  # elements


def _rows() -> Iterator[tuple[cases.Case, torch.dtype]]:
    yield from ((case, dtype) for case in cases.CASES for dtype in DTYPES)


def _by_name(name: str) -> cases.Case:
    return next(case for case in cases.CASES if case.name == name)


def rows_that_are_not_finite() -> None:
    for actual, want in cases.not_finite(torch.float32, "cuda"):
        torch.testing.assert_close(actual.cpu(), want, equal_nan=True)


def many_rows() -> None:
    for dtype in DTYPES:
        for many, few in cases.of_many_rows(dtype, "cuda"):
            assert torch.equal(many, few), dtype


def ones(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.ones_like(x) for x in outputs]


def a_graph_replayed_with_new_data() -> None:
    """Forward and backward of every layer, captured once."""
    for name in ("add_rms_norm 2x9x64", "head_norm_gate 2x3x4x32", "swiglu 5x64, fused", "soft_cap 9x5000 at 30"):
        case = _by_name(name)
        static = case.arguments(torch.bfloat16, "cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            cases.results(case.fused, static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = cases.results(case.fused, static, cotangents=ones)
        for x in static:
            x.copy_(torch.randn_like(x))
        graph.replay()
        for x, y in zip(captured, cases.results(case.fused, static, cotangents=ones), strict=True):
            assert torch.equal(x, y), name


def another_stream() -> None:
    """Results of a stream are used on the same stream, without a wait for any other."""
    x, w = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, device="cuda")
    want = layers.rms_norm(x * 2, w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        actual = layers.rms_norm(x * 2, w)
    side.synchronize()
    assert torch.equal(actual, want)


def offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 5 * 2 * LARGE:
        raise SkipTest("too little memory")
    width = 4096
    x = torch.randn(LARGE // width, width, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    for result, last in (
        (layers.rms_norm(x, w), layers.rms_norm(x[-3:], w)),
        (layers.soft_cap(x, 2.0), layers.soft_cap(x[-3:], 2.0)),
    ):
        assert torch.equal(result[-3:], last)
        del result


CHECKS = (
    rows_that_are_not_finite,
    many_rows,
    a_graph_replayed_with_new_data,
    another_stream,
    offsets_beyond_32_bits,
)


def pytest_generate_tests(metafunc: Any) -> None:
    import pytest

    name = next(x for x in ("check", "row") if x in metafunc.fixturenames)
    if torch.cuda.is_available():
        everything = {
            "check": {check.__name__: check for check in CHECKS},
            "row": {f"{case}-{str(dtype).removeprefix('torch.')}": (case, dtype) for case, dtype in _rows()},
        }
        params = [pytest.param(x, id=text, marks=pytest.mark.gpu) for text, x in everything[name].items()]
    else:
        marks = (pytest.mark.gpu, pytest.mark.skip(reason="no GPU that torch can use"))
        params = [pytest.param(None, id="no GPU", marks=marks)]
    metafunc.parametrize(name, params)


def test_execution(check: Any) -> None:
    check()


def test_table(row: Any) -> None:
    from support.gpu_table import full_precision

    full_precision()
    case, dtype = row
    problems = cases.measure(case, dtype, "cuda", "cuda")
    assert not problems, "\n".join(problems)


def main() -> int:
    if not torch.cuda.is_available():
        print("left out: no GPU that torch can use")
        return 0
    failed = 0
    runs: list[tuple[str, Callable[[], Any]]] = [(check.__name__.replace("_", " "), check) for check in CHECKS]
    runs += [(f"{case}, {dtype}", partial(test_table, (case, dtype))) for case, dtype in _rows()]
    for name, call in runs:
        try:
            call()
        except SkipTest as reason:
            print(f"left out: {name}: {reason}")
        except Exception as error:  # every one has its say
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}"[:1000], flush=True)
    print(f"{len(runs)} done, {failed} failed, on {torch.cuda.get_device_name()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
