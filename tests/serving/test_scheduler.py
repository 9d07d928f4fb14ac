# SPDX-License-Identifier: Apache-2.0
"""The scheduler without a model: slots, budget, order, ageing, preemption, fairness, under any course of events."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xlstm_hip.serving.scheduler import Chunk, Plan, Scheduler

CHUNK, BUDGET = 8, 20


@dataclass
class Followed:
    """A request as a test follows it."""

    tokens: int
    decode: int  # steps until it is over
    read: int = 0
    decoded: int = 0
    admitted: int = 0
    ready: bool = True


@dataclass
class Steps:
    """Steps a scheduler as an engine does, and checks each plan."""

    scheduler: Scheduler
    live: dict[str, Followed] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    over: list[str] = field(default_factory=list)
    now: float = 0.0

    def add(self, id: str, tokens: int, decode: int = 1, priority: int = 0, ready: bool = True) -> None:
        self.scheduler.add(id, tokens, self.now, priority, ready=ready)
        self.live[id] = Followed(tokens, decode, ready=ready)

    def end(self, id: str) -> None:
        self.scheduler.remove(id)
        self.running.discard(id)
        del self.live[id]
        self.over.append(id)

    def step(self, preemptions: int = 0) -> Plan:
        plan = self.scheduler.plan(preemptions)
        assert len(plan.preempted) <= preemptions
        for id in plan.preempted:
            self.running.remove(id)
        for id in plan.admitted:
            assert id not in self.running and self.live[id].ready
            self.running.add(id)
            self.live[id].admitted += 1
        assert len(self.running) <= self.scheduler.slots
        assert set(plan.decoding) == {id for id in self.running if self.live[id].read == self.live[id].tokens}
        assert sum(chunk.end - chunk.begin for chunk in plan.chunks) <= BUDGET
        for chunk in plan.chunks:
            of = self.live[chunk.id]
            assert chunk.id in self.running and chunk.begin == of.read
            assert chunk.end == min((chunk.begin // CHUNK + 1) * CHUNK, of.tokens)
            of.read = chunk.end
            self.scheduler.advance(chunk.id, of.read)
        if any(self.live[id].read < self.live[id].tokens for id in self.running):
            assert plan.chunks  # there is always room for one
        for id in plan.decoding:
            self.live[id].decoded += 1
            if self.live[id].decoded == self.live[id].decode:
                self.end(id)
        self.now += 1.0
        return plan


def scheduler(slots: int = 2, ageing: float = 10.0, preempts: bool = False) -> Scheduler:
    return Scheduler(slots, BUDGET, CHUNK, ageing, preempts)


def test_chunks_end_at_multiples_whatever_the_company() -> None:
    alone = Steps(scheduler())
    alone.add("a", 45)
    company = Steps(scheduler())
    for id, tokens in (("a", 45), ("b", 19)):
        company.add(id, tokens)

    def chunks_of_a(steps: Steps) -> list[Chunk]:
        return [chunk for _ in range(12) for chunk in steps.step().chunks if chunk.id == "a"]

    expected = [Chunk("a", n, min(n + 8, 45)) for n in range(0, 45, 8)]
    assert chunks_of_a(alone) == chunks_of_a(company) == expected


def test_greater_priority_comes_first_and_ageing_bounds_it() -> None:
    steps = Steps(scheduler(slots=1, ageing=10.0))
    steps.add("runs", 1, decode=5)
    steps.step()
    steps.add("low", 1)
    steps.add("high", 1, priority=1)
    order = []
    for _ in range(20):
        order += steps.step().admitted
    assert order == ["high", "low"]
    # A stream of requests of priority 1, one a step: one of priority 0 comes when it has waited for ten seconds.
    steps.add("low again", 1)
    waited = 0
    while steps.live["low again"].admitted == 0:
        steps.add(f"high {waited}", 1, priority=1)
        steps.step()
        waited += 1
        assert waited < 25
    assert waited > 10


def test_a_short_prompt_does_not_wait_for_a_long_one_nor_the_long_one_for_short_ones() -> None:
    steps = Steps(Scheduler(8, BUDGET, CHUNK, 10.0))
    steps.add("long", 400)
    steps.step()
    steps.add("short", 8)
    steps.step()
    assert steps.live["short"].read == 8
    before = steps.live["long"].read
    for n in range(20):  # two short prompts a step would fill the budget
        steps.add(f"short {n} a", 8), steps.add(f"short {n} b", 8)
        steps.step()
    assert steps.live["long"].read - before >= 20 * CHUNK * 0.9


def test_preemption_takes_the_last_of_lower_priority_and_gives_it_back() -> None:
    steps = Steps(scheduler(slots=2, preempts=True))
    steps.add("a", 4, decode=50)
    steps.now = 1.0
    steps.add("b", 4, decode=50)
    steps.step(), steps.step()
    steps.add("urgent", 4, decode=2, priority=5)
    assert steps.step(preemptions=0).preempted == []
    plan = steps.step(preemptions=1)
    assert plan.preempted == ["b"] and plan.admitted == ["urgent"] and "a" in plan.decoding
    while "urgent" in steps.live:
        steps.step(preemptions=1)
    assert steps.step(preemptions=1).admitted == ["b"]
    decoded = steps.live["b"].decoded
    steps.step(preemptions=1)
    assert steps.live["b"].decoded == decoded + 1  # it goes on where it was, without being read again
    steps.add("equal", 4)
    assert steps.step(preemptions=1).preempted == []


def test_what_was_preempted_is_not_starved_by_a_stream_of_urgent_requests() -> None:
    steps = Steps(scheduler(slots=1, ageing=2.0, preempts=True))
    steps.add("low", 1, decode=3)
    for n in range(60):
        steps.add(f"urgent {n}", 1, decode=1, priority=5)
        steps.step(preemptions=1)
    assert "low" in steps.over


def test_requests_that_are_not_ready_are_passed_over() -> None:
    steps = Steps(scheduler())
    steps.add("late", 4, ready=False)
    steps.add("b", 4)
    assert steps.step().admitted == ["b"]
    steps.live["late"].ready = True
    steps.scheduler.set_ready("late")
    steps.scheduler.set_ready("unknown")
    assert steps.step().admitted == ["late"]


def test_deadlines() -> None:
    waits = scheduler(slots=1)
    waits.add("a", 4, now=0.0, deadline=2.0)
    waits.add("b", 4, now=0.0, deadline=3.0)
    waits.add("c", 4, now=0.0)
    waits.plan()
    assert waits.expired(1.9) == [] and waits.expired(2.0) == ["a"] and waits.expired(9.0) == ["a", "b"]
    waits.remove("a"), waits.remove("b")
    assert waits.expired(9.0) == [] and waits.plan().admitted == ["c"]


def test_cancelled_requests_leave_nothing_in_the_queue() -> None:
    waits = scheduler(slots=1)
    waits.add("runs", 1, now=0.0)
    waits.plan()
    for n in range(1000):
        waits.add(str(n), 1, now=1.0)
        waits.remove(str(n))
    assert waits.waiting == 0 and len(waits._queue) < 50


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(-3, 3)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.booleans(),
)
def test_everything_ends(requests: list[tuple[int, int, int]], slots: int, preempts: bool) -> None:
    """As soon as the work of all of them, one after the other, would."""
    steps = Steps(scheduler(slots, ageing=3.0, preempts=preempts))
    for n, (tokens, decode, priority) in enumerate(requests):
        steps.add(str(n), tokens, decode, priority)
    most = sum(-(-tokens // CHUNK) + decode for tokens, decode, _ in requests)
    for _ in range(most):
        if not steps.live:
            break
        steps.step(preemptions=1)
    assert not steps.live and steps.scheduler.running == steps.scheduler.waiting == 0


class AnyCourse(RuleBasedStateMachine):
    """Requests come, are cancelled at any time, run out of memory and are requeued; slots are taken away and given."""

    @initialize(slots=st.integers(1, 4), preempts=st.booleans())
    def begin(self, slots: int, preempts: bool) -> None:
        self.steps = Steps(scheduler(slots, ageing=2.0, preempts=preempts))
        self.slots, self.count = slots, 0

    @rule(tokens=st.integers(1, 50), decode=st.integers(1, 8), priority=st.integers(-2, 4), ready=st.booleans())
    def come(self, tokens: int, decode: int, priority: int, ready: bool) -> None:
        self.steps.add(f"r{self.count}", tokens, decode, priority, ready)
        self.count += 1

    @precondition(lambda self: self.steps.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.steps.end(data.draw(st.sampled_from(sorted(self.steps.live))))

    @precondition(lambda self: any(not f.ready for f in self.steps.live.values()))
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(id for id, f in self.steps.live.items() if not f.ready)))
        self.steps.live[id].ready = True
        self.steps.scheduler.set_ready(id)

    @precondition(lambda self: self.steps.running)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        """As after an out-of-memory: it is read from the beginning, with what it had answered."""
        id = data.draw(st.sampled_from(sorted(self.steps.running)))
        of = self.steps.live[id]
        of.tokens, of.read = of.tokens + of.decoded, 0
        self.steps.scheduler.requeue(id, of.tokens, 0)
        self.steps.running.discard(id)

    @rule(preemptions=st.integers(0, 3))
    def step(self, preemptions: int) -> None:
        self.steps.step(preemptions)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "steps"):
            return
        assert self.steps.scheduler.running == len(self.steps.running)
        assert self.steps.scheduler.waiting == len(self.steps.live) - len(self.steps.running)

    def teardown(self) -> None:
        if not hasattr(self, "steps"):
            return
        for id, of in self.steps.live.items():
            of.ready = True
            self.steps.scheduler.set_ready(id)
        left = sum(-(-of.tokens // CHUNK) + of.decode for of in self.steps.live.values())
        for _ in range(left + 1):
            self.steps.step(preemptions=1)
        assert not self.steps.live and self.steps.scheduler.running == 0


AnyCourse.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyCourse = AnyCourse.TestCase
