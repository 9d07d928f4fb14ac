# SPDX-License-Identifier: Apache-2.0
"""What whoever runs a server sees of it: keys, logs without texts, metrics, request ids, CORS, the drain."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.fake_engine import FakeEngine, served_by
from support.http_server import LocalServer, post, running
from support.serving import until
from xlstm_hip import cli
from xlstm_hip._core.extras import EXTRA_OF
from xlstm_hip.serving.server import Keys, Limits, auth, load_keys, logs
from xlstm_hip.serving.server.serve import listen

SECRET = "a text that nobody else may read"
BODY: dict[str, Any] = {"model": "fake", "prompt": SECRET, "max_tokens": 5}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LocalServer]:
    with running(served_by(engine), keys=("first-key", "second-key")) as local:
        yield local


@pytest.fixture
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20, headers={"Authorization": "Bearer second-key"}) as client:
        yield client


def test_keys(server: LocalServer) -> None:
    with httpx.Client(base_url=server.url) as http:
        for key in ("first-key", "second-key"):
            for scheme in ("Bearer", "bearer"):
                headers = {"Authorization": f"{scheme} {key}"}
                assert http.post("/v1/completions", json=BODY, headers=headers).status_code == 200
        wrong: list[bytes | None] = [
            None, b"", b"Bearer", b"Bearer first", b"Bearer first-key2", b"Bearer second-key first-key",
            b"Basic first-key", b"first-key", "Bearer schlüssel".encode(), b"Bearer \xff",
        ]  # fmt: skip
        for value in wrong:
            headers = {} if value is None else {"Authorization": value}
            for method, path in (
                ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
                ("GET", "/v1/models/fake"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/v1/embeddings"),
            ):  # fmt: skip
                answer = http.request(method, path, headers=headers)  # type: ignore[arg-type]
                assert answer.status_code == 401, (method, path, value)
                assert answer.json()["error"]["code"] == "invalid_api_key" and "first-key" not in answer.text
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/", "/health", "/ready", "/metrics", "/version"):
            assert http.get(path).status_code == 200


def test_keys_may_keep_their_states_apart(engine: FakeEngine) -> None:
    """By a salt that is none of the key's own letters; a client's salt counts beside it."""
    with running(served_by(engine), Limits(cache_per_key=True), keys=("first-key", "second-key")) as server:
        for key, more in (("first-key", {}), ("second-key", {}), ("second-key", {"cache_salt": "x"})):
            headers = {"Authorization": f"Bearer {key}"}
            answer = httpx.post(f"{server.url}/v1/completions", json=BODY | more, headers=headers)
            assert answer.status_code == 200
    salts = [request.cache_salt for request in engine.requests]
    assert len(set(salts)) == 3 and all(salts) and "key" not in "".join(salts)


def test_every_key_is_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the time of an answer says nothing: hmac.compare_digest for each key, whichever fits."""
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    keys = Keys(["a", "b", "c"])

    class Asked:
        headers = {"authorization": "Bearer a"}

    assert keys.check(Asked()) and compared == [(b"a", b"a"), (b"b", b"a"), (b"c", b"a")]  # type: ignore[arg-type]


