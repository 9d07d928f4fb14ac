# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, do not read or ask too much: their own requests end, nobody else's. Deadlines, a dead engine."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from support.fake_engine import FakeEngine, served_by
from support.http_server import LocalServer, post, running
from support.serving import until
from xlstm_hip.serving.server import Limits
from xlstm_hip.serving.server.completions import CompletionAnswer
from xlstm_hip.serving.server.generation import Generation
from xlstm_hip.serving.server.logs import Record
from xlstm_hip.serving.server.streaming import EventStream

ENDLESS = {"model": "fake", "prompt": "a", "max_tokens": 30000, "stream": True}


def raw(body: dict) -> bytes:
    return post("/v1/completions", json.dumps(body).encode())


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(step_seconds=0.01)


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LocalServer]:
    with running(served_by(engine)) as local:
        yield local


def outcomes(server: LocalServer) -> dict[str, float]:
    """HTTP requests by outcome."""
    found: dict[str, float] = {}
    for family in server.state.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "xlstm_hip_http_requests_total":
                name = sample.labels["outcome"]
                found[name] = found.get(name, 0) + sample.value
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_a_client_that_leaves(stream: bool, reset: bool, engine: FakeEngine, server: LocalServer) -> None:
    """Its request is cancelled at once, and is no error: whether anything was sent yet or not."""
    client = server.connect()
    client.sendall(raw(ENDLESS | {"stream": stream}))
    if stream:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    else:
        until(lambda: engine.running == 1)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    began = time.monotonic()
    client.close()
    until(lambda: engine.cancelled)
    assert time.monotonic() - began < 1.0
    until(lambda: server.state.door.inside == 0 and engine.running == 0)
    until(lambda: outcomes(server).get("left") == 1)


def test_a_client_that_leaves_while_it_sends(engine: FakeEngine, server: LocalServer) -> None:
    client = server.connect()
    client.sendall(raw(ENDLESS)[:-10])
    until(lambda: server.state.door.inside == 1)
    client.close()
    until(lambda: server.state.door.inside == 0)
    assert not engine.requests and outcomes(server) == {"left": 1}


def test_hundreds_leave_in_mid_stream(engine: FakeEngine, server: LocalServer) -> None:
    """All that they had is given back, and one that stays has its whole answer."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stays = ENDLESS | {"max_tokens": 100, "stream": False}
        answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json=stays, timeout=60)
        clients = [server.connect() for _ in range(250)]
        for number, client in enumerate(clients):
            client.sendall(raw(ENDLESS | {"stream": number % 5 > 0}))
        for number, client in enumerate(clients):
            if number % 5:
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            client.close()
        assert len(answer.result().json()["choices"][0]["text"]) == 100
    until(lambda: engine.running == 0 and server.state.door.inside == 0)
    assert len(engine.cancelled) == 250 and engine.finished == {"cancelled": 250, "length": 1}
    until(lambda: outcomes(server) == {"left": 250, "length": 1})
    assert b"xlstm_hip_http_requests_open 0.0" in server.state.metrics.text()
    until(lambda: not kept())


def kept() -> list[object]:
    """What requests left in memory."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) in (Generation, CompletionAnswer, EventStream, Record)]


def test_a_client_that_does_not_read(engine: FakeEngine) -> None:
    """What is kept for it is bounded; then its request is cancelled and its connection closed. Others go on."""
    engine.step_seconds = 0.0005
    with running(served_by(engine), Limits(stream_outputs=200, stall_seconds=60)) as server:
        slow = server.connect(receive_buffer=4096)
        slow.sendall(raw(ENDLESS))
        until(lambda: engine.requests)
        name = engine.requests[0].id
        quick = httpx.post(f"{server.url}/v1/completions", json=ENDLESS | {"max_tokens": 100}, timeout=20)
        assert quick.text.endswith("data: [DONE]\n\n") and name not in engine.cancelled
        until(lambda: name in engine.cancelled, 30)
        until(lambda: server.state.door.inside == 0)
        assert outcomes(server) == {"length": 1, "slow": 1}
        received = 0
        while part := slow.recv(1 << 20):  # what had been sent, and then the end
            received += len(part)
        assert b"[DONE]" not in part and received < 2 << 20
        slow.close()


def test_a_client_that_stops_reading_the_end(engine: FakeEngine) -> None:
    """An answer that is written, but not read: its connection is not kept for ever. Where the loop was late enough to
    find all of the answer at once, it is the system that closes it.
    """
    engine.step_seconds = 0.0
    with running(served_by(engine), Limits(stall_seconds=1.0)) as server:
        slow = server.connect(receive_buffer=4096)
        slow.sendall(raw(ENDLESS | {"max_tokens": 4000}))
        until(lambda: engine.finished == {"length": 1})
        until(lambda: server.connections == 0)
        until(lambda: outcomes(server) in ({"slow": 1}, {"length": 1}))
        assert server.state.door.inside == 0
        slow.close()


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("sent", [0, 10, 70])
def test_a_head_that_does_not_arrive(engine: FakeEngine, sent: int, second: bool) -> None:
    """Of a connection's first request or of a later one, byte by byte; answers that take longer than a head may, do."""
    engine.step_seconds = 0.01
    with running(served_by(engine), Limits(head_seconds=0.5)) as server, server.connect() as client:
        if second:
            body = json.dumps({"model": "fake", "prompt": "a", "max_tokens": 80}).encode()
            client.sendall(post("/v1/completions", body))
            answer = b""
            while b'"usage"' not in answer:
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        head = post("/v1/completions", b"x" * 10)[:70]
        assert b"\r\n\r\n" not in head
        for byte in head[:sent]:
            client.sendall(bytes([byte]))
            time.sleep(0.001)
        if second and not sent:  # it may come for as long as a connection is kept
            time.sleep(1)
            client.sendall(post("/v1/completions", body))
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            return
        assert client.recv(65536).startswith(b"HTTP/1.1 408") and client.recv(100) == b""
        assert 0.3 < time.monotonic() - began < 5
        until(lambda: server.connections == 0)


