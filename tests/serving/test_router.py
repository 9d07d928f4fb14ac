# SPDX-License-Identifier: Apache-2.0
"""Several engines as processes: one engine's answers, who answers what, and processes that end under load."""

from __future__ import annotations

import dataclasses
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from support.serving import SMALL_ENGINE, Answers, ask, engine_of, prompt_of, serving_model, start_engine, until
from xlstm_hip.serving import (
    Engine,
    EngineClosed,
    EngineConfig,
    QueueFull,
    Request,
    Router,
    SamplingParams,
    Structure,
    replica,
)
from xlstm_hip.serving import router as router_module
from xlstm_hip.serving.engine import AnswerLost

CONFIG = EngineConfig(**SMALL_ENGINE)


def router_of(count: int = 2, fault: str = "", **changes: Any) -> Router:
    return Router(functools.partial(start_engine, changes, fault), count, EngineConfig(**SMALL_ENGINE | changes))


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    with router_of() as router:
        yield router


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(serving_model(torch.float64)) as engine:
        yield engine


def requests(count: int, tokens: int = 20, **more: Any) -> list[Request]:
    params = [SamplingParams(tokens, temperature=0.9, seed=n, ignore_eos=True, **more) for n in range(count)]
    return [Request(str(n), prompt_of(5 + n, n), one) for n, one in enumerate(params)]


def pids(router: Router) -> list[int]:
    return [replica.process.pid for replica in router._replicas]


def load_of(router: Router) -> list[int]:
    return [router._loads.get(replica, -1) for replica in router._replicas]


def total(router: Router, name: str) -> int:
    """Of the snapshots, which come some tenths of a second later."""
    return sum(getattr(one, name) for one in router.metrics().values())


def is_idle(router: Router) -> bool:
    return not any(total(router, name) for name in ("running", "waiting", "slots_used"))


def test_the_answers_of_one_engine(router: Router, engine: Engine) -> None:
    many = requests(12, 100, logprobs=2)
    answers, want = ask(router, *many), ask(engine, *many)
    for request in many:
        id = request.id
        assert answers.tokens(id) == want.tokens(id) and answers.text(id) == want.text(id)
        for one, other in zip(answers.logprobs(id), want.logprobs(id), strict=True):
            assert abs(one.logprob - other.logprob) < 1e-9
    assert not router._entries and load_of(router) == [0, 0]
    until(lambda: total(router, "tokens_generated") == 12 * 100 and is_idle(router))
    metrics = router.metrics()
    assert list(metrics) == ["0", "1"] and all(one.healthy and one.slots_total == 4 for one in metrics.values())
    assert all(one.requests_finished == {"length": 6} for one in metrics.values())


def test_a_beginning_is_read_by_one(router: Router) -> None:
    """The prompts' first chunk decides, and a session's name; prompts that share nothing spread over all."""
    saved = total(router, "prefix_cache_tokens_saved")
    shared = prompt_of(32, 77)
    for n in range(6):
        ask(router, Request(f"shared {n}", [*shared, n + 3], SamplingParams(1)))
    until(lambda: total(router, "prefix_cache_tokens_saved") == saved + 5 * 32)
    turn, text = Request("turn", prompt_of(20, 505), SamplingParams(9, ignore_eos=True), session="s"), list[int]()
    for n in range(4):
        answers = ask(router, turn)
        text = [*turn.tokens, *answers.tokens("turn")]
        assert answers.outputs["turn"][-1].cached_tokens == (n and len(turn.tokens) - 3)
        turn = Request("turn", [*text, 5, 6], SamplingParams(9, ignore_eos=True), session="s")
    params = SamplingParams(5000, ignore_eos=True)
    answers, others = Answers(), [Request(f"o{n}", prompt_of(20, 100 + n), params) for n in range(8)]
    for request in others:
        router.submit(request, answers)
    assert load_of(router) == [4, 4]
    for request in others:
        router.cancel(request.id)
    answers.wait(*(request.id for request in others))


def test_a_popular_beginning_does_not_fill_one_engine(router: Router) -> None:
    """Beyond a quarter of its slots it goes to others, too, which then have read it as well."""
    answers, shared = Answers(), prompt_of(40, 8)
    many = [Request(f"p{n}", [*shared, n + 3], SamplingParams(5000, ignore_eos=True)) for n in range(8)]
    for request in many:
        router.submit(request, answers)
    assert sorted(load_of(router)) in ([3, 5], [4, 4])
    for request in many:
        router.cancel(request.id)
    assert {answer.finish_reason for answer in answers.wait(*(request.id for request in many))} == {"cancelled"}


