# SPDX-License-Identifier: Apache-2.0
"""The command serve with the demo model, and what happens to a process: signals under load, kill -9, many who leave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.http_server import post
from support.served_model import DEMO, ServedModel, served_model
from support.serving import until
from support.terminal import command

BODY = {"model": "demo", "prompt": "In the beginning", "temperature": 0.8, "ignore_eos": True, "stream": True}


class Stream(threading.Thread):
    """A client that reads a stream to its end, however that comes."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.url, self.max_tokens = url, max_tokens
        self.text, self.error, self.status = "", "", 0
        self.start()

    def run(self) -> None:
        try:
            body = BODY | {"max_tokens": self.max_tokens}
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=60) as answer:
                self.status = answer.status_code
                for part in answer.iter_text():
                    self.text += part
        except httpx.TransportError as error:
            self.error = type(error).__name__

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith("data: {")]


def begun(streams: list[Stream]) -> None:
    until(lambda: all(stream.text for stream in streams), 60)


def metrics(server: ServedModel) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def events(server: ServedModel) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.splitlines()]


def test_a_drain_under_load(tmp_path: Path) -> None:
    """After SIGTERM running answers end, /ready and new requests get 503, and the exit code is 0."""
    with served_model(tmp_path, "--slots", 8) as server:
        streams = [Stream(server.url, 400) for _ in range(12)]
        begun(streams[:1])
        until(lambda: metrics(server)["xlstm_hip_requests_accepted_total"] == 12)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        assert httpx.get(f"{server.url}/ready").json()["status"] == "draining"
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"
        assert httpx.get(f"{server.url}/health").status_code == 200
        for stream in streams:
            stream.join(60)
        assert server.ended() == 0
        for stream in streams:  # those that still waited for a slot, too
            assert stream.text.endswith("data: [DONE]\n\n") and not stream.error
            assert stream.events[-1]["choices"][0]["finish_reason"] == "length"
    lines = events(server)
    assert [line["event"] for line in lines if line["event"] != "request"] == [
        "listening", "ready", "draining", "drained",
    ]  # fmt: skip
    assert all(line["level"] == "info" for line in lines) and "Traceback" not in server.log
    assert BODY["prompt"] not in server.log


def test_a_drain_that_takes_too_long(tmp_path: Path) -> None:
    """Who is cut off is told so."""
    with served_model(tmp_path, "--drain-timeout", 0.3) as server:
        streams = [Stream(server.url, 30000) for _ in range(3)]
        begun(streams)
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)  # Ctrl-C is as good
        assert server.ended() == 0 and time.monotonic() - began < 10
        for stream in streams:
            stream.join(20)
            assert stream.text.endswith("data: [DONE]\n\n") and not stream.error
            assert stream.events[-1]["error"]["code"] == "cancelled"
    assert events(server)[-1]["event"] == "drained" and events(server)[-1]["cancelled"] == 3


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with served_model(tmp_path) as server:
        stream = Stream(server.url, 30000)
        begun([stream])
        server.process.send_signal(signal.SIGTERM)
        until(lambda: '"draining"' in server.log)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 128 + signal.SIGTERM and time.monotonic() - began < 10
        stream.join(20)
        assert stream.error and "[DONE]" not in stream.text


