# SPDX-License-Identifier: Apache-2.0
"""Which replica a request goes to: the one that has the state of its session or of its beginning, unless it is busy."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ..serving.params import Request
from ..serving.prefix_cache import HashedTokens, as_array
from .attempt import Attempt

MOST_CHUNKS = 64  # of a prompt that count: texts that begin alike for longer are one conversation
REMEMBERED = 1 << 16


def keys_of(request: Request, chunk: int) -> list[bytes]:
    """What tells which state a request can go on from, the longest first: its session, its beginnings in whole chunks,
    as the prefix cache keeps them. A prompt that is shorter than a chunk is one key.
    """
    text = HashedTokens(as_array(request.tokens[: MOST_CHUNKS * chunk]), chunk, request.cache_salt)
    beginnings = text.hashes[:0:-1] or [text.hash_of(len(text))]
    return beginnings if request.session is None else [b"session " + request.session.encode(), *beginnings]


class StickyRouter(RequestRouter):
    """A beginning's replica is the last one that got it. One that nobody has seen, here, has a replica by rendezvous
    hashing, so that routers of several ingresses agree. A replica with `busy_at` requests is passed over; where all are
    busy, the one with the fewest is taken.
    """

    def initialize_state(self, chunk: int, busy_at: int) -> None:  # type: ignore[override]
        self._chunk, self._busy_at = chunk, busy_at
        self._last: OrderedDict[bytes, ReplicaID] = OrderedDict()  # by key; the used last at the end
        self._running: dict[ReplicaID, set[str]] = {}  # requests from here

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        assert pending_request is not None
        pending_request.routing_context.should_backoff = True  # or it would be asked again without a pause
        attempt = _attempt_of(pending_request)
        if attempt is None:
            return [candidate_replicas]
        keys = keys_of(attempt.request, self._chunk)
        candidates = {x.replica_id: x for x in candidate_replicas if x.replica_id.unique_id not in attempt.avoid}
        order = sorted(candidates, key=lambda x: _score(keys[-1], x), reverse=True)
        known = next((self._last[key] for key in keys if self._last.get(key) in candidates), None)
        if known is not None:
            order.remove(known)
            order.insert(0, known)
        busy = [x for x in order if self._requests_of(x) >= self._busy_at]
        ranks = [[candidates[x]] for x in order if x not in busy]
        return [*ranks, [candidates[x] for x in busy]] if busy else ranks

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        attempt = _attempt_of(pending_request)
        if attempt is None:
            return
        self._running.setdefault(replica_id, set()).add(pending_request.metadata.internal_request_id)
        for key in keys_of(attempt.request, self._chunk):
            self._last[key] = replica_id
            self._last.move_to_end(key)
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        running = self._running.get(replica_id, set())
        running.discard(internal_request_id)
        if not running:
            self._running.pop(replica_id, None)

    def _requests_of(self, replica: ReplicaID) -> int:
        """As the replica said last. Where that is long ago, those from here: else Serve would ask it first, and take
        another one if its answer took a tenth of a second.
        """
        known, own = self.replica_queue_len_cache.get(replica), len(self._running.get(replica, ()))
        if known is None:
            self.replica_queue_len_cache.update(replica, own)
        return own if known is None else known


def _attempt_of(pending: PendingRequest) -> Attempt | None:
    """None: of a call that asks for no answer."""
    return next((value for value in pending.args if isinstance(value, Attempt)), None)


def _score(key: bytes, replica: ReplicaID) -> bytes:
    return hashlib.blake2b(key + replica.unique_id.encode(), digest_size=8).digest()
