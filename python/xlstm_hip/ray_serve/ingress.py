# SPDX-License-Identifier: Apache-2.0
"""The ingress: the same server as `xlstm-hip serve`, on an engine that is many."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from ..cli.serve import engine_config, folder_of, keys_of, limits_of, served_of
from ..models.config_files import read_config
from ..models.tokenizer import load_tokenizer
from ..serving.admission import Admission
from ..serving.server import ServerState, create_app
from ..serving.server.logs import set_up
from ..serving.server.tracing import Spans
from ..serving.structure import Structures
from .replicas import Replicas


class Ingress:
    def __init__(self, args: argparse.Namespace, engine: DeploymentHandle) -> None:
        set_up(args.log_format, args.log_level)
        self._args, self._engine, self._folder = args, engine, folder_of(args)
        self._state = ServerState(keys_of(args), limits_of(args), args.ignore_unknown_fields)
        self._config, self._special_tokens = read_config(self._folder, args.chunkwise_kernel is None)
        self._tokenizer = load_tokenizer(self._folder, self._config.vocab_size)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Of Serve: called after __init__."""
        spans = Spans() if self._args.otel else None
        app = create_app(self._state, self._args.cors_origin, spans, writes_id=False)  # Serve's proxy does
        vocab, special = self._config.vocab_size, self._special_tokens

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            structures = Structures(self._tokenizer, vocab, special.eos)
            admission = Admission(engine_config(self._args), vocab, structures)
            replicas = Replicas(self._engine, admission, self._args.max_waiting)
            self._state.served = served_of(self._args, self._folder, self._tokenizer, special, vocab, replicas)
            looking = asyncio.create_task(replicas.look())
            yield
            looking.cancel()
            replicas.close(drain=False)
            if spans is not None:
                await asyncio.to_thread(spans.close)

        app.router.lifespan_context = lifespan
        return app
