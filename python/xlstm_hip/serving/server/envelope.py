# SPDX-License-Identifier: Apache-2.0
"""Around every request: its id, its line in the log, its metrics, and the answer to what nobody foresaw."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, ClientLeft
from .generation import LEFT
from .logs import Record, say

ID_HEADER = "X-Request-Id"
LONGEST_ID = 128
LEFT_STATUS = 499  # for a client that left before it had an answer, as nginx counts them
QUIET = ("/health", "/ready", "/metrics")  # asked for every few seconds


def request_id(given: str) -> str:
    """The client's own, if it is one that a log can show, or a new one."""
    fits = 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable() and " " not in given
    return given if fits else uuid.uuid4().hex


class Envelope:
    """
    ended        called with each request, and its seconds, when it has been answered
    writes_id    whether answers get the header with the request's id; False: who stands before this server writes it
    """

    def __init__(self, app: ASGIApp, ended: Sequence[Callable[[Record, float], None]], writes_id: bool = True) -> None:
        self._app, self._ended, self._writes_id = app, ended, writes_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # As it was sent: a decoded path may contain the end of a line.
        path = scope.get("raw_path", b"").decode("latin-1")[:200]
        headers = Headers(scope=scope)
        trace = headers.get("traceparent", "")
        record = Record(request_id(headers.get(ID_HEADER, "")), scope["method"], path, trace)
        scope["state"] = {**scope.get("state", {}), "record": record}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if self._writes_id:
                    MutableHeaders(scope=message)[ID_HEADER] = record.id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientLeft:
            record.outcome = LEFT
        except Exception as error:
            say("unexpected error", logging.ERROR, error, request_id=record.id)
            record.outcome = "failed"
            if not record.status:
                text = f"internal error; the server's log has it under the request id {record.id}"
                await ApiError(500, text, code="internal_error").response()(scope, receive, send_with_id)
        finally:
            self._end(record, scope)

    def _end(self, record: Record, scope: Scope) -> None:
        for leave in record.on_end:
            leave()
        record.route = getattr(scope.get("route"), "path", "other")
        record.status = record.status or LEFT_STATUS
        record.outcome = record.outcome or ("refused" if record.status >= 400 else "ok")
        seconds = time.monotonic() - record.began
        for call in self._ended:
            call(record, seconds)
        level = logging.DEBUG if record.path in QUIET else logging.INFO
        say("request", level, **record.fields(seconds))
