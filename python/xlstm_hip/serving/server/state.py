# SPDX-License-Identifier: Apache-2.0
"""What all requests of a server share: the model once it is loaded, keys, limits, the door, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from fastapi import Request

from ..metrics import Snapshot
from .auth import Keys
from .errors import ApiError
from .generation import Mailbox
from .limits import Door, Limits
from .logs import Record
from .metrics import ServerMetrics
from .served import Served


class ServerState:
    """
    served     None until the model is loaded
    lenient    whether unknown fields of requests are left out
    """

    def __init__(self, keys: Keys, limits: Limits, lenient: bool = False) -> None:
        self.keys, self.limits, self.lenient = keys, limits, lenient
        self.served: Served | None = None
        self.door = Door(limits.max_requests_per_key)
        self.metrics = ServerMetrics(self.snapshots)
        # The engine compiles one form of an answer at a time, which may take long: requests without one do not wait.
        self.forms = ThreadPoolExecutor(1, "forms")
        self._mailbox: Mailbox | None = None

    @property
    def mailbox(self) -> Mailbox:
        """Of the loop that asks, which is the server's."""
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        return self._mailbox

    def snapshots(self) -> Mapping[str, Snapshot]:
        """Of the engine, by replica: none while the model is being loaded, or no replica is there."""
        return {} if self.served is None else self.served.snapshots()

    def status(self) -> str:
        """ "ready", or why not."""
        if self.served is None:
            return "loading"
        if not self.served.engine.healthy:
            return "failed"
        if self.door.closed:
            return "draining"
        return "ready" if any(one.healthy for one in self.snapshots().values()) else "waiting for a replica"

    def ready(self) -> Served:
        """The model, or an error that says why it does not answer."""
        if self.served is None:
            raise ApiError(503, "the model is being loaded", code="loading", retry_after=5)
        if not self.door.closed and not self.served.engine.healthy:
            raise ApiError(503, "the engine has failed; the server must be started again", code="engine_failed")
        return self.served

    def enter(self, request: Request) -> tuple[Served, Record]:
        """Lets a request in that will be answered by the engine, or raises."""
        record = record_of(request)
        record.key = self.keys.check(request)
        served = self.ready()
        record.on_end.append(self.door.enter(record.key))
        self.metrics.open.inc()
        record.on_end.append(self.metrics.open.dec)
        return served, record


def record_of(request: Request) -> Record:
    return request.scope["state"]["record"]
