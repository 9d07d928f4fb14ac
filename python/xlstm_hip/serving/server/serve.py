# SPDX-License-Identifier: Apache-2.0
"""Runs the server: it listens, loads the model beside, answers until a signal, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from .app import create_app
from .auth import Keys
from .connections import with_head_seconds
from .drain import DrainingServer
from .limits import Limits
from .logs import say, set_up
from .served import Served
from .state import ServerState
from .tracing import Spans

BACKLOG = 2048
MOST_FILES = 65536
SEND_BUFFER = 128 << 10  # bytes that the system keeps for a client that does not read: about a thousand tokens


@dataclass(frozen=True)
class ServerOptions:
    """
    port             0: any free one, which is printed
    otel             a span for each request (tracing.py)
    drain_seconds    that running answers have after a signal
    lenient          unknown fields of requests are left out instead of refused
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    lenient: bool = False
    cors_origins: Sequence[str] = ()
    otel: bool = False
    drain_seconds: float = 30.0
    log_format: str = "text"
    log_level: str = "info"


def listen(host: str, port: int, stall_seconds: float) -> socket.socket:
    """A socket whose connections have a small buffer, and are closed by the system when their client reads nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets at once (TCP_NODELAY) where it sees that the protocol is TCP, which 0 does not say.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            # uvicorn closes a connection when all was sent, which a client that does not read would put off for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_seconds * 1000))
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(f"--host, --port: {host}:{port}: {error.strerror}") from None
    return listener


def allow_connections() -> None:
    """Each is an open file, of which a shell often allows 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(load: Callable[[], Served], options: ServerOptions) -> None:
    """Returns when it was asked to end by a signal and all answers are finished.

    load    returns the model with its engine started; called in a thread while the server listens and says 503
    """
    spans = Spans() if options.otel else None
    set_up(options.log_format, options.log_level)
    allow_connections()
    state = ServerState(options.keys, options.limits, options.lenient)
    app = create_app(state, options.cors_origins, spans)
    failed: list[BaseException] = []

    def load_it() -> None:
        try:
            state.served = load()
            say("ready", model=state.served.name)
        except BaseException as error:  # for the caller, who tells it in one line
            failed.append(error)
            server.should_exit = True

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=load_it, name="load", daemon=True).start()
        yield
        if state.served is not None:
            await asyncio.to_thread(state.served.engine.close, False)
        if spans is not None:
            await asyncio.to_thread(spans.close)

    app.router.lifespan_context = lifespan
    listener = listen(options.host, options.port, options.limits.stall_seconds)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    config = uvicorn.Config(
        app,
        http=with_head_seconds(options.limits.head_seconds),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        lifespan="on",
        proxy_headers=False,
    )
    server = DrainingServer(config, state, options.drain_seconds)
    print(f"listening on {url}", flush=True)
    say("listening", logging.INFO, url=url)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    if failed:
        raise failed[0]
