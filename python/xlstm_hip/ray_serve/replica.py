# SPDX-License-Identifier: Apache-2.0
"""A replica: the engine with its model, in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import AsyncIterator

import ray
from ray import serve

from ..cli.common import default_device_name
from ..cli.serve import engine_config, folder_of, start_engine
from ..serving.engine import Engine
from ..serving.metrics import Snapshot
from ..serving.params import Output
from ..serving.sending import sendable_output
from ..serving.server.generation import ENDED, Generation, Mailbox
from ..serving.server.logs import set_up
from .attempt import Attempt

NO_LIMIT = 1 << 31  # max_ongoing_requests bounds what a replica gets, the ingress what waits before


class EngineReplica:
    _engine: Engine | None = None  # until the model is loaded

    def __init__(self, args: argparse.Namespace) -> None:
        set_up(args.log_format, args.log_level)
        self._name = serve.get_replica_context().replica_id.unique_id
        device = default_device_name() if args.device is None else args.device
        if device != "cpu" and not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
            raise ValueError(
                f"ray_actor_options: expected num_gpus for a model on the device {device!r}, got none; without GPUs "
                "the option is device: cpu"
            )
        config = dataclasses.replace(engine_config(args), max_waiting=NO_LIMIT)
        self._engine = start_engine(args, folder_of(args), config)
        self._mailbox: Mailbox | None = None

    async def answer(self, attempt: Attempt) -> AsyncIterator[str | list[Output]]:
        """This replica's name, once the engine has the request, then its outputs, those that wait at a time."""
        assert self._engine is not None
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        request = attempt.request
        everything = request.params.max_tokens + 1  # nobody is too slow: the ingress takes what comes
        generation = Generation(self._mailbox, self._engine, [request], request.id, everything)
        submitting = asyncio.create_task(asyncio.to_thread(generation.submit))  # which may compile a structure

        def stop(done: asyncio.Task[None]) -> None:
            done.exception()  # has been raised below, or nobody waits for it
            generation.stop(ENDED)

        try:
            await asyncio.shield(submitting)
            yield self._name
            while not generation.over:
                await generation.until_ready()
                yield [sendable_output(output) for _, output in generation.outputs()]
        finally:
            # Not before it has been submitted: what is not there yet cannot be cancelled.
            submitting.add_done_callback(stop)

    def snapshot(self) -> tuple[str, Snapshot]:
        assert self._engine is not None
        return self._name, self._engine.metrics()

    def check_health(self) -> None:
        """Of Serve, which ends this process if it raises, and starts another."""
        if self._engine is not None and not self._engine.healthy:
            raise RuntimeError("the engine has failed, and only a restart repairs it")

    def __del__(self) -> None:
        """Of Serve, too: called when no request is left, or when those that are have had their time."""
        if self._engine is not None:
            self._engine.close(drain=False)