def test_what_an_engine_refuses(router: Router) -> None:
    for request, message in (
        (Request("a", [256]), "tokens: expected token ids from 0 to 255, got 256"),
        (Request("a", [1], SamplingParams(structure=Structure("regex", "("))), "structure.value: expected a regex"),
    ):
        with pytest.raises(ValueError, match=message):
            router.submit(request, print)
    answers = Answers()
    router.submit(Request("twice", [1], SamplingParams(200, ignore_eos=True)), answers)
    with pytest.raises(ValueError, match="id: expected one that no unfinished request has, got 'twice'"):
        router.submit(Request("twice", [1]), print)
    router.cancel("twice")
    router.cancel("unknown")
    assert answers.wait("twice")[0].finish_reason == "cancelled"
    for arguments, message in (
        ((print, 0, CONFIG), "count: expected"),
        ((print, 2, None), "config: expected an EngineConfig, got None"),
        ((None, 2, CONFIG), "load: expected a function of a replica's number, got None"),
        ((lambda number: None, 2, CONFIG), "load: expected a function of a module, which can be pickled: "),
    ):
        with pytest.raises(ValueError, match=message):
            Router(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="request: expected a Request, got 'a'"):
        router.submit("a", print)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_output: expected a function of an Output, got None"):
        router.submit(Request("b", [1]), None)  # type: ignore[arg-type]
    assert not router._entries and load_of(router) == [0, 0]


def test_queues_that_are_full() -> None:
    with router_of(2, slots=1, max_waiting=1) as router:
        answers, ids = Answers(), [str(n) for n in range(20)]
        accepted = []
        with pytest.raises(QueueFull, match=r"1 requests wait already \(max_waiting\)"):
            for id in ids:
                router.submit(Request(id, [1], SamplingParams(5000, ignore_eos=True)), answers)
                accepted.append(id)
        assert 2 <= len(accepted) <= 4
        for id in accepted:
            router.cancel(id)
        answers.wait(*accepted)


def test_full_queues_lose_no_accepted_request(engine: Engine) -> None:
    """What a full engine had finds no room elsewhere when it ends, and waits."""
    with router_of(2, slots=2, max_waiting=6) as router:
        answers, many = Answers(), [dataclasses.replace(one, id=f"q{one.id}") for one in requests(14, 80)]
        for request in many:
            router.submit(request, answers)
        router._replicas[0].process.kill()
        last = answers.wait(*(request.id for request in many), seconds=90)
        assert {output.finish_reason for output in last} == {"length"}
        want = ask(engine, *many)
        assert all(answers.tokens(request.id) == want.tokens(request.id) for request in many)


def test_outputs_wait_for_the_answer_in_their_order() -> None:
    """Of a request that was not said to be accepted yet; one that comes meanwhile is behind them."""
    outbox = replica._Outbox.__new__(replica._Outbox)
    outbox._letters, outbox._held, outbox._lock = queue.SimpleQueue(), {}, threading.Lock()
    deliver, put, late = outbox.hold(1), outbox.put, []

    def while_it_is_put(*letter: Any) -> None:
        put(*letter)
        if not late:  # the engine's thread, which waits for the lock
            late.append(threading.Thread(target=deliver, args=("last",)))
            late[0].start()
            time.sleep(0.1)

    outbox.put = while_it_is_put  # type: ignore[method-assign]
    deliver("first")  # type: ignore[arg-type]
    deliver("second")  # type: ignore[arg-type]
    outbox.answer(1, None)
    late[0].join()
    assert [outbox._letters.get()[1] for _ in range(4)] == [1, "first", "second", "last"]  # type: ignore[index]


# ---- processes that end


def test_a_killed_process_loses_no_request(engine: Engine) -> None:
    """kill -9 under load, of one and then of the other: all answers are whole and the same, and both come back."""
    many = requests(24, 150)
    want = ask(engine, *many)
    with router_of() as router:
        answers = Answers()
        for request in many:
            router.submit(request, answers)
        before = pids(router)
        for number in range(2):
            answers.wait_for_tokens("0", 5 + 20 * number)
            assert router._replicas[number].process.pid == before[number]
            os.kill(before[number], signal.SIGKILL)
            until(lambda number=number: router._replicas[number].is_up and pids(router)[number] != before[number])
        last = answers.wait(*(request.id for request in many), seconds=60)
        for request, output in zip(many, last, strict=True):
            assert output.finish_reason == "length" and output.new_tokens == 150
            assert answers.tokens(request.id) == want.tokens(request.id)
            assert answers.text(request.id) == want.text(request.id)
        until(lambda: is_idle(router))
        assert [one.restarts for one in router.metrics().values()] == [1, 1] and total(router, "requests_continued") > 0
        assert not set(before) & set(pids(router)) and not router._entries
        assert ask(router, Request("after", [1], SamplingParams(3))).tokens("after")