def test_a_body_that_does_not_arrive(engine: FakeEngine) -> None:
    with running(served_by(engine), Limits(body_seconds=0.3)) as server, server.connect() as client:
        client.sendall(raw(ENDLESS)[:-5])
        answer = b""
        while part := client.recv(65536):  # up to the end: what is left of it would be read as the next request
            answer += part
        assert answer.startswith(b"HTTP/1.1 408") and b'"code":"body_timeout"' in answer


def test_a_body_without_an_end(engine: FakeEngine) -> None:
    """It is read up to the limit: a client that says no length cannot fill the memory."""
    with running(served_by(engine), Limits(max_body_bytes=5000, body_seconds=10)) as server, server.connect() as client:
        head = post("/v1/completions", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        began = time.monotonic()
        client.sendall(head + b"1000\r\n" + b"x" * 0x1000 + b"\r\n" + b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 413") and time.monotonic() - began < 5


def test_a_full_queue(engine: FakeEngine, server: LocalServer) -> None:
    engine.slots = 2
    with server.connect() as first, server.connect() as second:
        for client in (first, second):
            client.sendall(raw(ENDLESS))
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        answer = httpx.post(f"{server.url}/v1/completions", json=ENDLESS)
        assert answer.status_code == 429 and answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["Retry-After"]) >= 1 and answer.json()["error"]["type"] == "rate_limit_error"
    until(lambda: engine.running == 0)
    assert httpx.post(f"{server.url}/v1/completions", json=ENDLESS | {"max_tokens": 3}).status_code == 200


def test_requests_of_one_key_at_a_time(engine: FakeEngine) -> None:
    with running(served_by(engine), Limits(max_requests_per_key=2), ("one", "two")) as server:
        headers = {"Authorization": "Bearer one"}
        clients = [server.connect() for _ in range(2)]
        for client in clients:
            client.sendall(post("/v1/completions", json.dumps(ENDLESS).encode(), "Authorization: Bearer one"))
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        short = ENDLESS | {"max_tokens": 2}
        answer = httpx.post(f"{server.url}/v1/completions", json=short, headers=headers)
        assert answer.status_code == 429 and answer.json()["error"]["code"] == "too_many_requests"
        assert answer.headers["Retry-After"]
        other = httpx.post(f"{server.url}/v1/completions", json=short, headers={"Authorization": "Bearer two"})
        assert other.status_code == 200
        clients.pop().close()
        until(lambda: engine.running == 1)
        until(lambda: httpx.post(f"{server.url}/v1/completions", json=short, headers=headers).status_code == 200)
        clients.pop().close()


def test_deadlines_are_the_engines(engine: FakeEngine) -> None:
    with running(served_by(engine), Limits(request_seconds=7.5)) as server:
        httpx.post(f"{server.url}/v1/completions", json=ENDLESS | {"max_tokens": 1})
        assert engine.requests[0].deadline == 7.5


def test_an_engine_that_has_failed(engine: FakeEngine, server: LocalServer) -> None:
    """A restart is what helps: /health, which asks for one, says so."""
    engine.healthy = False
    for path, status in (("/health", 503), ("/ready", 503), ("/version", 200), ("/metrics", 200)):
        assert httpx.get(server.url + path).status_code == status
    assert httpx.get(f"{server.url}/ready").json()["status"] == "failed"
    answer = httpx.post(f"{server.url}/v1/completions", json=ENDLESS)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_failed"


def test_before_the_model_is_loaded() -> None:
    with running(None) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        answer = httpx.get(f"{server.url}/ready")
        assert answer.status_code == 503 and answer.json() == {"status": "loading"}
        answer = httpx.post(f"{server.url}/v1/completions", json=ENDLESS)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "loading"
        assert "xlstm_hip_model_loaded 0.0" in httpx.get(f"{server.url}/metrics").text


def test_silence_is_filled(engine: FakeEngine, server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream begins, and says that it lives, before there is a token: proxies close what is silent."""
    from xlstm_hip.serving.server import generate, streaming

    monkeypatch.setattr(generate, "HEADERS_SECONDS", 0.1)
    monkeypatch.setattr(streaming, "ALIVE_SECONDS", 0.2)
    engine.step_seconds = 1.0
    answer = httpx.post(f"{server.url}/v1/completions", json=ENDLESS | {"max_tokens": 1}, timeout=20)
    assert 2 <= answer.text.count(": waiting\n\n") <= 6 and answer.text.endswith("data: [DONE]\n\n")
    assert '"text":"a"' in answer.text


def test_outputs_of_many_threads_keep_their_order(engine: FakeEngine, server: LocalServer) -> None:
    """The hand-over from the engine's threads loses nothing and mixes nothing up."""
    engine.step_seconds = 0.0
    texts: list[str] = []

    def ask() -> None:
        body = ENDLESS | {"max_tokens": 500, "stream": False}
        texts.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [("abcdefghijklmnopqrstuvwxyz" * 20)[:500]] * 16


def test_answers_are_not_held_back(engine: FakeEngine, server: LocalServer) -> None:
    """By TCP, which may wait 40 ms for a packet to be confirmed before it sends the next small one."""
    with httpx.Client(base_url=server.url) as http:
        began = time.monotonic()
        for _ in range(20):
            http.post("/v1/completions", content=b"{}", headers={"Content-Type": "application/json"})
        assert time.monotonic() - began < 20 * 0.02
