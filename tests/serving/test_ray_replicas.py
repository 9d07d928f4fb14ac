# SPDX-License-Identifier: Apache-2.0
"""The Ray Serve application without a cluster: its options, and what becomes of requests of lost replicas."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve._private.request_router.common import ReplicaQueueLengthCache
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.request_router import PendingRequest, ReplicaID

from support.served_model import DEMO
from xlstm_hip.models.text import TokenLogprob
from xlstm_hip.models.tokenizer import BYTES
from xlstm_hip.ray_serve import build_app, options, replicas
from xlstm_hip.ray_serve.attempt import Attempt
from xlstm_hip.ray_serve.replica import EngineReplica
from xlstm_hip.ray_serve.replicas import MOST_ATTEMPTS, Replicas
from xlstm_hip.ray_serve.router import StickyRouter, keys_of
from xlstm_hip.serving import EngineClosed, EngineConfig, EngineFailed, Output, QueueFull, Request, SamplingParams
from xlstm_hip.serving.admission import Admission
from xlstm_hip.serving.sending import sendable_output
from xlstm_hip.serving.server.generation import failure_of
from xlstm_hip.serving.structure import Structures

DEPLOYED = {"model": str(DEMO)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 0}, "slots: expected a whole number >= 1, got '0'"),
        ({"slots": True}, "slots: expected a number or a text, got True"),
        ({"slot": 4}, "slot: expected one of the options "),
        ({"model": None}, "model: expected the folder of a checkpoint, or the name of a model of the hub, got None"),
        ({"fixed_rows": "yes"}, "fixed_rows: expected true or false, got 'yes'"),
        ({"log_format": "xml"}, "log_format: invalid choice: 'xml'"),
        ({"port": 8000}, "port: expected none with Ray Serve, as http_options of Serve have it; got 8000"),
        ({"drain-timeout": 3}, "drain_timeout: expected none with Ray Serve"),
        ({"stall_timeout": 3}, "stall_timeout: expected none with Ray Serve"),
        ({"swap_folder": "/tmp"}, "swap_folder: expected none with Ray Serve"),
        ({"token_budget": 16}, "token-budget: expected at least prefill_chunk = 256"),
        ({"template": "/nowhere"}, "template: expected a file, got '/nowhere'"),
        ({"busy_at": 0}, "busy_at: expected a whole number >= 1, got 0"),
        ({"engine": 3}, "engine: expected options of a Serve deployment, got 3"),
        ({"engine": {"replicas": 3}}, "engine: .*unexpected keyword argument 'replicas'"),
        ({"engine": {"num_replicas": -1}}, "engine.num_replicas: Input should be greater than or equal to 0, got -1"),
        ({"ingress": {"name": "Door"}}, "ingress.name: expected none, as the application has its own, got 'Door'"),
    ],
)
def test_wrong_options(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, OSError), match=words):
        build_app(DEPLOYED | changes)


def test_options_are_those_of_the_command() -> None:
    """As YAML has them and as texts of `serve run`; every one of them is known."""
    given = {"slots": "3", "cors-origin": ["a", "b"], "fixed_rows": "true", "no_preemption": False, "threads": 2}
    args = options.parse(DEPLOYED | given)
    assert (args.slots, args.cors_origin, args.fixed_rows, args.no_preemption, args.threads) == (
        3, ["a", "b"], True, False, 2,
    )  # fmt: skip
    assert options.ELSEWHERE.keys() <= vars(args).keys() and args.model == str(DEMO)
    with pytest.raises(ValueError, match="args: expected a mapping of options, got None"):
        build_app(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("package", ["ray", "grpc"])
def test_without_the_extra(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import xlstm_hip.ray_serve"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    words = f'xlstm_hip.ray_serve needs {package}: pip install "xlstm_hip[ray-serve]"'
    assert done.returncode == 1 and done.stderr.strip().endswith(words), done.stderr


def request_of(tokens: list[int], **fields: Any) -> Request:
    return Request("a", tokens, **fields)


def test_keys_of_requests() -> None:
    """A longer common beginning has more common keys; a session is the first one."""
    one, two = keys_of(request_of([*range(40), 1]), 16), keys_of(request_of([*range(40), 2, 3]), 16)
    assert one == two and len(one) == 2
    assert keys_of(request_of([*range(20), 5]), 16) == one[1:]
    assert keys_of(request_of([*range(40), 1], session="s"), 16) == [b"session s", *one]
    assert len(keys_of(request_of([1, 2]), 16)) == 1 and keys_of(request_of([1, 2]), 16) != keys_of(request_of([1]), 16)


# ---- replicas that are lost

Answer = Callable[[Attempt], AsyncIterator[Any]]


class FakeHandle:
    """answers    what the replicas of one attempt after another send"""

    def __init__(self, *answers: Answer) -> None:
        self._answers, self.attempts, self.cancelled = list(answers), list[Attempt](), 0
        self.answer = self

    def options(self, stream: bool) -> FakeHandle:
        assert stream
        return self

    def remote(self, attempt: Attempt) -> FakeResponse:
        self.attempts.append(attempt)
        return FakeResponse(self, self._answers.pop(0)(attempt))


class FakeResponse:
    def __init__(self, handle: FakeHandle, items: AsyncIterator[Any]) -> None:
        self._handle, self._items = handle, items

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items

    def cancel(self) -> None:
        self._handle.cancelled += 1


def output(token: int, reason: str | None = None, error: Exception | None = None, **fields: Any) -> Output:
    return Output("of the replica", [token], chr(token), None, reason, None, error, 3, 0, 1)._replace(**fields)


TEXT = "abcdefgh"


def answering(end: BaseException | None = None, after: int = len(TEXT), name: str = "r1") -> Answer:
    """Writes what is left of a text, or raises after some of its tokens."""

    async def answer(attempt: Attempt) -> AsyncIterator[Any]:
        yield name
        known = list(attempt.request.answered)
        assert known == list(TEXT.encode()[: len(known)])
        for n, letter in list(enumerate(TEXT[:after]))[len(known) :]:
            token = TokenLogprob(ord(letter), letter, -float(n), [])
            yield [output(ord(letter), "length" if n == len(TEXT) - 1 else None, logprobs=[token], new_tokens=n + 1)]
        if end is not None:
            raise end

    return answer


def raised(error: Exception) -> Exception:
    """As it comes from a replica's code."""
    return RayTaskError("answer", "its traceback", error).as_instanceof_cause()


