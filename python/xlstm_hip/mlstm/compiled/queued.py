# SPDX-License-Identifier: Apache-2.0
"""The band schedule on a pool of threads: each enqueues compiled chunks, on a GPU into a stream per band."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..._core import checks
from ..._core.plans import Plan
from .bands import DEFAULT_CHUNK_SIZE, Schedule, banded_chunkwise
from .chunk import State, chunk_step, chunk_step_backward
from .compiling import CompiledFunction

_step, _step_backward = CompiledFunction(chunk_step), CompiledFunction(chunk_step_backward)

# One walk at a time: while torch.compile traces in one thread, compiled code must not be called in another.
_one_walk = threading.Lock()
_compiled_for: set[tuple] = set()


def mlstm_chunkwise__queued_compiled_steps(
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
    streams: int | None = None,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, State]:  # h (B, NH, S, DHHV), (c, n, m)
    """Exponential input gate, exact gradient, any device that torch.compile serves.

    workers: threads; None is one per head, at most one per CPU, and one on a GPU.
    heads_per_band: None is one band per worker.
    streams: GPU streams that the bands are dealt to; None is one per worker. Only None without a GPU.
    The first call of a process compiles. The table of plans decides arguments that are None, and a default chunk_size,
    if it has an entry for this kernel.
    """

    def make_runner(schedule: Schedule, device: torch.device, tuned: Plan) -> _ThreadRunner:
        requested = tuned.get("streams") or None if streams is None else streams
        return _ThreadRunner(_stream_count(requested, schedule, device), device)

    return banded_chunkwise(
        "mlstm_chunkwise__queued_compiled_steps", make_runner, q, k, v, i, f, c_initial, n_initial, m_initial,
        return_last_states, eps, autocast_kernel_dtype, chunk_size, heads_per_band, workers, kwargs,
    )  # fmt: skip


def _stream_count(streams: int | None, schedule: Schedule, device: torch.device) -> int:
    if device.type == "cuda":  # which is also what ROCm's devices are called
        if streams is not None:
            checks.positive_int("streams", streams)
        return streams or schedule.workers
    if streams is not None:
        raise ValueError(f"streams: expected None on a device without streams ({device}), got {streams!r}")
    return 0


class _ThreadRunner:
    """A StepRunner whose steps run in the thread that asks."""

    def __init__(self, stream_count: int, device: torch.device) -> None:
        self._streams = [torch.cuda.Stream(device) for _ in range(stream_count)]

    @contextmanager
    def session(self, schedule: Schedule, device: torch.device) -> Iterator[None]:
        with _one_walk:
            for stream in self._streams:
                stream.wait_stream(torch.cuda.current_stream(device))
            try:
                yield
            finally:  # after an error too: queued work must not outlive the tensors it writes
                for stream in self._streams:
                    torch.cuda.current_stream(device).wait_stream(stream)

    def on_band(self, band: int) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[band % len(self._streams)]) if self._streams else nullcontext()

    def prepare(self, shapes: list[tuple[int, int]], q: Tensor, v: Tensor, backward: bool) -> None:
        """Compiles on zeros, in a worker: torch.compile ties its code to modes which are a thread's own."""
        wide, dqk, dhv = checks.accumulate_dtype(q.dtype), q.shape[-1], v.shape[-1]
        for n, length in shapes:
            key = (backward, n, length, dqk, dhv, wide, q.device)
            if key in _compiled_for:
                continue
            with torch.no_grad(), self.on_band(0):
                inputs = [(n, length, dqk), (n, length, dqk), (n, length, dhv), (n, length), (n, length)]
                state = [(n, dqk, dhv), (n, dqk), (n, 1)]
                shapes_in = [*inputs, *state, (), *([inputs[2], *state] if backward else [])]
                (_step_backward if backward else _step)(
                    *(torch.zeros(s, dtype=wide, device=q.device) for s in shapes_in)
                )
            _compiled_for.add(key)

    def forward(self, band: int, inputs: tuple[Tensor, ...], state: State, eps: float) -> tuple[Tensor, State]:
        h, c, n, m = _step.warm(*inputs, *state, _scalar(eps, inputs[0]))
        return h, (c, n, m)

    def backward(
        self, band: int, inputs: tuple[Tensor, ...], state: State, eps: float, dh: Tensor, dstate: State
    ) -> tuple[Sequence[Tensor], State]:
        *grads, dc, dn, dm = _step_backward.warm(*inputs, *state, _scalar(eps, inputs[0]), dh, *dstate)
        return grads, (dc, dn, dm)

    def fetch(self, state: State) -> State:
        return state


def _scalar(value: float, like: Tensor) -> Tensor:
    """As a tensor, so that a new value needs no new compilation."""
    return torch.full((), value, dtype=like.dtype, device=like.device)
