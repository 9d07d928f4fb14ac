# SPDX-License-Identifier: Apache-2.0
"""What both kinds of completions do with a request: read it, submit it to the engine, and write the answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from ..engine import EngineClosed, QueueFull
from .answers import Answer
from .bodies import read_json
from .errors import ApiError, ClientLeft, of_value_error, wrong
from .generation import ENDED, Generation, failure_of
from .logs import Record
from .openai_types import SamplingBody, parse
from .sampling_fields import check_counts, requests_of, structure_of
from .served import AnswerLost, Served
from .state import ServerState
from .streaming import EventStream, watch

Body = TypeVar("Body", bound=SamplingBody)
HEADERS_SECONDS = 10.0  # after which a stream begins without a token: until then an error can have its own status


async def generate(
    state: ServerState,
    request: Request,
    kind: type[Body],
    prefix: str,
    prompts_of: Callable[[Served, Body], list[list[int]]],
    answer_of: type[Answer],
) -> Response:
    served, record = state.enter(request)
    fields = await read_json(request, state.limits.max_body_bytes, state.limits.body_seconds)
    body = parse(kind, fields, state.lenient)
    served.check_name(body.model)
    check_counts(body, state.limits)
    record.user, record.streamed = body.user, body.stream
    answer_id = f"{prefix}-{uuid.uuid4().hex}"

    def prepare() -> tuple[Generation, Answer]:
        """In a thread: a long prompt takes a while to encode, and streams go on beside it."""
        prompts = prompts_of(served, body)
        requests, names = requests_of(body, prompts, state.limits, answer_id, record.key)
        answer = answer_of(answer_id, served, body, [len(prompt) for prompt in prompts])
        bound = state.limits.stream_outputs * len(requests) if body.stream else None
        generation = Generation(mailbox, served.engine, requests, record.id, bound)
        submit(generation, names)
        return generation, answer

    mailbox = state.mailbox
    threads = None if structure_of(body)[1] is None else state.forms
    generation, answer = await asyncio.get_running_loop().run_in_executor(threads, prepare)
    leaving = watch(request.receive, generation)
    record.on_end.append(lambda: _note(record, generation, answer))
    handed_over = False
    try:
        if not body.stream:
            return await _whole(generation, answer)
        await _until_first(generation)
        handed_over = True
        return EventStream(generation, answer, leaving, state.limits.stall_seconds, record)
    finally:
        if not handed_over:
            leaving.cancel()
            generation.stop(ENDED)


def submit(generation: Generation, names: dict[str, str]) -> None:
    try:
        generation.submit()
    except QueueFull as error:
        raise ApiError(429, f"the server is busy: {error}", code="queue_full", retry_after=1) from None
    except EngineClosed:
        raise ApiError(503, "the engine takes no more requests", code="draining", retry_after=5) from None
    except ValueError as error:
        raise of_value_error(error, names) from None
    except ModuleNotFoundError as error:  # of the extra for structured answers
        raise wrong(names["structure"], f"not installed on this server: {error}", code="not_installed") from None


async def _until_first(generation: Generation) -> None:
    """Waits for the first output, a while. Raises if it is an error, which then is the whole answer."""
    ready = asyncio.create_task(generation.until_ready())
    stopped = asyncio.create_task(generation.stopped.wait())
    try:
        await asyncio.wait({ready, stopped}, timeout=HEADERS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
        stopped.cancel()
    if generation.cause is not None:
        raise ClientLeft
    first = generation.peek()
    failure = None if first is None else failure_of(first)
    if failure is not None:
        raise failure


async def _whole(generation: Generation, answer: Answer) -> Response:
    stopped = asyncio.create_task(generation.stopped.wait())
    try:
        while not generation.over:
            ready = asyncio.create_task(generation.until_ready())
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if generation.cause is not None:
                raise ClientLeft
            for choice, output in generation.outputs():
                if isinstance(output.error, AnswerLost) and output.finish_reason is None:
                    answer.begin_again(choice)
                    continue
                answer.take(choice, output)
                failure = failure_of(output)
                if failure is not None:
                    raise failure
    finally:
        stopped.cancel()
    return JSONResponse(answer.result())


def _note(record: Record, generation: Generation, answer: Answer) -> None:
    """For the log and the metrics."""
    record.prompt_tokens, record.new_tokens = answer.prompt_tokens, answer.new_tokens
    record.cached_tokens = answer.cached_tokens
    if generation.first is not None:
        record.first_seconds = generation.first - record.began
    if generation.cause not in (None, ENDED):
        record.outcome = generation.cause or ""
    elif record.status < 400 and not record.outcome:
        record.outcome = "+".join(sorted({choice.finish_reason or "" for choice in answer.choices}))
