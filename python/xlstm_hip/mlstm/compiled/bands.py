# SPDX-License-Identifier: Apache-2.0
"""The band schedule: heads in bands, sequences in small chunks, the chunks of a band in order.

A band is a few heads of every batch entry. Its chunks form a chain: each takes the (c, n, m) that the one
before it left. Bands know nothing of each other. So any worker may run any band's next chunk, and the result
does not depend on who did.

This file holds the plan, the queue that keeps the order, and the autograd function that walks the chains,
forward in time and then backward. A StepRunner runs the chunks: threads in queued.py, Ray actors in
ray_actors.py.

The forward keeps the state that enters each chunk, the backward runs the chunk again: memory for one state
per chunk, and exact gradients.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._core import checks
from ..._core.autocast import in_kernel_dtype
from ..._core.plans import Plan, plan_of_kernel
from ...reference.inputs import wide_states
from .chunk import State

DEFAULT_CHUNK_SIZE = 32
DEFAULT_CHUNK_SIZES = (DEFAULT_CHUNK_SIZE, 64)  # of a kernel, and of mlstm_interface


@dataclass(frozen=True)
class Schedule:
    bands: tuple[slice, ...]  # of heads
    chunks: tuple[slice, ...]  # of tokens
    workers: int

    def band_name(self, band: int) -> str:
        heads = self.bands[band]
        return f"band {band} (heads {heads.start} to {heads.stop - 1})"


def plan(heads: int, length: int, chunk_size: int, heads_per_band: int | None, workers: int) -> Schedule:
    """Bands of heads_per_band heads (None: one band per worker), chunks of chunk_size tokens; the last ones
    may be smaller."""
    checks.positive_int("workers", workers)
    if heads_per_band is None:
        heads_per_band = -(-heads // workers)
    checks.positive_int("heads_per_band", heads_per_band)
    bands = _cut(heads, heads_per_band)
    return Schedule(bands, _cut(length, chunk_size), min(workers, len(bands)))


def default_workers(heads: int, device: torch.device) -> int:
    """One per head, at most one per CPU. A GPU runs a chunk sooner than Python enqueues it: one will do."""
    if device.type != "cpu":
        return 1
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(heads, cpus)


def _cut(total: int, size: int) -> tuple[slice, ...]:
    return tuple(slice(start, min(start + size, total)) for start in range(0, total, size))


class StepRunner(Protocol):
    """Runs chunks of bands. All but `session` is called in worker threads; for a band, by one at a time."""

    def session(self, schedule: Schedule, device: torch.device) -> AbstractContextManager[None]:
        """Around one walk of all chains, in the calling thread."""
        ...

    def on_band(self, band: int) -> AbstractContextManager[Any]:
        """Around everything done for a chunk of this band, copies included."""
        ...

    def prepare(self, shapes: list[tuple[int, int]], q: Tensor, v: Tensor, backward: bool) -> None:
        """Before the first chunk, with no other worker at work: chunks of these (N, L) will come."""
        ...

    def forward(self, band: int, inputs: tuple[Tensor, ...], state: Any, eps: float) -> tuple[Tensor, Any]:
        """q, k, v, i, f of a chunk and the state that enters -> h and the state that leaves.

        That state may be in any form that `fetch` understands.
        """
        ...

    def backward(
        self, band: int, inputs: tuple[Tensor, ...], state: State, eps: float, dh: Tensor, dstate: Any
    ) -> tuple[Sequence[Tensor], Any]:
        """-> the gradients of q, k, v, i, f and that of the state that enters, in any form `fetch` knows."""
        ...

    def fetch(self, state: Any) -> State: ...


def run_in_order(
    schedule: Schedule, order: Sequence[int], advance: Callable[[int, int], None], prepare: Callable[[], None]
) -> None:
    """Call advance(band, chunk) for every band and every chunk of `order`, in that order within a band.

    `prepare` runs first, in a worker thread and alone. The first error stops every band after the chunk it is
    at, and is raised here with its band named. No worker is left when this returns or raises.
    """
    # (band, place in order), each band in it at most once: so its chunks never overlap
    ready: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
    unfinished = set(range(len(schedule.bands)))
    errors: list[tuple[int, int, BaseException]] = []

    def dismiss_workers() -> None:
        for _ in range(schedule.workers):
            ready.put(None)

    def work() -> None:
        while (task := ready.get()) is not None and not errors:
            band, step = task
            try:
                advance(band, order[step])
            except BaseException as error:
                errors.append((band, order[step], error))
                dismiss_workers()
                return
            if step + 1 < len(order):
                ready.put((band, step + 1))
                continue
            unfinished.discard(band)
            if not unfinished:
                dismiss_workers()

    with ThreadPoolExecutor(schedule.workers, thread_name_prefix="xlstm_hip-band") as pool:
        pool.submit(prepare).result()
        for band in range(len(schedule.bands)):
            ready.put((band, 0))
        workers = [pool.submit(work) for _ in range(schedule.workers)]
        try:
            for worker in workers:
                worker.result()
        except BaseException as interrupt:  # in this thread: a worker hands its errors over
            errors.append((0, 0, interrupt))
            dismiss_workers()
            raise
    if errors:
        band, chunk, error = errors[0]
        reason = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"{schedule.band_name(band)}, chunk {chunk}: {reason}") from error


def banded_chunkwise(
    function: str,
    make_runner: Callable[[Schedule, torch.device, Plan], StepRunner],
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None,  # (B, NH, DHQK)
    m_initial: Tensor | None,  # (B, NH, 1)
    return_last_states: bool,
    eps: float,
    autocast_kernel_dtype: torch.dtype,
    chunk_size: int,
    heads_per_band: int | None,
    workers: int | None,
    unknown: dict[str, Any],
) -> Tensor | tuple[Tensor, State]:  # h (B, NH, S, DHHV), (c, n, m)
    """Runs a kernel of the band schedule with its arguments. Options that are left open come from the table of
    plans."""
    if torch.compiler.is_compiling():
        raise RuntimeError(
            f"{function} compiles and schedules its own steps, so it cannot be part of a torch.compile graph: call it "
            "outside of one, or choose another kernel (chunkwise--fused, chunkwise--native_autograd)"
        )
    checks.no_unknown_keywords(function, unknown)
    q, k, v, i, f = in_kernel_dtype((q, k, v, i, f), autocast_kernel_dtype)
    checks.check_sequence_inputs(q, k, v, i, f, c_initial, n_initial, m_initial, eps, chunk_size)
    tuned = plan_of_kernel(function.replace("mlstm_chunkwise__", "chunkwise--"), q, v)
    if chunk_size in DEFAULT_CHUNK_SIZES:
        chunk_size = tuned.get("chunk_size") or chunk_size
    if heads_per_band is None:
        heads_per_band = tuned.get("heads_per_band") or None
    if workers is None:
        workers = tuned.get("workers") or default_workers(q.shape[1], q.device)
    schedule = plan(q.shape[1], q.shape[2], chunk_size, heads_per_band, workers)
    runner = make_runner(schedule, q.device, tuned)
    states = wide_states(q, v, c_initial, n_initial, m_initial)
    h, *last = _Bands.apply(runner, schedule, float(eps), q, k, v, i, f, *states)
    return (h, tuple(last)) if return_last_states else h


class _Bands(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        runner: StepRunner,
        schedule: Schedule,
        eps: float,
        q: Tensor,  # (B, NH, S, DHQK)
        k: Tensor,  # (B, NH, S, DHQK)
        v: Tensor,  # (B, NH, S, DHHV)
        i: Tensor,  # (B, NH, S)
        f: Tensor,  # (B, NH, S)
        c: Tensor,  # (B, NH, DHQK, DHHV), accumulation dtype, as n and m
        n: Tensor,  # (B, NH, DHQK)
        m: Tensor,  # (B, NH, 1)
    ) -> tuple[Tensor, ...]:
        # Workers write into tensors made here, so that those belong to the caller's stream. Inference mode is
        # a thread's own: tensors made in it would be closed to the workers.
        with torch.inference_mode(False):
            h = torch.empty_like(v, memory_format=torch.contiguous_format)
            last = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (c, n, m)]
            saved = len(schedule.chunks) if any(ctx.needs_input_grad) else 0
            entering = [x.new_empty((saved, *x.shape)) for x in last]
        carried: dict[int, Any] = {}

        def advance(band: int, chunk: int) -> None:
            heads, tokens = schedule.bands[band], schedule.chunks[chunk]
            with torch.no_grad(), runner.on_band(band):
                state = carried[band] if band in carried else _take_states((c, n, m), heads)
                if saved:
                    _put_states([x[chunk] for x in entering], heads, runner.fetch(state))
                inputs = _take_tokens((q, k, v, i, f), heads, tokens)
                out, carried[band] = runner.forward(band, inputs, state, eps)
                _put(h[:, heads, tokens], out)
                if tokens.stop == q.shape[2]:
                    _put_states(last, heads, runner.fetch(carried.pop(band)))

        _walk(runner, schedule, range(len(schedule.chunks)), advance, q, v, backward=False)
        if saved:
            ctx.save_for_backward(q, k, v, i, f, *entering)
            ctx.settings = runner, schedule, eps
        return h, *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor, dn: Tensor, dm: Tensor) -> tuple[Tensor | None, ...]:
        runner, schedule, eps = ctx.settings
        *inputs, c, n, m = ctx.saved_tensors
        dinputs = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
        dstates = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (dc, dn, dm)]
        carried: dict[int, Any] = {}

        def advance(band: int, chunk: int) -> None:
            heads, tokens = schedule.bands[band], schedule.chunks[chunk]
            with torch.no_grad(), runner.on_band(band):
                dstate = carried[band] if band in carried else _take_states((dc, dn, dm), heads)
                grads, carried[band] = runner.backward(
                    band,
                    _take_tokens(inputs, heads, tokens),
                    _take_states((c[chunk], n[chunk], m[chunk]), heads),
                    eps,
                    _take_tokens([dh], heads, tokens, c.dtype)[0],
                    dstate,
                )
                for total, part in zip(dinputs, grads, strict=True):
                    _put(total[:, heads, tokens], part)
                if tokens.start == 0:
                    _put_states(dstates, heads, runner.fetch(carried.pop(band)))

        backwards = range(len(schedule.chunks))[::-1]
        _walk(runner, schedule, backwards, advance, inputs[0], inputs[2], backward=True)
        return None, None, None, *dinputs, *dstates


def _walk(
    runner: StepRunner,
    schedule: Schedule,
    order: Sequence[int],
    advance: Callable[[int, int], None],
    q: Tensor,
    v: Tensor,
    backward: bool,
) -> None:
    widths = {heads.stop - heads.start for heads in schedule.bands}
    lengths = {tokens.stop - tokens.start for tokens in schedule.chunks}
    shapes = [(q.shape[0] * width, length) for width in sorted(widths) for length in sorted(lengths)]
    with runner.session(schedule, q.device):
        run_in_order(schedule, order, advance, lambda: runner.prepare(shapes, q, v, backward))


def _take_tokens(
    tensors: Sequence[Tensor], heads: slice, tokens: slice, dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """(B, NH, S, ...) -> (N, L, ...) in the accumulation dtype: copies, all alike to torch.compile."""
    dtype = dtype or checks.accumulate_dtype(tensors[0].dtype)
    return tuple(_take(x[:, heads, tokens], dtype) for x in tensors)


def _take_states(states: Sequence[Tensor], heads: slice) -> State:
    c, n, m = (_take(x[:, heads], x.dtype) for x in states)
    return c, n, m


def _take(x: Tensor, dtype: torch.dtype) -> Tensor:
    batch, heads, *features = x.shape
    taken = torch.empty((batch * heads, *features), dtype=dtype, device=x.device)
    taken.view(x.shape).copy_(x)
    return taken


def _put_states(states: Sequence[Tensor], heads: slice, parts: State) -> None:
    for x, part in zip(states, parts, strict=True):
        _put(x[:, heads], part)


def _put(target: Tensor, part: Tensor) -> None:
    target.copy_(part.reshape(target.shape))