def ask(handle: FakeHandle, request: Request | None = None, seconds: float = 20.0) -> list[Output]:
    """All outputs of a request, whose replicas have no pause between them."""

    async def run() -> list[Output]:
        outputs: list[Output] = []
        over = asyncio.Event()

        def take(one: Output) -> None:
            outputs.append(one)
            if one.finish_reason is not None:
                over.set()

        engine = Replicas(handle, admission(), 4)  # type: ignore[arg-type]
        engine.submit(request or request_of([1, 2, 3], params=SamplingParams(max_tokens=8, logprobs=0)), take)
        await asyncio.wait_for(over.wait(), seconds)
        return outputs

    return asyncio.run(run())


def admission() -> Admission:
    return Admission(EngineConfig(max_new_tokens=1000), 256, Structures(BYTES, 256, ()))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PAUSE_SECONDS", 0.0)


def checked(outputs: list[Output]) -> None:
    """The whole text once, with a log-probability for each token."""
    assert "".join(one.text for one in outputs) == TEXT and {one.id for one in outputs} == {"a"}
    assert [token for one in outputs for token in one.tokens] == list(TEXT.encode())
    assert [one.logprob for each in outputs for one in each.logprobs or ()] == [-float(n) for n in range(len(TEXT))]
    assert [one.finish_reason for one in outputs if one.finish_reason] == ["length"]


@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize(
    "end",
    [
        ActorDiedError(),
        raised(EngineClosed("it has failed")),
        None,  # no last output: its process was ended in order
    ],
)
def test_a_lost_answer_goes_on(end: Exception | None, after: int) -> None:
    handle = FakeHandle(answering(end, after), answering(ActorDiedError(), 6), answering())
    checked(ask(handle))
    seeds = {attempt.request.params.seed for attempt in handle.attempts}
    assert len(handle.attempts) == handle.cancelled == 3 and len(seeds) == 1 and None not in seeds
    assert len({attempt.request.id for attempt in handle.attempts}) == 3


def test_a_failed_engine_is_avoided() -> None:
    """Its process lives on for a while, and would fail the next attempt, too."""

    async def fails(attempt: Attempt) -> AsyncIterator[Any]:
        yield "r7"
        yield [output(ord("a"), logprobs=[TokenLogprob(ord("a"), "a", -0.0, [])])]
        yield [output(0, "error", EngineFailed("the thread failed"), tokens=[], text="", logprobs=[])]

    handle = FakeHandle(fails, answering(raised(EngineClosed("x")), 0, name="r8"), answering())
    checked(ask(handle))
    assert [attempt.avoid for attempt in handle.attempts] == [frozenset(), {"r7"}, {"r7", "r8"}]


