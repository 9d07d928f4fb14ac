# SPDX-License-Identifier: Apache-2.0
"""The torch.compile kernels. Each is compiled once; the schedule is tested with uncompiled steps."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip.compiled import (
    bands,
    chunk,
    metal,
    mlstm_chunkwise__native_compiled_autograd,
    mlstm_chunkwise__queued_compiled_steps,
    mlstm_chunkwise__ray_compiled_steps,
    mlstm_recurrent_sequence__metal,
    mlstm_recurrent_step__metal,
    queued,
    ray_actors,
    shutdown_ray_pool,
)
from xlstm_hip.reference import mlstm_chunkwise__native_autograd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from reference import doubled, outputs_and_gradients, relative_error, truth  # noqa: E402

SIZES = (2, 3, 37, 5, 6)  # B, NH, S, DHQK, DHHV: a last chunk of 5, and a last band of one head
SCHEDULE = {"heads_per_band": 2, "workers": 2}
Inputs = dict[str, Tensor]


def make(
    batch: int,
    heads: int,
    length: int,
    dqk: int,
    dhv: int,
    dtype: torch.dtype = torch.float32,
    states: bool = True,
) -> tuple[Inputs, list[Tensor]]:
    """Inputs by name and cotangents of h, c, n, m.

    Positive k, and q of one sign per token: where the normaliser cancels, any kernel's error is luck.
    """
    rng = torch.Generator().manual_seed(length)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    q, k = random(batch, heads, length, dqk), random(batch, heads, length, dqk)
    inputs = {"q": q.abs() * q[..., :1].sign(), "k": k.abs()}
    inputs |= {"v": random(batch, heads, length, dhv)}
    inputs |= {"i": 3 * random(batch, heads, length), "f": 3 * random(batch, heads, length) + 2}
    shapes = [(batch, heads, dqk, dhv), (batch, heads, dqk), (batch, heads, 1)]
    if states:
        inputs |= {f"{name}_initial": random(*s) for name, s in zip("cnm", shapes, strict=True)}
        inputs["n_initial"] = inputs["n_initial"].abs()
    return inputs, [random(batch, heads, length, dhv), *(random(*s) for s in shapes)]


def check(function: Callable[..., Any], inputs: Inputs, cotangents: list[Tensor], **options: Any) -> None:
    """Everything within twice the error of plain torch in the same dtype, or a few roundings."""

    def run(kernel: Callable[..., Any], inputs: Inputs, **options: Any) -> Inputs:
        outputs, gradients = outputs_and_gradients(kernel, inputs, cotangents, **options)
        return outputs | {f"d{name}": x for name, x in gradients.items()}

    expected = run(truth, doubled(inputs))
    got = run(function, inputs, return_last_states=True, **options)
    plain = run(mlstm_chunkwise__native_autograd, inputs, return_last_states=True, chunk_size=8)
    for name, true in expected.items():
        floor = torch.finfo(plain[name].dtype).eps * (1 if plain[name].dtype.itemsize == 2 else 8)
        assert got[name].dtype == plain[name].dtype, name
        assert relative_error(got[name], true) <= max(2 * relative_error(plain[name], true), floor), name


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


# ---- compiled ----


@pytest.mark.parametrize(
    ("kernel", "options"),
    [(mlstm_chunkwise__native_compiled_autograd, {}), (mlstm_chunkwise__queued_compiled_steps, SCHEDULE)],
)
def test_compiled_kernels_match_the_truth(kernel: Callable[..., Any], options: dict[str, int]) -> None:
    check(kernel, *make(*SIZES), chunk_size=8, **options)


@pytest.mark.parametrize("kernel", [mlstm_chunkwise__native_compiled_autograd, mlstm_chunkwise__queued_compiled_steps])
def test_other_sizes_and_eps_compile_nothing_new(kernel: Callable[..., Any]) -> None:
    inputs, cotangents = make(*SIZES)
    outputs_and_gradients(kernel, inputs, cotangents, return_last_states=True, chunk_size=8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(kernel, *make(2, 4, 55, 9, 7), chunk_size=16)
        inputs, cotangents = make(4, 4, 8, 4, 4)
        outputs_and_gradients(kernel, inputs, cotangents, return_last_states=True, chunk_size=4, eps=1e-3)


def test_compiled_step_and_sequence_for_metal() -> None:
    def sequence(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **states: Tensor) -> Any:
        states.pop("return_last_states", None)
        return metal._compiled_sequence(q, k, v, i, f, tuple(states.values()), 1e-6)

    check(sequence, *make(2, 3, 5, 4, 6))
    inputs, cotangents = make(2, 3, 4, 4, 6, torch.bfloat16)
    outputs, _ = outputs_and_gradients(sequence, inputs, cotangents)
    expected, _ = truth(**doubled(inputs))
    assert outputs["h"].dtype == torch.bfloat16 and outputs["c"].dtype == outputs["m"].dtype == torch.float32
    # float32 but for the last rounding
    assert relative_error(outputs["h"], expected) < torch.finfo(torch.bfloat16).eps


def test_metal_runs_on_apple_gpus_only() -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(RuntimeError, match="'mps', got 'cpu'"):
        mlstm_recurrent_sequence__metal(**inputs)
    token = {name[0]: x[:, :, 0] if x.dim() == 4 and name in "qkv" else x for name, x in inputs.items()}
    token |= {name: inputs[name][:, :, :1] for name in "if"}
    with pytest.raises(RuntimeError, match="'mps', got 'cpu'"):
        mlstm_recurrent_step__metal(**token)


def test_a_missing_cpp_compiler_is_named(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from xlstm_hip.compiled import mlstm_chunkwise__native_compiled_autograd as kernel\n"
        "x = torch.ones(2, 2, 3, 4)\n"
        "kernel(x, x, x, x[..., 0], x[..., 0])\n"
    )
    environment = os.environ | {"CXX": str(tmp_path / "missing"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "RuntimeError: torch.compile cannot build this kernel: no C++ compiler was found" in done.stderr


def test_import_compiles_nothing_and_leaves_ray_alone() -> None:
    program = "import sys, xlstm_hip.compiled; print({'ray', 'torch._inductor.compile_fx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---- the schedule ----


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
        got = chunk.chunk_step_backward(*inputs, eps, *cotangents)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("kernel", [mlstm_chunkwise__queued_compiled_steps, mlstm_chunkwise__ray_compiled_steps])
@pytest.mark.parametrize("name", ["chunk_size", "heads_per_band", "workers"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_bad_schedule_arguments_are_named(kernel: Callable[..., Any], name: str, value: Any) -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(ValueError, match=f"{name}: expected an integer >= 1, got"):
        kernel(**inputs, **{name: value})


@pytest.mark.parametrize(
    ("kernel", "unknown"),
    [
        (mlstm_chunkwise__native_compiled_autograd, "workers"),
        (mlstm_chunkwise__queued_compiled_steps, "normalize"),
        (mlstm_chunkwise__ray_compiled_steps, "streams"),
        (mlstm_recurrent_sequence__metal, "normalize"),
    ],
)
def test_unknown_keywords_and_bad_tensors_are_named(kernel: Callable[..., Any], unknown: str) -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
        kernel(**inputs, **{unknown: 1})
    with pytest.raises(ValueError, match="m_initial: expected all three states or none"):
        kernel(**(inputs | {"m_initial": None}))


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


# ---- Ray ----


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install xlstm_hip\[ray\]"):
        mlstm_chunkwise__ray_compiled_steps(**make(1, 2, 3, 4, 4)[0])


def test_ray_takes_cpu_tensors() -> None:
    schedule = bands.plan(heads=2, length=3, chunk_size=8, heads_per_band=None, workers=1)
    with pytest.raises(ValueError, match="q: expected a CPU tensor.* got one on cuda:0"):
        ray_actors._make_runner(schedule, torch.device("cuda:0"))


def test_ray_compiled_and_ended() -> None:
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    try:
        check(mlstm_chunkwise__ray_compiled_steps, *make(*SIZES), chunk_size=8, **SCHEDULE)
        assert ray.cluster_resources()["CPU"] == 2
        actors = list(ray_actors._pool._actors)
        mlstm_chunkwise__ray_compiled_steps(**make(*SIZES)[0], chunk_size=8, **SCHEDULE)
        assert len(actors) == 2 and ray_actors._pool._actors == actors  # the pool is kept
    finally:
        shutdown_ray_pool()
    assert not ray.is_initialized()  # for it was started by the kernel


@pytest.fixture(scope="module")
def own_ray() -> Iterator[Any]:
    """A Ray that the kernel did not start, with actors that do not compile."""
    ray = pytest.importorskip("ray")

    class UncompiledActor(ray_actors._ChunkActor):  # local, so that Ray sends it by value
        def __init__(self) -> None:
            self._step, self._step_backward = chunk.chunk_step, chunk.chunk_step_backward

    ray.init(num_cpus=2, include_dashboard=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_actors, "_ChunkActor", UncompiledActor)
        yield ray
    ray.shutdown()


def test_ray_any_schedule_gives_the_same(own_ray: Any) -> None:
    for sizes, chunk_size, heads_per_band in (((2, 5, 11, 3, 4), 4, 2), ((1, 1, 1, 4, 3), 32, None)):
        inputs, cotangents = make(*sizes, dtype=torch.float64)
        options = {"chunk_size": chunk_size, "heads_per_band": heads_per_band, "workers": 2}
        check(mlstm_chunkwise__ray_compiled_steps, inputs, cotangents, **options)


def test_ray_survives_a_dead_actor(own_ray: Any) -> None:
    inputs, _ = make(2, 4, 9, 3, 4)
    expected = mlstm_chunkwise__ray_compiled_steps(**inputs, workers=2)
    own_ray.kill(ray_actors._pool._actors[1])
    with pytest.raises(RuntimeError, match=r"band 1 \(heads 2 to 3\), chunk 0: .*Actor"):
        mlstm_chunkwise__ray_compiled_steps(**inputs, workers=2)
    assert torch.equal(mlstm_chunkwise__ray_compiled_steps(**inputs, workers=2), expected)


def test_ray_that_was_there_before_stays(own_ray: Any) -> None:
    mlstm_chunkwise__ray_compiled_steps(**make(1, 2, 3, 4, 4)[0], workers=2)
    shutdown_ray_pool()
    assert own_ray.is_initialized()
    assert ray_actors._pool._actors == []
