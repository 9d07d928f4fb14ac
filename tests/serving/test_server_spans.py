# SPDX-License-Identifier: Apache-2.0
"""A span of OpenTelemetry for each request: what is in it, whose part it is, and that it arrives."""

from __future__ import annotations

import http.server
import os
import signal
import sys
import threading
from pathlib import Path

import httpx
import pytest

from support.fake_engine import FakeEngine, served_by
from support.http_server import running
from support.served_model import served_model
from support.serving import until
from xlstm_hip import cli
from xlstm_hip.serving.server.tracing import Spans

in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

BODY = {"model": "fake", "prompt": "a secret", "max_tokens": 5}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_spans() -> None:
    exporter, engine = in_memory.InMemorySpanExporter(), FakeEngine()
    spans = Spans(exporter)
    with running(served_by(engine), spans=spans) as server:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers)
        engine.end.append("error")
        httpx.post(f"{server.url}/v1/completions", json=BODY, headers={"traceparent": "nonsense"})
        httpx.get(f"{server.url}/nothing")
    spans.close()
    first, second, third = exporter.get_finished_spans()
    assert first.name == "POST /v1/completions" and first.kind.name == "SERVER"
    assert first.context.trace_id == int(TRACE, 16) and first.parent is not None
    assert first.parent.span_id == int(PARENT, 16) and first.status.is_ok is True
    assert first.attributes is not None and first.start_time is not None and first.end_time is not None
    assert {
        "http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5, "xlstm_hip.cached_tokens": 3,
        "xlstm_hip.outcome": "length", "xlstm_hip.request_id": "mine",
    }.items() <= first.attributes.items()  # fmt: skip
    assert 0 < first.attributes["xlstm_hip.time_to_first_token"] * 1e9 <= first.end_time - first.start_time
    assert second.parent is None and second.status.is_ok is False
    assert third.name == "GET other" and "gen_ai.usage.input_tokens" not in (third.attributes or {})
    assert "a secret" not in str([span.to_json() for span in (first, second, third)])


def test_spans_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of the last requests before the end."""
    received: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    try:
        monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        with served_model(tmp_path, "--otel") as server:
            httpx.get(f"{server.url}/version")
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 0
        until(lambda: received)
        assert received[-1][0] == "/v1/traces" and any(b"GET /version" in body for _, body in received)
    finally:
        collector.shutdown()
        collector.server_close()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where another package has brought the interface without the rest."""
    demo = str(Path(__file__).parents[2] / "models" / "demo")
    for module in ("opentelemetry", "opentelemetry.sdk.trace"):
        monkeypatch.setitem(sys.modules, module, None)
        assert cli.main(["serve", demo, "--otel", "--port", "0"]) == 1
        assert '--otel needs opentelemetry: pip install "xlstm_hip[otel]"' in capsys.readouterr().err
        monkeypatch.undo()
