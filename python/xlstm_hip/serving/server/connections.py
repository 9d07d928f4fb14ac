# SPDX-License-Identifier: Apache-2.0
"""A connection of the server: HTTP/1.1 by h11, with a limit to the time in which a request's head may come."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(H11Protocol):
    """Clients that send a head byte by byte, or none at all, would else hold connections for as long as they like."""

    head_seconds = 30.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def _watch(self) -> None:
        """Between an answer and the next head's first byte uvicorn's own timer runs."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self._end)
        elif not waits and self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(LATE)
            self.transport.close()


def with_head_seconds(seconds: float) -> type[Connection]:
    return type("Connection", (Connection,), {"head_seconds": seconds})
