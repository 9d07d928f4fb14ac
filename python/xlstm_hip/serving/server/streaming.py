# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: an answer while it is written. A client that leaves or does not read stops its own answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ..params import Output
from .generation import ENDED, LEFT, SLOW, Generation, failure_of
from .logs import Record

ALIVE_SECONDS = 15.0  # of silence, after which a comment tells proxies that the connection lives
DONE = b"data: [DONE]\n\n"


class Events(Protocol):
    """What an answer looks like as events."""

    def events(self, choice: int, output: Output) -> list[dict[str, Any]]:
        """Of an output; none if it has nothing to show."""

    def last_events(self) -> list[dict[str, Any]]:
        """After all outputs."""


def encode(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def until_left(receive: Receive) -> None:
    """Returns when the client closes the connection. The request's body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def watch(receive: Receive, generation: Generation) -> asyncio.Task[None]:
    """Stops the generation when the client leaves."""
    task = asyncio.create_task(until_left(receive))

    def left(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and not generation.over:  # one that has its answer may leave
            generation.stop(LEFT)

    task.add_done_callback(left)
    return task


class EventStream(Response):
    """Writes a generation's outputs as they come.

    uvicorn's send() waits while a client does not read. Outputs then wait in the generation, which stops itself when
    they are too many; one that waits here for stall_seconds is stopped, too. Then the connection is closed unfinished.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        answer: Events,
        leaving: asyncio.Task[None],
        stall_seconds: float,
        record: Record,
    ) -> None:
        # no-transform, X-Accel-Buffering: proxies pass each event on at once.
        super().__init__(headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation, self._answer, self._leaving, self._stall = generation, answer, leaving, stall_seconds
        self._record = record
        self._sending_since: float | None = None
        self._sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation, now = self._generation, asyncio.get_running_loop().time
        writing = asyncio.create_task(self._write(send))
        stopped = asyncio.create_task(generation.stopped.wait())
        try:
            while not writing.done() and not stopped.done():
                pause = min(ALIVE_SECONDS, self._stall) / 4
                await asyncio.wait({writing, stopped}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if self._sending_since is None:
                    if now() - self._sent > ALIVE_SECONDS:
                        generation.wake()
                elif now() - self._sending_since > self._stall:
                    generation.stop(SLOW)
            if writing.done():
                writing.result()
        finally:
            for task in (writing, stopped, self._leaving):
                task.cancel()
            await asyncio.wait({writing})
            generation.stop(ENDED)

    async def _write(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        generation, answer = self._generation, self._answer
        while True:
            if not await generation.until_ready():
                await self._send_body(send, b": waiting\n\n")
                continue
            parts, failure = [], None
            for choice, output in generation.outputs():
                failure = failure_of(output)
                if failure is not None:
                    self._record.code, self._record.outcome = failure.code, "failed"
                    parts += [encode(failure.body()), DONE]
                    break
                parts += map(encode, answer.events(choice, output))
            last = failure is not None or generation.over
            if last and failure is None:
                parts += [*map(encode, answer.last_events()), DONE]
            if parts:
                await self._send_body(send, b"".join(parts), last)
            if last:
                return

    async def _send_body(self, send: Send, body: bytes, last: bool = False) -> None:
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": not last})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time
        self._sending_since = now()
        await send(message)
        self._sending_since, self._sent = None, now()
