# SPDX-License-Identifier: Apache-2.0
"""The end of a server: the first signal lets running answers end, the second ends everything at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from types import FrameType

import uvicorn

from .logs import say
from .state import ServerState

CUT_SECONDS = 5.0  # for clients to be told that their requests were cancelled


class DrainingServer(uvicorn.Server):
    """uvicorn's server closes its sockets at the first signal. Here it goes on: /ready says 503 to a load balancer,
    new requests are refused in words, and running answers end, or are cancelled after drain_seconds.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, drain_seconds: float) -> None:
        super().__init__(config)
        self._state, self._drain_seconds = state, drain_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._signalled = False

    async def startup(self, sockets: list | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Of uvicorn: called for SIGTERM and SIGINT, between two instructions of whatever runs."""
        if self._signalled or self._loop is None or self._state.served is None:
            # The second one, or nothing has been begun: a thread that loads a model does not stop when asked.
            sys.stderr.flush()
            os._exit(0 if not self._signalled else 128 + sig)
        self._signalled = True
        self._loop.call_soon_threadsafe(self._begin, signal.Signals(sig).name)

    def _begin(self, name: str) -> None:
        self._draining = asyncio.create_task(self._drain(name))

    async def _drain(self, name: str) -> None:
        door, served = self._state.door, self._state.served
        assert served is not None
        say("draining", signal=name, requests=door.inside, seconds=self._drain_seconds)
        door.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(door.until_empty(), self._drain_seconds)
        cut = door.inside
        # The engine says to those that are left that they are cancelled, and they to their clients.
        await asyncio.to_thread(served.engine.close, False)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(door.until_empty(), CUT_SECONDS)
        say("drained", cancelled=cut)
        self.should_exit = True
