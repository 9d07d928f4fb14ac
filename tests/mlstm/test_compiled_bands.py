# SPDX-License-Identifier: Apache-2.0
"""The band schedule and its threads, with steps that are not compiled: what is tested is the order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support.compiled_kernels import SCHEDULE, SIZES, check, make
from support.reference import doubled, outputs_and_gradients, truth
from xlstm_hip import mlstm_interface
from xlstm_hip._core import plans
from xlstm_hip.mlstm.compiled import (
    bands,
    chunk,
    mlstm_chunkwise__queued_compiled_steps,
    queued,
)


class Uncompiled:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.warm = function

    def __call__(self, *args: Any) -> Any:
        return self.warm(*args)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "_step", Uncompiled(chunk.chunk_step))
    monkeypatch.setattr(queued, "_step_backward", Uncompiled(chunk.chunk_step_backward))
    monkeypatch.setattr(queued, "_compiled_for", set())


def band_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("xlstm_hip-band")]


@pytest.mark.parametrize(
    ("sizes", "chunk_size", "heads_per_band", "workers"),
    [
        ((2, 3, 37, 5, 6), 8, 2, 2),
        ((1, 5, 32, 4, 4), 8, 2, 3),
        ((2, 4, 7, 3, 5), 32, None, None),
        ((1, 1, 1, 4, 3), 32, 3, 5),
        ((1, 3, 5, 4, 4), 1, 1, 1),
        ((2, 7, 12, 3, 4), 5, None, 3),
    ],
)
def test_any_schedule_gives_the_same(
    uncompiled: None, sizes: tuple[int, ...], chunk_size: int, heads_per_band: int | None, workers: int | None
) -> None:
    options = {"chunk_size": chunk_size, "heads_per_band": heads_per_band, "workers": workers}
    check(mlstm_chunkwise__queued_compiled_steps, *make(*sizes, dtype=torch.float64), **options)
    check(mlstm_chunkwise__queued_compiled_steps, *make(*sizes, dtype=torch.float64, states=False), **options)
    assert band_threads() == []


@pytest.mark.parametrize("sizes", [(3, 6, 4, 5), (2, 1, 3, 2), (1, 9, 2, 2)])
@pytest.mark.parametrize("gates", [1.0, 5.0])
def test_the_backward_step_is_the_gradient_of_the_step(sizes: tuple[int, ...], gates: float) -> None:
    n, length, dqk, dhv = sizes
    rng = torch.Generator().manual_seed(n)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    inputs = [random(n, length, dqk), random(n, length, dqk), random(n, length, dhv)]
    inputs += [gates * random(n, length), gates * random(n, length)]
    inputs += [random(n, dqk, dhv), random(n, dqk), gates * random(n, 1)]
    inputs = [x.requires_grad_() for x in inputs]
    eps = torch.tensor(0.1, dtype=torch.float64)  # large, so that its own gradient through m is seen
    outputs = chunk.chunk_step(*inputs, eps)
    cotangents = [random(*x.shape) for x in outputs]
    expected = torch.autograd.grad(outputs, inputs, cotangents)
    with torch.no_grad():
        actual = chunk.chunk_step_backward(*inputs, eps, *cotangents)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_gradcheck(uncompiled: None) -> None:
    inputs, _ = make(1, 3, 7, 2, 3, torch.float64)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        options = {"return_last_states": True, "chunk_size": 3, **SCHEDULE}
        h, states = mlstm_chunkwise__queued_compiled_steps(*tensors, **options)
        return h, *states

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in inputs.values()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(uncompiled: None, dtype: torch.dtype) -> None:
    check(mlstm_chunkwise__queued_compiled_steps, *make(2, 3, 20, 4, 6, dtype), chunk_size=8)


def test_strides_inference_mode_and_autocast(uncompiled: None) -> None:
    inputs, _ = make(*SIZES)
    plain = mlstm_chunkwise__queued_compiled_steps(**inputs, **SCHEDULE)
    strided = inputs | {name: inputs[name].transpose(1, 2).contiguous().transpose(1, 2) for name in "qkvif"}
    assert torch.equal(mlstm_chunkwise__queued_compiled_steps(**strided, **SCHEDULE), plain)
    with torch.inference_mode():
        inference = {name: x.clone() for name, x in inputs.items()}
        assert torch.equal(mlstm_chunkwise__queued_compiled_steps(**inference, **SCHEDULE), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, states = mlstm_chunkwise__queued_compiled_steps(**inputs, return_last_states=True, **SCHEDULE)
    assert h.dtype == torch.bfloat16 and all(x.dtype == torch.float32 for x in states)


def test_nan_stays_in_its_head_and_its_future(uncompiled: None) -> None:
    inputs, _ = make(1, 4, 20, 4, 4)
    clean = mlstm_chunkwise__queued_compiled_steps(**inputs, chunk_size=8, **SCHEDULE)
    inputs["k"][0, 1, 11, 2] = torch.nan
    h = mlstm_chunkwise__queued_compiled_steps(**inputs, chunk_size=8, **SCHEDULE)
    assert h[0, 1, 11:].isnan().all()
    h[0, 1, 11:] = clean[0, 1, 11:]
    torch.testing.assert_close(h, clean)


def test_strong_gates_stay_finite(uncompiled: None) -> None:
    inputs, cotangents = make(1, 2, 24, 4, 4)
    for i, f in ((-300.0, -300.0), (60.0, -60.0), (-60.0, 60.0), (60.0, 60.0)):
        inputs["i"], inputs["f"] = torch.full((1, 2, 24), i), torch.full((1, 2, 24), f)
        outputs, gradients = outputs_and_gradients(
            mlstm_chunkwise__queued_compiled_steps, inputs, cotangents, return_last_states=True, chunk_size=8
        )
        expected, _ = truth(**doubled(inputs))
        assert all(x.isfinite().all() for x in (*outputs.values(), *gradients.values())), (i, f)
        torch.testing.assert_close(outputs["h"].double(), expected, rtol=1e-4, atol=1e-6)


def test_bands_run_side_by_side_and_in_order() -> None:
    schedule = bands.plan(heads=7, length=40, chunk_size=8, heads_per_band=2, workers=3)
    assert [(b.start, b.stop) for b in schedule.bands] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    log: list[tuple[int, int]] = []
    at_work: list[int] = []
    together = []
    met = threading.Barrier(3, timeout=30)

    def advance(band: int, chunk: int) -> None:
        assert band not in at_work
        at_work.append(band)
        if chunk == 4 and band < 3:
            met.wait()  # passes only with three bands at once
        together.append(len(at_work))
        time.sleep(0.002 * ((band + chunk) % 3))
        log.append((band, chunk))
        at_work.remove(band)

    prepared = []
    bands.run_in_order(schedule, [4, 3, 2, 1, 0], advance, lambda: prepared.append(len(log)))
    assert prepared == [0]
    assert max(together) <= 3
    for band in range(4):
        assert [chunk for b, chunk in log if b == band] == [4, 3, 2, 1, 0]
    assert band_threads() == []


def test_an_error_names_its_band_and_stops_the_rest() -> None:
    schedule = bands.plan(heads=5, length=40, chunk_size=8, heads_per_band=2, workers=2)
    log: list[tuple[int, int]] = []

    def advance(band: int, chunk: int) -> None:
        if (band, chunk) == (1, 2):
            raise ZeroDivisionError("of a test")
        log.append((band, chunk))

    named = r"band 1 \(heads 2 to 3\), chunk 2: ZeroDivisionError: of a test"
    with pytest.raises(RuntimeError, match=named) as caught:
        bands.run_in_order(schedule, range(5), advance, lambda: None)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert band_threads() == []
    assert len(log) < 14 and [chunk for b, chunk in log if b == 1] == [0, 1]


def test_a_failing_step_leaves_the_kernel_usable(uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, _ = make(*SIZES)

    def fails(*args: Tensor) -> None:
        if args[0].any():  # not on the zeros of the preparation
            raise ValueError("no step today")

    with monkeypatch.context() as patch:
        patch.setattr(queued._step, "warm", fails)
        with pytest.raises(RuntimeError, match="band . .*no step today"):
            mlstm_chunkwise__queued_compiled_steps(**inputs, **SCHEDULE)
    assert band_threads() == []
    check(mlstm_chunkwise__queued_compiled_steps, *make(*SIZES), chunk_size=8, **SCHEDULE)


@pytest.mark.parametrize("streams", [0, 1])
def test_streams_need_a_device_that_has_them(streams: int) -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(ValueError, match=f"streams: expected None on a device without streams.*got {streams}"):
        mlstm_chunkwise__queued_compiled_steps(**inputs, streams=streams)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("streams", [None, 1, 3])
def test_queued_on_gpu_streams(streams: int | None) -> None:
    inputs, cotangents = make(2, 5, 77, 16, 24)
    inputs, cotangents = {name: x.cuda() for name, x in inputs.items()}, [x.cuda() for x in cotangents]
    for _ in range(5):
        options = {"chunk_size": 8, "workers": 3, "heads_per_band": 1, "streams": streams}
        check(mlstm_chunkwise__queued_compiled_steps, inputs, cotangents, **options)


def test_the_table_of_plans_has_what_a_call_leaves_open(uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands, workers and the chunk size of an entry for this kernel; arguments go before it."""
    results: list[bands.Schedule] = []
    original = bands.plan
    monkeypatch.setattr(bands, "plan", lambda *arguments: results.append(original(*arguments)) or results[-1])
    x, _ = make(1, 4, 40, 3, 5)
    tuned = {"kernel": "chunkwise--queued_compiled_steps", "chunk_size": 16, "heads_per_band": 1, "workers": 2}
    with plans.trying("mlstm_chunkwise", tuned):
        h = mlstm_chunkwise__queued_compiled_steps(**x)
        mlstm_chunkwise__queued_compiled_steps(**x, chunk_size=8, heads_per_band=4, workers=1)
    with plans.trying("mlstm_chunkwise", tuned | {"kernel": "chunkwise--ray_compiled_steps"}):
        mlstm_chunkwise__queued_compiled_steps(**x, workers=1)
    assert [(len(one.bands), len(one.chunks), one.workers) for one in results] == [(4, 3, 2), (1, 5, 1), (1, 2, 1)]
    assert torch.allclose(h, mlstm_chunkwise__queued_compiled_steps(**x, workers=1), atol=1e-5)
    with pytest.raises(ValueError, match="plan.workers: expected none without a kernel that runs in bands, got 2"):
        mlstm_interface(**x, plan={"workers": 2})
