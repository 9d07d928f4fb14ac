# SPDX-License-Identifier: Apache-2.0
"""The band schedule on Ray actors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from support.compiled_kernels import SCHEDULE, SIZES, check, make
from xlstm_hip.mlstm.compiled import (
    bands,
    chunk,
    mlstm_chunkwise__ray_compiled_steps,
    ray_actors,
    shutdown_ray_pool,
)


def test_ray_takes_cpu_tensors() -> None:
    schedule = bands.plan(heads=2, length=3, chunk_size=8, heads_per_band=None, workers=1)
    with pytest.raises(ValueError, match="q: expected a CPU tensor.* got one on cuda:0"):
        ray_actors._make_runner(schedule, torch.device("cuda:0"), {})


@pytest.mark.rows("ci")
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
def ray_cluster() -> Iterator[Any]:
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


def test_ray_any_schedule_gives_the_same(ray_cluster: Any) -> None:
    for sizes, chunk_size, heads_per_band in (((2, 5, 11, 3, 4), 4, 2), ((1, 1, 1, 4, 3), 32, None)):
        inputs, cotangents = make(*sizes, dtype=torch.float64)
        options = {"chunk_size": chunk_size, "heads_per_band": heads_per_band, "workers": 2}
        check(mlstm_chunkwise__ray_compiled_steps, inputs, cotangents, **options)


def test_ray_survives_a_dead_actor(ray_cluster: Any) -> None:
    inputs, _ = make(2, 4, 9, 3, 4)
    expected = mlstm_chunkwise__ray_compiled_steps(**inputs, workers=2)
    ray_cluster.kill(ray_actors._pool._actors[1])
    with pytest.raises(RuntimeError, match=r"band 1 \(heads 2 to 3\), chunk 0: .*Actor"):
        mlstm_chunkwise__ray_compiled_steps(**inputs, workers=2)
    assert torch.equal(mlstm_chunkwise__ray_compiled_steps(**inputs, workers=2), expected)


def test_ray_that_was_there_before_stays(ray_cluster: Any) -> None:
    mlstm_chunkwise__ray_compiled_steps(**make(1, 2, 3, 4, 4)[0], workers=2)
    shutdown_ray_pool()
    assert ray_cluster.is_initialized()
    assert ray_actors._pool._actors == []