def test_killed_under_load(tmp_path: Path) -> None:
    """Clients see a closed connection, and a server started again at the same address serves."""
    with served_model(tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        streams = [Stream(server.url, 30000) for _ in range(6)]
        begun(streams)
        server.process.kill()
        for stream in streams:
            stream.join(20)
            assert stream.error == "RemoteProtocolError" and "[DONE]" not in stream.text
    with served_model(tmp_path, port=port) as again:
        assert again.url == server.url
        after = Stream(again.url, 20)
        after.join(60)
        assert after.text.endswith("data: [DONE]\n\n")


def children(pid: int) -> list[int]:
    """Whichever of its threads has started them."""
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
def test_an_engine_killed_under_load(tmp_path: Path) -> None:
    """Of two: nobody notices but the log and the metrics; sessions lie in a folder each; the end leaves no process."""
    swap = tmp_path / "swap"
    swap.mkdir()
    options = ("--engines", 2, "--slots", 4, "--swap-folder", swap, "--swap-mb", 0)
    with served_model(tmp_path, *options) as server:
        replicas = [
            pid for pid in children(server.process.pid) if b"replica" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(replicas) == 2
        streams = [Stream(server.url, 400) for _ in range(10)]
        until(lambda: sum(bool(stream.text) for stream in streams) >= 8, 60)  # all slots are taken, two clients wait
        os.kill(replicas[0], signal.SIGKILL)
        body = {name: value for name, value in BODY.items() if name != "stream"}
        answer = httpx.post(f"{server.url}/v1/completions", json=body | {"session": "s", "max_tokens": 5}, timeout=60)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 5
        for stream in streams:
            stream.join(90)
            assert stream.text.endswith("data: [DONE]\n\n") and not stream.error
            assert stream.events[-1]["choices"][0]["finish_reason"] == "length"
            assert len("".join(event["choices"][0]["text"] for event in stream.events)) == 400
        until(lambda: httpx.get(f"{server.url}/ready").json().get("replicas") == 2, 60)
        until(lambda: metrics(server)["xlstm_hip_slots_used"] == 0)
        found = metrics(server)
        assert found["xlstm_hip_engine_restarts_total"] == 1 and found["xlstm_hip_requests_continued_total"] > 0
        left = children(server.process.pid)
        os.kill(left[0], signal.SIGTERM)  # which a service's stop sends to all its processes
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0 and not any(Path(f"/proc/{pid}").exists() for pid in left)
    errors = [line["event"] for line in events(server) if line["level"] == "error"]
    assert len(errors) == 1 and errors[0].startswith("replica ") and "(signal SIGKILL)" in errors[0]
    assert len(list(swap.glob("engine-*"))) == 2 and len(list(swap.glob("engine-*/*.state"))) == 1


def test_a_thousand_leave_in_mid_stream(tmp_path: Path) -> None:
    """All slots come back, what waited is gone too, and one that stayed has its answer."""
    with served_model(tmp_path, "--slots", 4, "--max-waiting", 1000) as server:
        stays = Stream(server.url, 300)
        begun([stays])
        address = httpx.URL(server.url)
        payload = json.dumps(BODY | {"max_tokens": 30000}).encode()
        for _ in range(5):
            clients = [socket.create_connection((address.host, address.port)) for _ in range(200)]
            for client in clients:
                client.sendall(post("/v1/completions", payload))
            until(lambda: metrics(server)["xlstm_hip_requests_running"] == 4)
            assert clients[0].recv(100)
            for client in clients:
                client.close()
        stays.join(60)
        assert stays.text.endswith("data: [DONE]\n\n")
        until(lambda: metrics(server)["xlstm_hip_slots_used"] == 0)
        found = metrics(server)
        assert found["xlstm_hip_requests_running"] == found["xlstm_hip_requests_waiting"] == 0
        assert found["xlstm_hip_requests_finished_total"] == found["xlstm_hip_requests_accepted_total"] > 800
        until(lambda: metrics(server)["xlstm_hip_http_requests_open"] == 0)
        again = Stream(server.url, 20)
        again.join(60)
        assert again.text.endswith("data: [DONE]\n\n")
    left = [line for line in events(server) if line.get("outcome") == "left"]
    assert len(left) == 1000 and not [line for line in events(server) if line["level"] == "error"]


@pytest.mark.rows("ci")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory in /proc")
def test_memory_of_prompts_of_many_lengths(tmp_path: Path) -> None:
    """In bfloat16, where torch would keep half a megabyte for each length and weight; states are not kept either."""

    def megabytes() -> float:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024

    with served_model(tmp_path, "--dtype", "bfloat16", "--prefix-cache-mb", 0) as server, httpx.Client() as http:
        for round in range(3):
            for length in range(1, 250, 1):
                body = BODY | {"prompt": [65] * length, "max_tokens": 1, "stream": False}
                assert http.post(f"{server.url}/v1/completions", json=body).status_code == 200
            if round == 0:
                before = megabytes()
        assert before < 500 and megabytes() - before < 30


def test_a_signal_while_the_model_is_loaded(tmp_path: Path) -> None:
    """The port is open, /ready says why nothing is answered, and nothing is waited for at the end."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(DEMO / "config.json", folder)
    os.mkfifo(folder / "model.safetensors")  # whose reading never ends
    process = command("serve", folder, "--port", 0)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        assert httpx.get(f"{url}/ready").json() == {"status": "loading"}
        answer = httpx.post(f"{url}/v1/completions", json=BODY)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "loading"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    """One line, exit code 1: also where it is found while the server listens already."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(DEMO / "config.json", folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    process = command("serve", folder, "--port", 0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out.startswith("listening on http://127.0.0.1:")
    last = err.splitlines()[-1]
    assert last.startswith("xlstm-hip serve: ") and "model.safetensors" in last and "Traceback" not in err
