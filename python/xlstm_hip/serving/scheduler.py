# SPDX-License-Identifier: Apache-2.0
"""Which requests have a slot, and which tokens the next step reads and decodes. Plain Python, without model or clock.

A request waits, is read (its prompt, in chunks), and then decodes one token a step until whoever steps removes it.

Order. A request is served by its key: the time it came, less ageing_seconds for each unit of priority. So a greater
priority overtakes those that came up to that much earlier and nobody else: every request's turn comes, as time passes.

Chunks. A step reads whole chunks, which end at multiples of the chunk size in the prompt whatever runs beside it, so
that a prompt's result does not depend on its company. They are dealt in turns: one to the request that is first by its
key, one to the request with the fewest tokens left. The first never starves behind short prompts, and a short prompt
never waits for the whole of a long one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(eq=False)
class Job:
    """A request as the scheduler knows it."""

    id: str
    tokens: int  # to be read before it decodes
    key: tuple[float, int]  # the second part tells apart those that came at the same time
    priority: int
    deadline: float | None
    read: int = 0
    ready: bool = True  # whether what it needs to begin is there

    @property
    def decodes(self) -> bool:
        return self.read == self.tokens


class Chunk(NamedTuple):
    """Tokens begin .. end of a prompt."""

    id: str
    begin: int
    end: int


@dataclass(frozen=True)
class Plan:
    """A step: slots are given up, then taken, then rows decode and chunks are read."""

    preempted: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    decoding: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)


class Scheduler:
    """
    slots     requests that have a slot at a time; may be lowered and raised between steps
    preempts  whether a waiting request may take the slot of one that comes later in order and has a lower priority
    """

    def __init__(
        self, slots: int, token_budget: int, chunk: int, ageing_seconds: float = 10.0, preempts: bool = False
    ) -> None:
        assert token_budget >= chunk
        self.slots, self.preempts = slots, preempts
        self._budget, self._chunk, self._ageing = token_budget, chunk, ageing_seconds
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, Job] = {}
        self._queue: list[tuple[tuple[float, int], Job]] = []  # a heap of ready jobs; those removed stay in it a while
        self._with_deadline: dict[str, Job] = {}
        self._came = 0
        self._turn_of_first = True  # who gets the next chunk: the first in order, or the one with the least to read

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(
        self, id: str, tokens: int, now: float, priority: int = 0, deadline: float | None = None, ready: bool = True
    ) -> None:
        """A new request. ready False: it is not admitted before set_ready."""
        assert id not in self._waiting and id not in self._running and tokens > 0
        self._came += 1
        job = Job(id, tokens, (now - priority * self._ageing, self._came), priority, deadline, ready=ready)
        if deadline is not None:
            self._with_deadline[id] = job
        self._wait(job)

    def set_ready(self, id: str) -> None:
        job = self._waiting.get(id)
        if job is not None and not job.ready:
            job.ready = True
            self._wait(job)

    def advance(self, id: str, read: int) -> None:
        """So many of a running request's tokens have been read."""
        job = self._running[id]
        assert job.read <= read <= job.tokens
        job.read = read

    def remove(self, id: str) -> None:
        """A request is over, wherever it was."""
        if self._running.pop(id, None) is None:
            job = self._waiting.pop(id)
            job.ready = False  # what is left of it in the queue is passed over
        self._with_deadline.pop(id, None)

    def requeue(self, id: str, tokens: int, read: int) -> None:
        """A running request gives up its slot and waits in its old place, with so many tokens read of those to read."""
        job = self._running.pop(id)
        job.tokens, job.read = tokens, read
        self._wait(job)

    def expired(self, now: float) -> list[str]:
        return [id for id, job in self._with_deadline.items() if job.deadline is not None and job.deadline <= now]

    def plan(self, preemptions: int = 0) -> Plan:
        """The next step, at which at most so many slots change hands. Jobs admitted in it count as running."""
        plan = Plan()
        while (job := self._first_waiting()) is not None:
            if len(self._running) >= self.slots:
                victim = self._victim(job) if len(plan.preempted) < preemptions else None
                if victim is None or victim.id in plan.admitted:
                    break
                self.requeue(victim.id, victim.tokens, victim.read)
                plan.preempted.append(victim.id)
            heapq.heappop(self._queue)
            self._running[job.id] = self._waiting.pop(job.id)
            plan.admitted.append(job.id)
        plan.decoding.extend(id for id, job in self._running.items() if job.decodes)
        self._deal_chunks(plan.chunks)
        return plan

    def _wait(self, job: Job) -> None:
        self._waiting[job.id] = job
        if job.ready:
            heapq.heappush(self._queue, (job.key, job))
        if len(self._queue) > 2 * len(self._waiting) + 16:  # most of them were cancelled
            self._queue = [(job.key, job) for job in self._waiting.values() if job.ready]
            heapq.heapify(self._queue)

    def _first_waiting(self) -> Job | None:
        while self._queue:
            job = self._queue[0][1]
            if job.ready and self._waiting.get(job.id) is job:
                return job
            heapq.heappop(self._queue)
        return None

    def _victim(self, job: Job) -> Job | None:
        """The running request that the order has last, if it comes after this one and has a lower priority."""
        if not self.preempts or not self._running:
            return None
        last = max(self._running.values(), key=lambda running: running.key)
        return last if last.key > job.key and last.priority < job.priority else None

    def _deal_chunks(self, chunks: list[Chunk]) -> None:
        left = self._budget
        reading = {id: job for id, job in self._running.items() if not job.decodes}
        read = {id: job.read for id, job in reading.items()}  # with the chunks dealt so far
        while reading:
            first = min(reading.values(), key=lambda job: job.key)
            shortest = min(reading.values(), key=lambda job: (job.tokens - read[job.id], job.key))
            turn = (first, shortest) if self._turn_of_first else (shortest, first)
            for job in turn:
                begin = read[job.id]
                end = min((begin // self._chunk + 1) * self._chunk, job.tokens)
                if end - begin <= left:
                    break
            else:
                return
            if job is turn[0]:
                self._turn_of_first = not self._turn_of_first
            chunks.append(Chunk(job.id, begin, end))
            left -= end - begin
            read[job.id] = end
            if end == job.tokens:
                del reading[job.id]
