# SPDX-License-Identifier: Apache-2.0
"""Attention's backward pass as gfx942 code against the truth: every argument with every other, every kernel.

Forward runs on the CPU, so that what is measured here depends on no other GPU kernel. Truth and plain torch do too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import builds

sys.path.insert(0, str(builds.ROOT / "tests" / "attention"))

from pairs import pairwise  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
VALUES: dict[str, list[Any]] = {
    "dtype": DTYPES,
    "heads": [(2, 2), (4, 2), (3, 1)],
    "dims": [(64, 64), (128, 128), (80, 80), (5, 3), (192, 128), (256, 256), (48, 72)],
    "lengths": [((37, 70), (37, 70)), ((1, 150), (1, 90)), ((70, 33), (70, 33)), ((40, 40), (40, 11)), ((200, 200),)],
    "layout": ["dense", "strided", "packed"],
    "scale": [None, 0.3, -0.2],
    "causal": [False, True],
    "window": [(-1, -1), (9, 4), (3, -1), (-1, 0)],
    "softcap": [0.0, 2.0],
    "alibi": ["", "h", "bh"],
    "sink": [False, True],
    "dropout_p": [0.0, 0.2],
    "leftpad": [False, True],
    "unused": [False, True],
}


def is_fair(row: dict[str, Any]) -> bool:
    """Where scores reach 60, float32's lse is rounded by more than plain torch, which needs none, is wrong."""
    return not (row.get("dims") == (256, 256) and row.get("scale") == 0.3)


ROWS = pairwise(VALUES, is_fair)
# Plain kernels: the masks alone.
MASKS = {name: values for name, values in VALUES.items() if name not in ("softcap", "alibi", "dropout_p", "scale")}
PLAIN_ROWS = pairwise(MASKS | {"dtype": DTYPES[:2]}, lambda row: True)
RAGGED = ((3, 5), (0, 7), (41, 100), (6, 0), (33, 32), (0, 0), (1, 1))
_ran: set[str] = set()


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{n}-{str(row['dtype']).removeprefix('torch.')}" for n, row in enumerate(rows)]


def on_gpu(x: Any) -> Any:
    """A tensor with the same strides, in memory of its own that it shares with nothing."""
    if not isinstance(x, Tensor):
        return x
    whole = x.new_empty(0).set_(x.untyped_storage())
    return whole.to("cuda").as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.fixture
def problem(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """tests/attention/problem.py, with gradients from the GPU, twice the same bits."""
    import problem

    from poison import poisoned
    from xlstm_hip.attention import ops

    def backward(*arguments: Any) -> tuple[Tensor, ...]:
        moved = [on_gpu(x) for x in arguments]
        made, again = (OPS.attention_backward(*moved) for _ in range(2))
        for one, other in zip(made, again, strict=True):
            assert torch.equal(one.cpu().view(torch.uint8), other.cpu().view(torch.uint8))
        return tuple(x.cpu() for x in made)

    OPS = ops.OPS
    names = ("attention_forward", "attention_forward_probs")
    monkeypatch.setattr(ops, "OPS", SimpleNamespace(attention_backward=backward, **{n: getattr(OPS, n) for n in names}))
    with poisoned():
        yield problem


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_row(problem: ModuleType, row: dict[str, Any]) -> None:
    _ran.add(str(row))
    problem.check(problem.Case(**row))


@pytest.mark.parametrize("row", PLAIN_ROWS, ids=ids(PLAIN_ROWS))
def test_masks_alone(problem: ModuleType, row: dict[str, Any]) -> None:
    _ran.add(str(row))
    problem.check(problem.Case(**row))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_all_kinds(problem: ModuleType, dtype: torch.dtype, causal: bool) -> None:
    """Packed: empty sequences, queries without keys, more queries than keys."""
    problem.check(
        problem.Case(dtype=dtype, lengths=RAGGED, layout="packed", causal=causal, heads=(3, 3), dims=(40, 40))
    )


@pytest.mark.parametrize("planted", ["dq", "dk", "dv", "dsink"])
def test_a_wrong_result_fails(problem: ModuleType, planted: str) -> None:
    case = problem.Case(causal=True, sink=True, dropout_p=0.2)
    got = problem.our_results(case)
    problem.check(case, got)
    got[planted] = got[planted] * 1.0001
    with pytest.raises(AssertionError, match=planted):
        problem.check(case, got)


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    if any(str(row) not in _ran for row in (*ROWS, *PLAIN_ROWS)):
        pytest.skip("some of the tests above were not chosen")
    kernels = ("attention_gradients", "attention_delta", "sum_dsink", "sum_parts")
    held = {k.name for k in device.kernels() if any(name in k.name for name in kernels)}
    ran = {c.kernel.name for c in device.counters()}
    assert held, "the library holds no kernels"
    assert held <= ran, "never ran: " + ", ".join(sorted(held - ran))