def test_a_request_that_ends_every_replica() -> None:
    handle = FakeHandle(*[answering(ActorDiedError(), 2)] * MOST_ATTEMPTS)
    failure = failure_of(ask(handle)[-1])
    assert failure is not None and f"{MOST_ATTEMPTS} replicas were lost with this request" in failure.message


def test_errors_of_the_request_are_not_tried_again() -> None:
    async def wrong(attempt: Attempt) -> AsyncIterator[Any]:
        yield "r1"
        yield [output(97, "error", KeyError("its own"))]

    for handle in (FakeHandle(wrong), FakeHandle(answering(raised(KeyError("its own")), 0))):
        (last,) = ask(handle)
        failure = failure_of(last)
        assert last.finish_reason == "error" and isinstance(last.error, KeyError) and len(handle.attempts) == 1
        assert failure is not None and failure.code == "engine_error"
    (last,) = ask(FakeHandle(answering(DeploymentUnavailableError("Engine"), 0)))
    assert "failed to deploy" in str(last.error)
    (last,) = ask(FakeHandle(answering(BackPressureError(3, 2), 0)))
    assert "max_queued_requests=2" in str(last.error)


def test_a_deadline() -> None:
    """The time of lost attempts counts, and that in which no replica is there."""

    async def never(attempt: Attempt) -> AsyncIterator[Any]:
        await asyncio.sleep(60)
        yield "r1"

    async def slow(attempt: Attempt) -> AsyncIterator[Any]:
        await asyncio.sleep(0.2)
        raise ActorDiedError()
        yield

    handle = FakeHandle(never)
    assert ask(handle, request_of([1], deadline=0.05))[-1].finish_reason == "deadline" and handle.cancelled == 1
    handle = FakeHandle(slow, slow)
    assert ask(handle, request_of([1], deadline=0.3))[-1].finish_reason == "deadline"
    first, second = (attempt.request.deadline for attempt in handle.attempts)
    assert first == pytest.approx(0.3, abs=0.1) and second == pytest.approx(0.1, abs=0.08)


def test_the_queue_cancelling_and_closing() -> None:
    async def run() -> None:
        never, ends = asyncio.Event(), dict[str, str | None]()

        async def waits(attempt: Attempt) -> AsyncIterator[Any]:
            await never.wait()
            yield "r1"

        handle = FakeHandle(*[waits] * 4)
        engine = Replicas(handle, admission(), 2)  # type: ignore[arg-type]

        def submit(name: str, **fields: Any) -> None:
            engine.submit(Request(name, [1], **fields), lambda one: ends.update({name: one.finish_reason}))

        submit("a")
        submit("b")
        with pytest.raises(QueueFull, match="2 requests wait already"):
            submit("c")
        with pytest.raises(ValueError, match="max_tokens: expected at most 1000, got 1001"):
            submit("c", params=SamplingParams(max_tokens=1001))
        await asyncio.sleep(0)
        engine.cancel("a")
        engine.cancel("unknown")
        await asyncio.sleep(0.05)
        assert ends == {"a": "cancelled"} and handle.cancelled == 1
        submit("d")
        engine.close(drain=False)
        await asyncio.sleep(0.05)
        assert ends == dict.fromkeys("abd", "cancelled")  # d before it has begun
        assert handle.cancelled == len(handle.attempts) == 2
        with pytest.raises(EngineClosed):
            submit("e")

    asyncio.run(run())


# ---- a replica


