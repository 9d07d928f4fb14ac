# SPDX-License-Identifier: Apache-2.0
"""Engine: the thread that steps, and the queue in front of it that any thread may use."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

import torch

from .._core.checks import one_of
from ..models.language_model import ServedModel
from ..models.tokenizer import Tokenizer
from .admission import Admission
from .config import EngineConfig
from .metrics import Snapshot
from .params import Output, Request
from .running import RunningRequest
from .stepper import Stepper
from .structure import Structures

logger = logging.getLogger("xlstm_hip")
IDLE_SECONDS = 0.05  # between looks at the clock while all requests wait for their session's state


class QueueFull(RuntimeError):
    """As many requests wait as may (EngineConfig.max_waiting)."""


class EngineClosed(RuntimeError):
    """The engine takes no more requests: it was not started, was closed or has failed."""


class AnswerLost(RuntimeError):
    """What wrote an answer is gone, and the answer cannot go on elsewhere. A client is told these words."""


class EngineFailed(RuntimeError):
    """The engine's thread failed. Its cause is the error."""


class Engine:
    """Answers requests with a model, many at a time, from a thread of its own.

    tokenizer    of load_tokenizer
    """

    def __init__(self, model: ServedModel, tokenizer: Tokenizer, config: EngineConfig | None = None) -> None:
        config = EngineConfig() if config is None else config
        if not isinstance(config, EngineConfig):
            raise ValueError(f"config: expected an EngineConfig or None, got {config!r}")
        if config.state_dtype is not None:
            model.config.inference_state_dtype = config.state_dtype
        self._model, self._tokenizer, self._config = model, tokenizer, config
        self._eos = tuple(model.special_tokens.eos)
        structures = Structures(tokenizer, model.config.vocab_size, self._eos)
        self._admission = Admission(config, model.config.vocab_size, structures)
        self._stepper = Stepper(model, tokenizer, config, structures, self._session_loaded, self._request_over)
        self._changed = threading.Condition()  # guards what follows
        self._submitted: deque[RunningRequest] = deque()
        self._cancelled: dict[str, None] = {}
        self._loaded: list[str] = []
        self._ids: set[str] = set()  # of requests that are not over
        self._closing = self._draining = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Engine:
        """Starts the thread. `with Engine(...) as engine` does so, and closes it without draining."""
        with self._changed:
            if self._thread is not None:
                raise RuntimeError("start: expected an engine that was not started before")
            self._thread = threading.Thread(target=self._run, name="xlstm_hip-engine", daemon=True)
            self._thread.start()
        return self

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Accepts a request, or raises QueueFull, EngineClosed or a ValueError that says what the engine does not take.

        A structure is compiled here, which may take seconds. on_output is called from the engine's thread, which waits
        for it; an error of it ends the request.
        """
        compiled = self._admission.check(request, on_output)
        chunk = self._config.prefill_chunk
        running = RunningRequest(request, on_output, self._tokenizer, self._eos, chunk, time.monotonic(), compiled)
        with self._changed:
            if self._thread is None or self._closing or self._failure is not None:
                state = "was not started" if self._thread is None else "is closed" if self._closing else "has failed"
                raise EngineClosed(f"submit: expected an engine that runs, but it {state}")
            if request.id in self._ids:
                raise ValueError(f"id: expected one that no unfinished request has, got {request.id!r}")
            if len(self._submitted) + self._stepper.scheduler.waiting >= self._config.max_waiting:
                self._stepper.counts.refused += 1
                raise QueueFull(f"submit: {self._config.max_waiting} requests wait already (max_waiting)")
            self._ids.add(request.id)
            self._submitted.append(running)
            self._changed.notify_all()

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step, with the finish reason "cancelled". Unknown and finished ones: nothing."""
        with self._changed:
            if request_id in self._ids:
                self._cancelled[request_id] = None
                self._changed.notify_all()

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Takes no more requests, ends the thread, and writes sessions to the swap folder, if there is one.

        drain      finish all accepted requests first; those unfinished after `timeout` seconds are cancelled
        """
        one_of("drain", drain, (True, False))
        if threading.current_thread() is self._thread:
            raise RuntimeError("close: expected a call from another thread than the engine's, which it waits for")
        with self._changed:
            first, self._closing = not self._closing, True
            self._draining = drain
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout if drain else None)
            with self._changed:
                self._draining = False
                self._changed.notify_all()
            self._thread.join()
        if first:
            self._stepper.swap.close()

    @property
    def healthy(self) -> bool:
        """Whether the thread runs and has not failed."""
        return self._failure is None and self._thread is not None and self._thread.is_alive()

    def metrics(self) -> Snapshot:
        stepper, counts = self._stepper, self._stepper.counts
        swap, cache = stepper.swap, stepper.cache
        return Snapshot(
            healthy=self.healthy,
            waiting=len(self._submitted) + stepper.scheduler.waiting,
            running=stepper.scheduler.running,
            slots_used=stepper.slots.used,
            slots_total=stepper.slots.count,
            requests_accepted=counts.accepted,
            requests_refused=counts.refused,
            requests_finished=dict(counts.finished),
            prefix_cache_hits=counts.prefix_hits,
            prefix_cache_misses=counts.prefix_misses,
            prefix_cache_tokens_saved=counts.tokens_saved,
            prefix_cache_bytes=cache.nbytes,
            prefix_cache_limit=cache.limit,
            prefix_cache_states=len(cache),
            tokens_prefilled=counts.tokens_prefilled,
            tokens_generated=counts.tokens_generated,
            steps=counts.steps,
            preemptions=counts.preemptions,
            swapped_out=swap.swapped_out,
            swapped_in=swap.swapped_in,
            swap_failures=swap.failures,
            swap_host_bytes=swap.host_bytes,
            swap_folder_bytes=swap.folder_bytes,
            out_of_memory=counts.out_of_memory,
            rows_per_step=counts.rows_per_step.snapshot(),
            step_seconds=counts.step_seconds.snapshot(),
            time_to_first_token=counts.time_to_first_token.snapshot(),
            inter_token_latency=counts.inter_token_latency.snapshot(),
            tokens_guessed=counts.guessed,
            tokens_guessed_right=counts.guessed_right,
        )

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=False)

    # ---- called from other threads than submit's

    def _session_loaded(self, session: str) -> None:
        with self._changed:
            self._loaded.append(session)
            self._changed.notify_all()

    def _request_over(self, request_id: str) -> None:
        with self._changed:
            self._ids.discard(request_id)
            self._cancelled.pop(request_id, None)  # or it would be of the next request of this id

    # ---- the thread

    def _run(self) -> None:
        try:
            device = self._model.embedding.weight.device
            if device.type == "cuda":
                torch.cuda.set_device(device)
            if self._config.warm_up:
                self._stepper.warm_up()
            while self._take_in():
                if not self._stepper.step():
                    with self._changed:
                        if not (self._submitted or self._cancelled or self._loaded):
                            self._changed.wait(IDLE_SECONDS)
        except BaseException as error:
            self._fail(error)

    def _take_in(self) -> bool:
        """What came since the last step; waits while there is nothing to do. False: the thread's work is over."""
        with self._changed:
            while not (self._stepper.live or self._submitted or self._closing):
                self._changed.wait()
            submitted, cancelled, loaded = list(self._submitted), self._cancelled, self._loaded
            for running in submitted:  # under the lock, which counts those that wait
                self._stepper.take(running)
            self._submitted.clear()
            self._cancelled, self._loaded = {}, []
            closing, draining = self._closing, self._draining
        for session in loaded:
            self._stepper.session_loaded(session)
        for request_id in cancelled:
            self._stepper.cancel(request_id)
        if closing and not draining:
            self._stepper.end_all("cancelled")
        return bool(self._stepper.live) or not closing

    def _fail(self, error: BaseException) -> None:
        logger.error("the engine's thread failed", exc_info=error)
        with self._changed:
            self._failure = error
            submitted = list(self._submitted)
            self._submitted.clear()
        failed = EngineFailed(f"the engine's thread failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        self._stepper.fail(submitted, failed)
