# SPDX-License-Identifier: Apache-2.0
"""The engine's requests of one HTTP request: their outputs come from the engine's thread to the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from ..engine import AnswerLost
from ..params import Output, Request
from .errors import ApiError
from .logs import say
from .served import EngineLike

LEFT, SLOW, ENDED = "left", "slow", "ended"  # why a generation was stopped: the client left, does not read; all is said


class Mailbox:
    """Hands outputs over to the event loop.

    The engine calls once a row and step. A wake-up of the loop for each would cost the engine's thread a system call;
    here those that come before the loop has looked share one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[Generation, int, Output]] = deque()
        self._woken = False
        self._lock = threading.Lock()

    def post(self, to: Generation, choice: int, output: Output) -> None:
        """From the engine's thread."""
        with self._lock:
            self._letters.append((to, choice, output))
            if self._woken:
                return
            self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            letters, self._letters, self._woken = self._letters, deque(), False
        for generation, choice, output in letters:
            generation.take(choice, output)


class Generation:
    """Requests that are answered together, and their outputs until somebody takes them.

    name       of the HTTP request, for the log
    bound      of a stream: outputs that may wait; with more, the generation is stopped as SLOW. None: the answer is
               taken at its end
    stopped    set when it was stopped: `cause` says why
    """

    def __init__(
        self,
        mailbox: Mailbox,
        engine: EngineLike,
        requests: Sequence[Request],
        name: str = "",
        bound: int | None = None,
    ) -> None:
        self._mailbox, self._engine, self._requests = mailbox, engine, requests
        self._name, self._bound = name, bound
        self._waiting: deque[tuple[int, Output]] = deque()
        self._ready = asyncio.Event()
        self._unfinished = set(range(len(requests)))
        self.stopped = asyncio.Event()
        self.cause: str | None = None
        self.first: float | None = None  # when the first token came

    def submit(self) -> None:
        """Submits all requests or, where one is refused, none. May be called in any thread."""
        submitted: list[str] = []
        try:
            for choice, request in enumerate(self._requests):
                self._engine.submit(request, functools.partial(self._mailbox.post, self, choice))
                submitted.append(request.id)
        except BaseException:
            for name in submitted:
                self._engine.cancel(name)
            raise

    def take(self, choice: int, output: Output) -> None:
        """An output has come."""
        if self.first is None and output.tokens:
            self.first = time.monotonic()
        if output.finish_reason is not None:
            self._unfinished.discard(choice)
        if output.finish_reason == "error":  # what the client is not told
            say("request failed in the engine", logging.ERROR, output.error, request_id=self._name)
        if self.cause is not None:
            return
        self._waiting.append((choice, output))
        if self._bound is not None or output.finish_reason is not None:
            self._ready.set()
        if self._bound is not None and len(self._waiting) > self._bound:
            self.stop(SLOW)

    def stop(self, cause: str) -> None:
        """Cancels what is unfinished, at once."""
        if self.cause is None:
            self.cause = cause
            self._waiting.clear()
            self.stopped.set()
            for choice in self._unfinished:
                self._engine.cancel(self._requests[choice].id)

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return not self._unfinished and not self._waiting

    async def until_ready(self) -> bool:
        """Waits for outputs; False if woken without any."""
        if not self._waiting:
            self._ready.clear()
            await self._ready.wait()
        return bool(self._waiting)

    def wake(self) -> None:
        self._ready.set()

    def peek(self) -> Output | None:
        return self._waiting[0][1] if self._waiting else None

    def outputs(self) -> list[tuple[int, Output]]:
        """All that wait, by choice, in the order in which they came."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def failure_of(output: Output) -> ApiError | None:
    """The error of a request that ended with one."""
    reason = output.finish_reason
    if isinstance(output.error, AnswerLost):
        return ApiError(503, str(output.error), code="answer_lost", retry_after=1)
    if reason == "error":
        # What an exception says may be of use to an attacker, its type is enough for a report. The log has both.
        kind = type(output.error).__name__ if output.error is not None else "unknown"
        return ApiError(500, f"the engine could not answer this request: {kind}", code="engine_error")
    if reason == "deadline":
        return ApiError(504, "the answer was not finished in the time that a request has", code="deadline_exceeded")
    if reason == "cancelled":
        return ApiError(503, "the server ended this request", code="cancelled", retry_after=5)
    return None