def test_the_last_process_is_killed(engine: Engine) -> None:
    """Accepted requests wait for the one that is being started; new ones are refused as by a full queue."""
    many = requests(3, 60)
    want = ask(engine, *many)
    late = Request("late", [5], SamplingParams(100_000, seed=1, ignore_eos=True), deadline=8.0)
    with router_of(1) as router:
        answers, began = Answers(), time.monotonic()
        for request in (*many, late):
            router.submit(request, answers)
        answers.wait_for_tokens("0", 5)
        router._replicas[0].process.kill()
        until(lambda: not router._loads)
        assert router.healthy and router.metrics() == {}
        with pytest.raises(QueueFull, match="all engines are being started again"):
            router.submit(Request("new", [1]), print)
        router.cancel("2")
        assert [one.finish_reason for one in answers.wait("0", "1", "2", seconds=60)] == [
            "length",
            "length",
            "cancelled",
        ]
        assert answers.tokens("0") == want.tokens("0") and answers.tokens("1") == want.tokens("1")
        assert answers.wait("late")[0].finish_reason == "deadline"  # which counts from the first submission
        assert 7.9 < time.monotonic() - began < 14


def test_a_request_that_ends_processes_ends_itself() -> None:
    """And other requests go on."""
    with router_of(2, "deadly") as router:
        answers = Answers()
        router.submit(Request("deadly", [66] * 3, SamplingParams(100, seed=1, ignore_eos=True)), answers)
        other = Request("other", [5], SamplingParams(400, seed=1, ignore_eos=True))
        router.submit(other, answers)
        last, of_other = answers.wait("deadly", "other", seconds=90)
        assert last.finish_reason == "error" and of_other.finish_reason == "length"
        assert str(last.error) == "3 engines ended while they answered this request"
        assert isinstance(last.error, AnswerLost)
        until(lambda: sum(router._restarts) == 3)  # the third starts while the other request ends


def test_an_engine_that_fails_is_replaced() -> None:
    """Its thread ends by an error, the process with it."""
    with router_of(1, "failing") as router:
        answers = ask(router, Request("a", [5], SamplingParams(30, seed=1, ignore_eos=True)))
        assert answers.outputs["a"][-1].finish_reason == "length" and len(answers.tokens("a")) == 30
        assert router.metrics()["0"].restarts == 1


@pytest.mark.parametrize("fault", ["stopped", "stuck"])
def test_a_process_that_hangs(fault: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing, or its engine makes no step: it is ended, and its requests go on."""
    monkeypatch.setattr(replica, "SILENT_LOOKS" if fault == "stopped" else "STALLED_LOOKS", 6)
    monkeypatch.setattr(router_module, "LOOK_SECONDS", 0.5)
    request = requests(1, 60)[0]
    want = ask(engine, request)
    with router_of(1, "stuck" if fault == "stuck" else "") as router:
        answers = Answers()
        router.submit(request, answers)
        if fault == "stopped":
            answers.wait_for_tokens("0", 3)
            router._replicas[0].process.send_signal(signal.SIGSTOP)
        answers.wait("0", seconds=60)
        assert answers.tokens("0") == want.tokens("0") and router._restarts[0] >= 1


def test_one_that_cannot_be_loaded() -> None:
    with pytest.raises(RuntimeError, match="planted in replica 1"), router_of(2, "broken"):
        pass


def test_the_end(engine: Engine) -> None:
    """close lets requests end, or not; nothing is left of the processes."""
    many = requests(4, 40)
    for drain in (True, False):
        router = router_of(1).start()
        answers, before = Answers(), pids(router)
        for request in many:
            router.submit(request, answers)
        router.close(drain)
        for pid in before:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        reasons = {output.finish_reason for output in answers.wait(*(request.id for request in many), seconds=1)}
        assert reasons == {"length"} if drain else "cancelled" in reasons
        with pytest.raises(EngineClosed, match="expected engines that run, but they are closed"):
            router.submit(many[0], answers)
        assert not router.healthy


def test_processes_end_with_their_owner(tmp_path: Any) -> None:
    """Also where that was killed."""
    import subprocess
    import sys

    script = (
        "import functools, time\n"
        "from support.serving import SMALL_ENGINE, start_engine\n"
        "from xlstm_hip.serving import EngineConfig, Router\n"
        "router = Router(functools.partial(start_engine, {}, ''), 1, EngineConfig(**SMALL_ENGINE)).start()\n"
        "print(*(one.process.pid for one in router._replicas), flush=True)\n"
        "time.sleep(100)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    replicas = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(replicas) == 1
    owner.kill()
    owner.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in replicas))
    owner.stdout.close()