def test_files_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# of the team\nabc\n\n  def  \n")
    assert len(load_keys(file)) == 2 and len(load_keys(None)) == 0
    monkeypatch.setenv("XLSTM_HIP_API_KEYS", "x, y")
    assert len(load_keys(None)) == 2 and len(load_keys(file)) == 2
    for text, words in (("", "expected a key a line, got none"), ("a b", "key 1: expected printable ASCII"),
                        ("a\né", "key 2: expected printable ASCII")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            load_keys(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="--api-key-file: expected UTF-8"):
        load_keys(file)
    with pytest.raises(OSError, match="--api-key-file: No such file"):
        load_keys(tmp_path / "none")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log as JSON."""
    stream, before = (
        io.StringIO(),
        [logging.getLogger(name) for name in ("xlstm_hip", "xlstm_hip.serving", "uvicorn.error")],
    )
    kept = [(log, log.handlers[:], log.propagate, log.level, log.filters[:]) for log in before]
    monkeypatch.setattr(logs.sys, "stderr", stream)
    logs.set_up("json", "debug")
    yield stream
    for log, log.handlers[:], log.propagate, level, log.filters[:] in kept:
        log.setLevel(level)


def test_a_line_for_each_request(logged: io.StringIO, http: httpx.Client, engine: FakeEngine) -> None:
    """With what was counted and without any text of it."""
    http.post("/v1/completions", json=BODY | {"user": "someone"}, headers={"X-Request-Id": "mine"})
    http.post("/v1/completions", json=BODY | {"stream": True})
    http.post("/v1/completions", json=BODY | {"temperature": SECRET})
    http.post("/v1/chat/completions", json={"model": "fake", "messages": SECRET})
    http.post("/v1/chat/completions", content=SECRET.encode(), headers={"Content-Type": "application/json"})
    engine.end.append("error")
    http.post("/v1/completions", json=BODY)
    engine.fail.append(OSError("disk"))
    http.post("/v1/completions", json=BODY)
    http.get("/nothing%0Ahere")
    until(lambda: logged.getvalue().count('"event": "request"') == 8)
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert SECRET not in logged.getvalue() and "second-key" not in logged.getvalue()
    requests = [line for line in lines if line["event"] == "request"]
    first = requests[0]
    counts = {"prompt_tokens": 1 + len(SECRET), "cached_tokens": 3, "new_tokens": 5, "user": "someone"}
    fields = {"request_id": "mine", "method": "POST", "path": "/v1/completions", "status": 200, "outcome": "length"}
    assert {**fields, **counts}.items() <= first.items() and re.fullmatch("[0-9a-f]{8}", first["key"])
    assert 0 < first["first_token_seconds"] <= first["seconds"] < 10 and first["level"] == "info"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert requests[1]["streamed"] and requests[1]["outcome"] == "length"
    assert [(line["status"], line["outcome"]) for line in requests[2:]] == [
        (400, "refused"), (400, "refused"), (400, "refused"), (500, "refused"), (500, "failed"), (404, "refused"),
    ]  # fmt: skip
    assert [line.get("param") for line in requests[2:5]] == ["temperature", "messages", None]
    assert requests[-1]["path"] == "/nothing%0Ahere"
    # What the client is not told.
    errors = [line for line in lines if line["level"] == "error"]
    assert "a secret of the inside" in errors[0]["traceback"] and "OSError: disk" in errors[1]["traceback"]
    assert errors[0]["request_id"] == requests[5]["request_id"]


def test_what_the_engine_logs_has_the_same_form(logged: io.StringIO) -> None:
    logging.getLogger("xlstm_hip").warning("out of memory: %s", "planted")
    (line,) = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert line["event"] == "out of memory: planted" and line["level"] == "warning"


def test_a_line_as_text() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "request", (), None)
    record.fields = {"status": 200, "user": "a b\nc", "key": ""}
    assert logs._Text("%(message)s").format(record) == "request status=200 user='a b\\nc' key=''"


def test_request_ids(http: httpx.Client) -> None:
    for given in ("abc-1", "x" * 128):
        assert http.get("/version", headers={"X-Request-Id": given}).headers["X-Request-Id"] == given
    for given in (b"x" * 129, b"", b"a b", b"\xe9"):
        made = http.get("/version", headers={"X-Request-Id": given}).headers["X-Request-Id"]  # type: ignore[arg-type]
        assert re.fullmatch("[0-9a-f]{32}", made)
    # An error has one too, and two requests of one id do not meet in the engine.
    assert http.get("/nothing", headers={"X-Request-Id": "abc"}).headers["X-Request-Id"] == "abc"
    answers = [http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "abc"}).json() for _ in range(2)]
    assert answers[0]["id"] != answers[1]["id"]


def test_metrics(http: httpx.Client, engine: FakeEngine) -> None:
    http.post("/v1/completions", json=BODY)
    http.post("/v1/completions", json={})
    http.get("/nothing/at/all")
    answer = http.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["xlstm_hip_http_requests_total", "length", "/v1/completions", "200"] == 1
    assert samples["xlstm_hip_http_requests_total", "refused", "/v1/completions", "400"] == 1
    assert samples["xlstm_hip_http_requests_total", "refused", "other", "404"] == 1  # not a label for any path
    assert samples["xlstm_hip_http_request_seconds_count", "/v1/completions"] == 2
    assert samples["xlstm_hip_requests_finished_total", "length"] == 1
    assert samples["xlstm_hip_slots",] == 1000 and samples["xlstm_hip_prefix_cache_hits_total",] == 7
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "engine_step_seconds"):
        buckets = [samples[f"xlstm_hip_{name}_bucket", bound] for bound in ("0.1", "1.0", "+Inf")]
        assert buckets == [1, 3, 6] and samples[f"xlstm_hip_{name}_count",] == 6
        assert samples[f"xlstm_hip_{name}_sum",] == 12.5
    assert {"xlstm_hip_requests_waiting", "xlstm_hip_requests_running"} <= {name for name, *_ in samples}


def test_an_engine_that_is_many(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica's counts have its name; without a replica /ready says why nothing is answered."""
    one = engine.metrics()
    by_replica = {"r1": one, "r2": one}
    monkeypatch.setattr(engine, "metrics", lambda: by_replica)
    with running(served_by(engine)) as server, httpx.Client(base_url=server.url) as http:
        expected = {"status": "ready", "running": 0, "waiting": 0, "slots": 2 * engine.slots, "replicas": 2}
        assert http.get("/ready").json() == expected
        families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
        for name in (
            "slots",
            "prefix_cache_hits",
            "engine_healthy",
            "requests_finished",
            "time_to_first_token_seconds",
        ):
            replicas = [sample.labels["replica"] for sample in families[f"xlstm_hip_{name}"].samples]
            assert set(replicas) == ({"r1", "r2"} if replicas else set())
        assert "r2" in str(families["xlstm_hip_time_to_first_token_seconds"].samples)
        by_replica.clear()
        ready = http.get("/ready")
        assert ready.status_code == 503 and ready.json() == {"status": "waiting for a replica"}
        assert http.get("/health").status_code == 200 and "xlstm_hip_model_loaded 0.0" in http.get("/metrics").text


def test_cors(engine: FakeEngine) -> None:
    origin = {"Origin": "https://page.example"}
    asked = origin | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with running(served_by(engine)) as server:
        assert "access-control-allow-origin" not in httpx.post(f"{server.url}/v1/completions", headers=origin).headers
        assert httpx.options(f"{server.url}/v1/completions", headers=asked).status_code == 405
    with running(served_by(engine), keys=("k",), cors_origins=["https://page.example"]) as server:
        answer = httpx.options(f"{server.url}/v1/completions", headers=asked)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://page.example"
        answer = httpx.post(f"{server.url}/v1/completions", headers=origin)  # an error has it, or pages cannot read it
        assert answer.status_code == 401 and answer.headers["access-control-allow-origin"] == "https://page.example"
        other = asked | {"Origin": "https://other.example"}
        assert "access-control-allow-origin" not in httpx.options(f"{server.url}/v1/completions", headers=other).headers


def test_the_door_while_draining(engine: FakeEngine) -> None:
    """Running answers go on, new requests are refused."""
    engine.step_seconds = 0.02
    with running(served_by(engine)) as server, server.connect() as client:
        client.sendall(post("/v1/completions", json.dumps(BODY | {"max_tokens": 50, "stream": True}).encode()))
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        server.state.door.close()
        assert httpx.get(f"{server.url}/ready").json()["status"] == "draining"
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"
        assert answer.headers["Retry-After"] and answer.headers["Connection"] == "close"
        text = b""
        while b"[DONE]" not in text:
            text += client.recv(65536)
        assert b'"finish_reason":"length"' in text


def test_the_description_for_programs(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/metrics"} <= set(paths)
    schema = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "temperature", "response_format"} <= set(schema["properties"])
    assert http.get("/docs").status_code == 404  # that page would load scripts from elsewhere


def test_what_the_page_may_do(http: httpx.Client) -> None:
    answer = http.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!["']|data:|#)\S|https?://|@import|innerHTML""", answer.text)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0, 5.0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=f"--host, --port: 127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port, 5.0)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert first.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
    with pytest.raises(OSError, match="--host, --port: no.such.host.invalid:0: "):
        listen("no.such.host.invalid", 0, 5.0)


def test_options_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = str(Path(__file__).parents[2] / "models" / "demo")
    for options, code, words in (
        (["--max-requests-per-key", "2"], 2, "--max-requests-per-key: expected API keys with it, got 2"),
        (["--cache-per-key"], 2, "--cache-per-key: expected API keys with it, got True"),
        (["--port", "65536"], 2, "--port: expected a whole number >= 0"),
        (["--template", "none.jinja"], 1, "--template: expected a file, got 'none.jinja'"),
        (["--api-key-file", str(tmp_path / "none")], 1, "--api-key-file: No such file or directory"),
        (["--swap-folder", str(tmp_path / "none")], 1, "--swap-folder: expected a folder"),
        (["--engines", "0"], 2, "--engines: expected a whole number >= 1, got '0'"),
        (["--engines", "2", "--device", "cuda:0"], 1, "--device: expected cpu or cuda with --engines 2, got 'cuda:0'"),
        (["--engines", "99", "--device", "cuda"], 1, "--engines: expected at most as many as there are GPUs, "),
        (["--token-budget", "5"], 1, "--token-budget: expected at least prefill_chunk"),
        (["--revision", "x"], 1, "revision"),
    ):
        try:
            actual = cli.main(["serve", demo, *options])
        except SystemExit as stopped:
            actual = int(stopped.code or 0)
        err = capsys.readouterr().err
        assert actual == code and words in err and err.count("\n") == 1, err
    assert cli.main(["serve", str(tmp_path / "none")]) == 1
    assert "model: expected the folder of a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("package", [package for package, extra in EXTRA_OF.items() if extra == "serve"])
def test_without_the_extra(package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    assert cli.main(["serve", "models/demo"]) == 1
    assert f'xlstm-hip serve needs {package}: pip install "xlstm_hip[serve]"' in capsys.readouterr().err


def test_no_thread_is_left(engine: FakeEngine) -> None:
    before = threading.active_count()
    with running(served_by(engine)) as server:
        httpx.post(f"{server.url}/v1/completions", json=BODY)
    until(lambda: threading.active_count() <= before + 1)  # of the pool that encodes prompts
