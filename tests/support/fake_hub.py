# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face hub of this process: what huggingface_hub asks for to download a snapshot, for models in folders."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

TOKEN = "hf_of_the_tests"
GATED, PRIVATE = "lab/gated", "lab/private"  # read with TOKEN


class FakeHub:
    def __init__(self) -> None:
        self.models: dict[str, dict[str, Path]] = {}  # by name and revision
        self.requests: list[str] = []  # METHOD path
        self.url = ""

    def commit(self, name: str, revision: str) -> str:
        return hashlib.sha1(f"{name} {revision}".encode()).hexdigest()

    def folder(self, name: str, revision: str) -> Path | None:
        revisions = self.models[name]
        return revisions.get(
            revision, next((f for r, f in revisions.items() if self.commit(name, r) == revision), None)
        )

    def files_sent(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.requests if path.startswith("GET") and "/resolve/" in path}


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {path}")
            if path.count("/") < 4:  # of the hub itself, not of a model
                return self.answer(404)
            parts = path.strip("/").removeprefix("api/models/").split("/")
            name, action, revision, file = "/".join(parts[:2]), parts[2], parts[3], "/".join(parts[4:])
            allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if name not in hub.models or name == PRIVATE and not allowed:
                return self.answer(401, X_Error_Code="RepoNotFound")
            if name == GATED and not allowed and "resolve" in path:
                return self.answer(403, X_Error_Code="GatedRepo")
            folder = hub.folder(name, revision)
            if folder is None:
                return self.answer(404, X_Error_Code="RevisionNotFound")
            commit = next(hub.commit(name, r) for r, f in hub.models[name].items() if f == folder)
            if action == "resolve":
                body = (folder / file).read_bytes()
                etag = f'"{hashlib.sha1(body).hexdigest()}"'
                return self.answer(200, body, ETag=etag, X_Repo_Commit=commit)
            files = sorted(f for f in folder.rglob("*") if f.is_file())
            names = [(f.relative_to(folder).as_posix(), f) for f in files]
            if action == "tree":
                entry = {"type": "file", "oid": "0" * 40}
                reply: object = [{**entry, "path": n, "size": f.stat().st_size} for n, f in names]
            else:
                reply = {"id": name, "sha": commit, "siblings": [{"rfilename": n} for n, _ in names]}
            return self.answer(200, json.dumps(reply).encode(), Content_Type="application/json")

        do_HEAD = do_GET

    return Handler


@contextmanager
def fake_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """A server that huggingface_hub takes for the hub, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
