# SPDX-License-Identifier: Apache-2.0
"""The band schedule on a pool of Ray actors: processes, here or on a cluster, each running compiled chunks.

The caller's threads keep the order, as in queued.py; each hands its band's next chunk to the actor that the
band belongs to and waits. The state between two chunks stays in Ray's object store until the caller needs it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._core.extras import optional_module
from ..._core.plans import Plan
from .bands import DEFAULT_CHUNK_SIZE, Schedule, banded_chunkwise
from .chunk import State, chunk_step, chunk_step_backward
from .compiling import CompiledFunction

Arrays = tuple[np.ndarray, ...]  # what travels: Ray moves numpy arrays without copying them on the way


def mlstm_chunkwise__ray_compiled_steps(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    heads_per_band: int | None = None,
    workers: int | None = None,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, State]:  # h (B, NH, S, DHHV), (c, n, m)
    """Exponential input gate, exact gradient, CPU tensors.

    workers: actors; None is one per head, at most one per CPU. heads_per_band: None is one band per worker.
    A running Ray is used, else one is started on this machine. The actors stay for later calls;
    `shutdown_ray_pool` ends them. On a cluster xlstm_hip must be installed on every node. Each actor compiles
    at its first call.
    """
    return banded_chunkwise(
        "mlstm_chunkwise__ray_compiled_steps", _make_runner, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, heads_per_band, workers, kwargs,
    )  # fmt: skip


def shutdown_ray_pool() -> None:
    """End the actors, and Ray itself if it was started here. A later call makes a new pool."""
    _pool.shut_down()


def _make_runner(schedule: Schedule, device: torch.device, tuned: Plan) -> _ActorRunner:
    if device.type != "cpu":
        raise ValueError(f"q: expected a CPU tensor, as Ray's actors compute on CPUs, got one on {device}")
    return _ActorRunner(_import_ray())


def _import_ray() -> Any:
    return optional_module("ray", "chunkwise--ray_compiled_steps")


class _ChunkActor:
    """Lives in a process of its own; made an actor by _Pool."""

    def __init__(self) -> None:
        self._step, self._step_backward = CompiledFunction(chunk_step), CompiledFunction(chunk_step_backward)

    def forward(self, inputs: Arrays, state: Arrays, eps: float) -> tuple[np.ndarray, Arrays]:
        with torch.no_grad():
            h, *state_out = self._step(*_tensors(inputs), *_tensors(state), _scalar(eps, inputs[0]))
        return h.numpy(), _arrays(state_out)

    def backward(
        self, inputs: Arrays, state: Arrays, eps: float, dh: np.ndarray, dstate: Arrays
    ) -> tuple[Arrays, Arrays]:
        saved = (*_tensors(inputs), *_tensors(state), _scalar(eps, inputs[0]))
        with torch.no_grad():
            grads = _arrays(self._step_backward(*saved, *_tensors((dh,)), *_tensors(dstate)))
        return grads[:5], grads[5:]


def _tensors(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    return [torch.tensor(x) for x in arrays]  # copies: what Ray hands out is read-only


def _arrays(tensors: Sequence[Tensor]) -> Arrays:
    return tuple(x.numpy() for x in tensors)


def _scalar(value: float, like: np.ndarray) -> Tensor:
    return torch.tensor(np.asarray(value, dtype=like.dtype))


class _Pool:
    """The actors of this process, the Ray they belong to, and whether it was started here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actors: list[Any] = []
        self._node: str | None = None
        self._started_ray = False

    def actors(self, ray: Any, count: int) -> list[Any]:
        """The first `count` actors, made where missing."""
        with self._lock:
            start = not ray.is_initialized()
            if start:
                ray.init(num_cpus=count, include_dashboard=False)
            node = ray.get_runtime_context().get_node_id()
            if node != self._node:  # not the Ray of the last call: the actors went with that one
                self._actors, self._node, self._started_ray = [], node, start
            actor_class = ray.remote(_ChunkActor)
            while len(self._actors) < count:
                self._actors.append(actor_class.remote())
            return self._actors[:count]

    def kill_actors(self, ray: Any) -> None:
        with self._lock:
            actors, self._actors = self._actors, []
            if self._ray_still_runs(ray):
                for actor in actors:
                    ray.kill(actor)

    def shut_down(self) -> None:
        if self._node is None:
            return
        ray = _import_ray()
        self.kill_actors(ray)
        if self._started_ray and self._ray_still_runs(ray):
            ray.shutdown()
        self._node, self._started_ray = None, False

    def _ray_still_runs(self, ray: Any) -> bool:
        return ray.is_initialized() and ray.get_runtime_context().get_node_id() == self._node


_pool = _Pool()
atexit.register(_pool.shut_down)


class _ActorRunner:
    """A StepRunner on actors. All states but the first are references into Ray's object store."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actors: list[Any] = []

    @contextmanager
    def session(self, schedule: Schedule, device: torch.device) -> Iterator[None]:
        self._actors = _pool.actors(self._ray, schedule.workers)
        try:
            yield
        except BaseException:  # an actor may be dead, or still at work on what nobody waits for
            _pool.kill_actors(self._ray)
            raise

    def on_band(self, band: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def prepare(self, shapes: list[tuple[int, int]], q: Tensor, v: Tensor, backward: bool) -> None:
        """Nothing: an actor runs one step at a time, and compiles when it meets the first."""

    def forward(self, band: int, inputs: tuple[Tensor, ...], state: Any, eps: float) -> tuple[Tensor, Any]:
        call = self._actors[band % len(self._actors)].forward.options(num_returns=2)
        h, state = call.remote(_arrays(inputs), _sendable(state), eps)
        return _tensors([self._ray.get(h)])[0], state

    def backward(
        self, band: int, inputs: tuple[Tensor, ...], state: State, eps: float, dh: Tensor, dstate: Any
    ) -> tuple[Sequence[Tensor], Any]:
        call = self._actors[band % len(self._actors)].backward.options(num_returns=2)
        grads, dstate = call.remote(_arrays(inputs), _arrays(state), eps, dh.numpy(), _sendable(dstate))
        return _tensors(self._ray.get(grads)), dstate

    def fetch(self, state: Any) -> State:
        if isinstance(state, tuple):
            return state
        c, n, m = _tensors(self._ray.get(state))
        return c, n, m


def _sendable(state: Any) -> Any:
    return _arrays(state) if isinstance(state, tuple) else state
