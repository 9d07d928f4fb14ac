# SPDX-License-Identifier: Apache-2.0
"""A server on a free port of this machine, in a thread, and clients that behave badly on purpose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn

from support.serving import until
from xlstm_hip.serving.server import Keys, Limits, Served, ServerState, create_app
from xlstm_hip.serving.server.connections import with_head_seconds
from xlstm_hip.serving.server.serve import listen


class LocalServer:
    def __init__(self, state: ServerState, port: int, server: uvicorn.Server) -> None:
        self.state, self.port, self._server = state, port, server
        self.url = f"http://127.0.0.1:{port}"

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(20)
        client.connect(("127.0.0.1", self.port))
        return client


@contextlib.contextmanager
def running(
    served: Served | None, limits: Limits | None = None, keys: tuple[str, ...] = (), **options: object
) -> Iterator[LocalServer]:
    limits = limits or Limits()
    state = ServerState(Keys(keys), limits, bool(options.pop("lenient", False)))
    state.served = served
    app = create_app(state, **options)  # type: ignore[arg-type]
    listener = listen("127.0.0.1", 0, limits.stall_seconds)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=with_head_seconds(limits.head_seconds),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=30,
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield LocalServer(state, listener.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body
