# SPDX-License-Identifier: Apache-2.0
"""An engine that is many: what the ingress' server submits to. Requests outlive the replica that answers them.

An answer follows from its prompt, its parameters and its seed, so another replica goes on with it after the tokens that
were delivered (`Request.answered`). A request without a seed gets one here, for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from ..serving.admission import Admission
from ..serving.engine import AnswerLost, EngineClosed, EngineFailed, QueueFull
from ..serving.metrics import Snapshot
from ..serving.params import Output, Request, seeded
from ..serving.server.logs import say
from .attempt import Attempt

MOST_ATTEMPTS = 5  # a request that ends the process that reads it must not end all
PAUSE_SECONDS = 0.2  # before another one
LOOK_SECONDS = 1.0  # between looks at what replicas count
LOOK_TIMEOUT = 5.0
LATE_SECONDS = 1.0  # after a deadline, for the replica to say so itself


class _Lost(Exception):
    """The replica, and not the request, has failed. failed: its name, if it is still there."""

    def __init__(self, why: str, failed: str | None = None) -> None:
        super().__init__(why)
        self.failed = failed


class _Delivered:
    """What of an answer has been delivered."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._cached = 0

    def add(self, output: Output) -> Output:
        """As of one engine that had the whole request."""
        self.tokens += output.tokens
        self._cached = max(self._cached, output.cached_tokens)
        return output._replace(cached_tokens=self._cached)


class Replicas:
    """
    handle         of the deployment of EngineReplica
    max_waiting    requests that no replica has taken yet; more are refused
    """

    def __init__(self, handle: DeploymentHandle, admission: Admission, max_waiting: int) -> None:
        self._handle, self._admission, self._max_waiting = handle, admission, max_waiting
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of what follows
        self._tasks: dict[str, asyncio.Task[None] | None] = {}  # by request; None until the loop has begun it
        self._waiting: set[str] = set()
        self._closed = False
        self._snapshots: dict[str, Snapshot] = {}

    # ---- what a server needs of an engine

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        self._admission.check(request, on_output)
        with self._lock:
            if self._closed:
                raise EngineClosed("submit: expected an ingress that is not being ended")
            if request.id in self._tasks:
                raise ValueError(f"id: expected one that no unfinished request has, got {request.id!r}")
            if len(self._waiting) >= self._max_waiting:
                raise QueueFull(f"submit: {self._max_waiting} requests wait already (max_waiting)")
            self._tasks[request.id] = None
            self._waiting.add(request.id)
        self._loop.call_soon_threadsafe(self._begin, request, on_output)

    def cancel(self, request_id: str) -> None:
        self._loop.call_soon_threadsafe(self._cancel, request_id)

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Not from the event loop if it is to drain, which it would wait for."""
        with self._lock:
            self._closed = True
            tasks = [task for task in self._tasks.values() if task is not None]
        if drain and tasks:
            waiting = asyncio.run_coroutine_threadsafe(_all(tasks, timeout), self._loop)
            waiting.result()
        for request_id in list(self._tasks):
            self.cancel(request_id)

    def metrics(self) -> Mapping[str, Snapshot]:
        return self._snapshots

    @property
    def healthy(self) -> bool:
        """Serve replaces replicas that fail; requests wait for one."""
        return True

    # ---- the loop

    async def look(self) -> None:
        """Asks all replicas what they count, again and again."""
        while True:
            try:
                found = await self._handle.broadcast("snapshot").results_async(
                    timeout_s=LOOK_TIMEOUT, return_exceptions=True
                )
                self._snapshots = dict(one for one in found if not isinstance(one, BaseException))
            except DeploymentUnavailableError:  # there is none
                self._snapshots = {}
            except (TimeoutError, RayError, RayServeException) as error:
                say("replicas did not say what they count", logging.WARNING, why=f"{type(error).__name__}: {error}")
            await asyncio.sleep(LOOK_SECONDS)

    def _begin(self, request: Request, on_output: Callable[[Output], None]) -> None:
        delivered = _Delivered()

        async def answer() -> None:
            late = None if request.deadline is None else request.deadline + LATE_SECONDS
            await asyncio.wait_for(self._attempts(request, delivered, on_output), late)

        def over(task: asyncio.Task[None]) -> None:
            """Also of a task that was cancelled before it began."""
            with self._lock:
                self._waiting.discard(request.id)
                self._tasks.pop(request.id, None)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                return
            reasons = {asyncio.CancelledError: "cancelled", asyncio.TimeoutError: "deadline"}
            reason = reasons.get(type(error), "error")
            shown = error if reason == "error" and isinstance(error, Exception) else None
            logprobs: list[Any] | None = None if request.params.logprobs is None else []
            counts = len(request.tokens), 0, len(delivered.tokens)
            on_output(Output(request.id, [], "", logprobs, reason, None, shown, *counts))

        task = asyncio.create_task(answer())
        with self._lock:
            self._tasks[request.id] = task
        task.add_done_callback(over)

    def _cancel(self, request_id: str) -> None:
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    async def _attempts(self, request: Request, delivered: _Delivered, on_output: Callable[[Output], None]) -> None:
        request = seeded(request)
        began, avoid, why = self._loop.time(), set[str](), ""
        for number in range(MOST_ATTEMPTS):
            left = None if request.deadline is None else request.deadline - (self._loop.time() - began)
            if left is not None and left <= 0:
                raise asyncio.TimeoutError
            attempt = dataclasses.replace(
                request, id=f"{request.id}-{number}", deadline=left, answered=delivered.tokens
            )
            try:
                await self._attempt(Attempt(attempt, frozenset(avoid)), request.id, delivered, on_output)
                return
            except _Lost as lost:
                why = str(lost)
                if lost.failed is not None:
                    avoid.add(lost.failed)
                say("a replica was lost", logging.WARNING, answer=request.id, attempt=number + 1, why=why)
            await asyncio.sleep(PAUSE_SECONDS)
        raise AnswerLost(f"{MOST_ATTEMPTS} replicas were lost with this request: {why}")

    async def _attempt(
        self, attempt: Attempt, request_id: str, delivered: _Delivered, on_output: Callable[[Output], None]
    ) -> None:
        replica: str | None = None
        response: Any = self._handle.options(stream=True).answer.remote(attempt)
        try:
            async for item in response:
                if isinstance(item, str):
                    replica = item
                    with self._lock:
                        self._waiting.discard(request_id)
                    continue
                for output in item:
                    if output.finish_reason == "cancelled" or isinstance(output.error, EngineFailed):
                        raise _Lost(f"its engine ended: {output.error or output.finish_reason}", replica)
                    on_output(delivered.add(output)._replace(id=request_id))
                    if output.finish_reason is not None:
                        return
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise AnswerLost(f"no replica takes this request: {error.message}") from error
        except RayTaskError as error:  # raised by the replica's code
            if isinstance(error, EngineClosed):
                raise _Lost("its engine takes no more requests", replica) from error
            raise
        except RayError as error:  # its process or its machine is gone, or cannot be reached
            raise _Lost(f"{type(error).__name__}") from error
        finally:
            with contextlib.suppress(RayError):
                response.cancel()
        raise _Lost("its answer ended too early", replica)


async def _all(tasks: list[asyncio.Task[None]], timeout: float | None) -> None:
    await asyncio.wait(tasks, timeout=timeout)