def test_health_and_errors_that_travel() -> None:
    class Failed:
        healthy = False

        def close(self, drain: bool) -> None: ...

    replica = EngineReplica.__new__(EngineReplica)
    replica.check_health()  # while it loads
    replica._engine = Failed()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="the engine has failed"):
        replica.check_health()

    class Local(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("of two")

    assert str(sendable_output(output(97, "error", Local(1, 2))).error) == "Local: of two"
    assert isinstance(sendable_output(output(97, "error", KeyError("a"))).error, KeyError)


# ---- the router


class FakeReplica:
    def __init__(self, name: str) -> None:
        self.replica_id = ReplicaID(name, DeploymentID("Engine", "xlstm"))


class Routed:
    """A router with replicas that have so many requests each."""

    def __init__(self, busy_at: int = 4, **requests: int) -> None:
        self.router = StickyRouter.__new__(StickyRouter)  # without a cluster to ask
        self.router.initialize_state(chunk=16, busy_at=busy_at)
        self.router._replica_queue_len_cache = ReplicaQueueLengthCache()
        self.replicas = {name: FakeReplica(name) for name in requests}
        for name, count in requests.items():
            self.router.replica_queue_len_cache.update(self.replicas[name].replica_id, count)

    def ranks(self, request: Request, avoid: frozenset[str] = frozenset()) -> list[list[str]]:
        ranks = asyncio.run(self._choose([Attempt(request, avoid)]))
        return [[replica.replica_id.unique_id for replica in rank] for rank in ranks]

    async def _choose(self, args: list[Any]) -> list[list[Any]]:
        pending = PendingRequest(args=args, kwargs={}, metadata=None)
        ranks = await self.router.choose_replicas(list(self.replicas.values()), pending)
        assert pending.routing_context.should_backoff
        return ranks

    def went_to(self, name: str, request: Request) -> None:
        async def tell() -> None:
            pending = PendingRequest(
                args=[Attempt(request)], kwargs={}, metadata=SimpleNamespace(internal_request_id="1")
            )
            self.router.on_request_routed(pending, self.replicas[name].replica_id, None)

        asyncio.run(tell())


def test_a_session_before_a_beginning_before_a_hash() -> None:
    routed = Routed(a=0, b=0, c=0, d=0)
    begin = [*range(40)]
    first, *rest = (rank for (rank,) in routed.ranks(request_of(begin)))
    assert {first, *rest} == {"a", "b", "c", "d"}
    assert (
        routed.ranks(request_of([*begin, 1])) == routed.ranks(request_of(begin[:17])) == [[first], *[[x] for x in rest]]
    )
    routed.went_to(rest[0], request_of(begin))  # as the others were busy
    routed.went_to(rest[1], request_of(begin[:20]))
    routed.went_to(rest[2], request_of([9] * 40, session="s"))
    assert routed.ranks(request_of([*begin, 1]))[0] == [rest[0]]
    assert routed.ranks(request_of([*begin[:30], 7]))[0] == [rest[1]]
    assert routed.ranks(request_of([*begin, 1], session="s"))[0] == [rest[2]]
    assert routed.ranks(request_of([*begin, 1], session="another"))[0] == [rest[0]]


def test_routers_agree_and_keep_to_it() -> None:
    """Another replica takes over about its share of the beginnings, and moves no others."""
    requests = [request_of([n, *range(30)]) for n in range(60)]
    three, again, four = Routed(a=0, b=0, c=0), Routed(c=0, a=0, b=0), Routed(a=0, b=0, c=0, d=0)
    before = [three.ranks(request)[0][0] for request in requests]
    after = [four.ranks(request)[0][0] for request in requests]
    assert [again.ranks(request)[0][0] for request in requests] == before
    assert all(new in (old, "d") for old, new in zip(before, after, strict=True))
    assert all(8 <= before.count(name) <= 32 for name in "abc") and 5 <= after.count("d") <= 25


def test_busy_and_failed_replicas() -> None:
    routed = Routed(a=4, b=3, c=9, d=0)
    *free, busy = routed.ranks(request_of([5] * 40))
    assert sorted(free) == [["b"], ["d"]] and sorted(busy) == ["a", "c"]
    assert routed.ranks(request_of([5] * 40), frozenset("bd")) == [busy]
    assert routed.ranks(request_of([5] * 40), frozenset("abcd")) == []


def test_a_replica_of_which_nothing_is_known() -> None:
    """It is as busy as this router has made it; nobody waits for its word."""
    routed = Routed(busy_at=1, a=0, b=9)
    routed.router.replica_queue_len_cache.invalidate_key(routed.replicas["a"].replica_id)
    assert routed.ranks(request_of([1])) == [["a"], ["b"]]
    assert routed.router.replica_queue_len_cache.get(routed.replicas["a"].replica_id) == 0
    routed.went_to("a", request_of([1]))
    routed.router.replica_queue_len_cache.invalidate_key(routed.replicas["a"].replica_id)
    assert [set(rank) for rank in routed.ranks(request_of([1]))] == [{"a", "b"}]
    routed.router.on_request_completed(routed.replicas["a"].replica_id, "1")
    routed.router.replica_queue_len_cache.invalidate_key(routed.replicas["a"].replica_id)
    assert routed.ranks(request_of([1])) == [["a"], ["b"]]


def test_other_calls_go_to_any_replica() -> None:
    routed = Routed(a=0, b=0)
    (rank,) = asyncio.run(routed._choose([]))
    assert len(rank) == 2
