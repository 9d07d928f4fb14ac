# SPDX-License-Identifier: Apache-2.0
"""Several engines, each a process with the whole model, behind the interface of one.

A request goes to the replica that has read its beginning, as long as that has not much more to do than others, and a
session to the same one unless that has a whole engine's work more. When a process ends, its requests go on in another
after the tokens that were delivered, and the process is started again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from .._core.checks import one_of, positive_int
from .config import EngineConfig
from .engine import AnswerLost, Engine, EngineClosed, EngineFailed, QueueFull
from .metrics import Snapshot
from .params import Output, Request, seeded
from .prefix_cache import HashedTokens, as_array
from .replica import Replica, ReplicaDied, exit_text

logger = logging.getLogger("xlstm_hip")
MOST_BEGINNINGS = 65536  # that the router remembers
MOST_DEATHS = 3  # of replicas at one request, which may be why
MOST_STARTS, STARTS_SECONDS = 5, 600.0  # a replica that was started as often in this time is not started again
PAUSE_SECONDS = 1.0  # before the second start, twice as long before each further one
LOOK_SECONDS = 1.0  # between looks at replicas that hang, and at requests that wait for one
CLOSE_SECONDS = 30.0  # for a process to end after its engine's time is over


@dataclass(eq=False)
class Entry:
    """A request on its way. on_output gets its outputs as of one engine."""

    request: Request
    on_output: Callable[[Output], None]
    came: float
    replica: Replica | None = None
    accepted: bool = False  # by that replica
    cancelled: bool = False
    answered: list[int] = field(default_factory=list)
    cached: int = 0
    deaths: int = 0

    @property
    def left(self) -> float | None:
        """Seconds until its deadline."""
        deadline = self.request.deadline
        return None if deadline is None else max(0.0, deadline - (time.monotonic() - self.came))

    def rest(self) -> Request:
        """What is left to do."""
        answered = (*self.request.answered, *self.answered)
        return dataclasses.replace(self.request, answered=answered, deadline=self.left)

    def too_many_deaths(self) -> AnswerLost:
        return AnswerLost(f"{self.deaths} engines ended while they answered this request")

    def end(self, reason: str, error: Exception | None = None) -> Output:
        """Its last output, where no engine gives one."""
        request = self.request
        logprobs: list | None = None if request.params.logprobs is None else []
        count = len(request.answered) + len(self.answered)
        return Output(request.id, [], "", logprobs, reason, None, error, len(request.tokens), self.cached, count)


class Router:
    """Answers requests with `count` engines, as Engine does with one.

    load      called in each process with its number from 0 on: returns an Engine with this configuration, started. A
              function of a module, or a functools.partial of one, as it is pickled
    config    its limits are those of each engine
    """

    def __init__(self, load: Callable[[int], Engine], count: int, config: EngineConfig) -> None:
        positive_int("count", count)
        if not isinstance(config, EngineConfig):
            raise ValueError(f"config: expected an EngineConfig, got {config!r}")
        if not callable(load):
            raise ValueError(f"load: expected a function of a replica's number, got {load!r}")
        try:
            pickle.dumps(load)
        except Exception as error:
            raise ValueError(f"load: expected a function of a module, which can be pickled: {error}") from None
        self._load, self._chunk, self._slots = load, config.prefill_chunk, config.slots
        self._entries: dict[str, Entry] = {}
        self._loads: dict[Replica, int] = {}  # of those that are up: requests that each has
        self._begun: OrderedDict[bytes, set[Replica]] = OrderedDict()  # by beginning: who has read it
        self._without: list[Entry] = []  # accepted, and no replica has them
        self._starts: list[list[float]] = [[] for _ in range(count)]
        self._lost: set[int] = set()  # numbers of replicas that are not started again
        self._restarts, self._continued = [0] * count, [0] * count
        self._replicas: list[Replica] = []
        self._started = self._draining = self._closing = False
        self._changed = threading.Condition()

    def start(self) -> Router:
        """Waits until all engines run. Raises what the first one that does not has to say, and ends the others."""
        with self._changed:
            if self._replicas:
                raise RuntimeError("start: expected a router that was not started before")
            for number in range(len(self._starts)):
                self._replicas.append(self._start_replica(number))
        try:
            for replica in self._replicas:
                replica.ready.result()
        except BaseException:
            self.close(drain=False)
            raise
        with self._changed:
            self._started = True
            ended = [replica for replica in self._replicas if not replica.is_up]
        for replica in ended:
            self._start_again(replica)
        threading.Thread(target=self._look, name="xlstm_hip-router", daemon=True).start()
        return self

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """As Engine.submit. QueueFull also while all engines are being started again."""
        if not isinstance(request, Request):
            raise ValueError(f"request: expected a Request, got {request!r}")
        if not callable(on_output):
            raise ValueError(f"on_output: expected a function of an Output, got {on_output!r}")
        entry = Entry(seeded(request), on_output, time.monotonic())
        with self._changed:
            if not self._started or self._draining or not self.healthy:
                raise EngineClosed(f"submit: expected engines that run, but they {self._state()}")
            if request.id in self._entries:
                raise ValueError(f"id: expected one that no unfinished request has, got {request.id!r}")
            self._entries[request.id] = entry
        try:
            self._place(entry)
        except BaseException:
            with self._changed:
                self._entries.pop(request.id, None)
                self._changed.notify_all()
            raise

    def cancel(self, request_id: str) -> None:
        """As Engine.cancel."""
        with self._changed:
            entry = self._entries.get(request_id)
            if entry is None:
                return
            entry.cancelled = True
            replica = entry.replica if entry.accepted else None
            waits = entry in self._without
            if waits:
                self._without.remove(entry)
        if replica is not None:
            replica.cancel(request_id)
        elif waits:
            self._finish(entry, "cancelled")

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """As Engine.close, of all engines; their processes end."""
        one_of("drain", drain, (True, False))
        if any(threading.current_thread() is replica.reader for replica in self._replicas):
            raise RuntimeError("close: expected a call from another thread than on_output's, which it waits for")
        with self._changed:
            self._draining = True
            if drain:
                self._changed.wait_for(lambda: not self._entries or not self.healthy, timeout)
            self._closing = True
            self._changed.notify_all()
            replicas, without, self._without = [*self._replicas], self._without, []
        for replica in replicas:
            if replica.is_up:
                replica.close()
            else:
                replica.process.kill()
        for entry in without:
            self._finish(entry, "cancelled")
        end = time.monotonic() + CLOSE_SECONDS
        for replica in replicas:
            if not replica.ended.wait(max(0.0, end - time.monotonic())):
                replica.process.kill()
                replica.ended.wait(CLOSE_SECONDS)

    @property
    def healthy(self) -> bool:
        """Whether an engine runs or is being started."""
        return bool(self._replicas) and not self._closing and len(self._lost) < len(self._starts)

    def metrics(self) -> dict[str, Snapshot]:
        """Of the engines that run, by their numbers; some tenths of a second old."""
        with self._changed:
            return {
                str(replica.number): dataclasses.replace(
                    replica.snapshot,
                    restarts=self._restarts[replica.number],
                    requests_continued=self._continued[replica.number],
                )
                for replica in self._replicas
                if replica.is_up and replica.snapshot is not None
            }

    def __enter__(self) -> Router:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close(drain=False)

    # ---- who answers

    def _place(self, entry: Entry) -> None:
        """Has a replica accept the request. Raises why none did."""
        refused: set[Replica] = set()
        why: Exception | None = None
        while True:
            with self._changed:
                replica = self._chosen(entry.request, refused)
                if replica is None:
                    if self._closing:
                        raise EngineClosed(f"submit: expected engines that run, but they {self._state()}")
                    raise why or QueueFull("submit: all engines are being started again")
                entry.replica, entry.accepted = replica, False
                self._loads[replica] += 1
            try:
                replica.submit(entry.rest(), lambda: self._accepted(entry))
                return
            except BaseException as error:
                self._count_off(entry)
                if not isinstance(error, (QueueFull, EngineClosed, ReplicaDied)):
                    raise
                why = error if isinstance(error, QueueFull) else why
                refused.add(replica)
                entry.deaths += isinstance(error, ReplicaDied)
                if entry.deaths >= MOST_DEATHS:
                    raise entry.too_many_deaths() from None

    def _accepted(self, entry: Entry) -> None:
        with self._changed:
            entry.accepted = True
            replica = entry.replica if entry.cancelled else None
        if replica is not None:
            replica.cancel(entry.request.id)

    def _chosen(self, request: Request, refused: set[Replica]) -> Replica | None:
        """Under the lock."""
        up = [replica for replica in self._loads if replica not in refused]
        if not up:
            return None
        least = min(up, key=lambda replica: (self._loads[replica], replica.number))
        if request.session is not None:  # its state is there, and read from nowhere else
            at = max(up, key=lambda replica: hashlib.sha256(f"{replica.number} {request.session}".encode()).digest())
            return at if self._loads[at] <= self._loads[least] + self._slots else least
        first = HashedTokens(as_array(request.tokens[: self._chunk]), self._chunk, request.cache_salt)
        beginning = first.hash_of(len(first))
        begun = self._begun.setdefault(beginning, set())
        self._begun.move_to_end(beginning)
        if len(self._begun) > MOST_BEGINNINGS:
            self._begun.popitem(last=False)
        known = [replica for replica in up if replica in begun]
        nearest = min(known, key=lambda replica: (self._loads[replica], replica.number)) if known else least
        if self._loads[nearest] > self._loads[least] + max(1, self._slots // 4):
            nearest = least
        begun.add(nearest)
        return nearest

    def _count_off(self, entry: Entry) -> None:
        with self._changed:
            if entry.replica in self._loads:
                self._loads[entry.replica] -= 1
            entry.replica = None

    # ---- what replicas say, from the thread of each

    def _start_replica(self, number: int) -> Replica:
        self._starts[number].append(time.monotonic())
        return Replica(self._load, number, self._take, self._is_ready, self._has_ended)

    def _is_ready(self, replica: Replica) -> None:
        with self._changed:
            self._loads[replica] = 0
        # Not in this thread, which reads the replica's answers.
        threading.Thread(target=self._place_those_without, daemon=True).start()

    def _take(self, replica: Replica, outputs: list[Output]) -> None:
        for output in outputs:
            with self._changed:
                entry = self._entries.get(output.id)
                if entry is None or entry.replica is not replica:
                    continue
                entry.answered += output.tokens
                entry.cached = max(entry.cached, output.cached_tokens)
            output = output._replace(cached_tokens=entry.cached)
            if output.finish_reason is not None:
                self._forget(entry)
            self._deliver(entry, output)

    def _has_ended(self, replica: Replica, code: int) -> None:
        with self._changed:
            self._loads.pop(replica, None)
            for begun in self._begun.values():
                begun.discard(replica)
            orphans = [one for one in self._entries.values() if one.replica is replica and one.accepted]
            for entry in orphans:
                entry.deaths += 1
                entry.replica, entry.accepted = None, False
            closing = self._closing
            if not closing:
                self._without.extend(orphans)
        if closing:
            for entry in orphans:
                self._finish(entry, "cancelled")
            return
        why = replica.ready.exception() or exit_text(code)
        logger.error("replica %d ended (%s); its %d requests go on elsewhere", replica.number, why, len(orphans))
        self._place_those_without()
        self._start_again(replica)

    def _start_again(self, ended: Replica) -> None:
        """After a pause, in the place of the one that ended."""
        number = ended.number
        with self._changed:
            starts = self._starts[number]
            starts[:] = [at for at in starts if time.monotonic() - at < STARTS_SECONDS]
            pause = 0.0 if len(starts) < 2 else PAUSE_SECONDS * 2 ** (len(starts) - 2)
            if not self._started or self._replicas[number] is not ended:
                return
            if len(starts) < MOST_STARTS:
                if self._changed.wait_for(lambda: self._closing, pause) or self._replicas[number] is not ended:
                    return
                try:
                    self._replicas[number] = self._start_replica(number)
                    self._restarts[number] += 1
                    return
                except OSError as error:
                    logger.error("replica %d cannot be started: %s", number, error)
            logger.error("replica %d was started %d times in a short time, and is not again", number, len(starts))
            self._lost.add(number)
            self._changed.notify_all()
            without = [] if self.healthy else self._without
            if without:
                self._without = []
        for entry in without:
            self._finish(entry, "error", EngineFailed("no engine is left"))

    # ---- requests without a replica, and replicas that hang

    def _look(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, LOOK_SECONDS):
                    return
                for replica in self._replicas:
                    why = replica.hangs()
                    if why:
                        logger.error("replica %d is ended: %s", replica.number, why)
                        replica.process.kill()
            self._place_those_without()

    def _place_those_without(self) -> None:
        """Those that find no place, as queues are full or engines are being started, wait for the next look."""
        with self._changed:
            entries, self._without = self._without, []
        for entry in entries:
            self._go_on(entry)

    def _go_on(self, entry: Entry) -> None:
        if entry.cancelled or entry.left == 0:
            self._finish(entry, "cancelled" if entry.cancelled else "deadline")
        elif entry.deaths >= MOST_DEATHS:
            self._finish(entry, "error", entry.too_many_deaths())
        else:
            try:
                self._place(entry)
            except (QueueFull, EngineClosed) as error:
                with self._changed:
                    waits = self.healthy and not entry.cancelled
                    if waits:
                        self._without.append(entry)
                if not waits:
                    cancelled = self._closing or entry.cancelled
                    self._finish(entry, "cancelled" if cancelled else "error", None if cancelled else error)
            except Exception as error:
                self._finish(entry, "error", error)
            else:
                with self._changed:
                    if entry.replica is not None:  # else it has ended meanwhile
                        self._continued[entry.replica.number] += 1

    # ---- ends

    def _forget(self, entry: Entry) -> None:
        self._count_off(entry)
        with self._changed:
            self._entries.pop(entry.request.id, None)
            self._changed.notify_all()

    def _finish(self, entry: Entry, reason: str, error: Exception | None = None) -> None:
        self._forget(entry)
        self._deliver(entry, entry.end(reason, error))

    def _deliver(self, entry: Entry, output: Output) -> None:
        try:
            entry.on_output(output)
        except Exception as error:
            logger.warning("on_output of request %s failed: %s: %s", output.id, type(error).__name__, error)
            if output.finish_reason is not None:
                return
            replica = entry.replica
            self._forget(entry)
            if replica is not None:
                replica.cancel(output.id)
            try:
                entry.on_output(entry.end("error", error))
            except Exception:
                logger.warning("on_output of request %s failed for its last output, too", output.id)

    def _state(self) -> str:
        return "were not started" if not self._replicas else "are closed" if self._draining else "have failed"
