# SPDX-License-Identifier: Apache-2.0
"""From the fields of a request to the engine's SamplingParams and Requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..params import Request, SamplingParams, Structure
from .errors import ApiError, of_value_error, wrong
from .limits import Limits
from .openai_types import ChatBody, CompletionBody, SamplingBody


def params_of(body: SamplingBody, max_tokens: int, max_tokens_name: str, logprobs: int | None) -> SamplingParams:
    field, structure = structure_of(body)
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=0 if body.top_k == -1 else body.top_k,  # as users of vLLM write "all"
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=body.logit_bias,
            seed=body.seed,
            stop=body.stop,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            logprobs=logprobs,
            structure=None if structure is None else Structure(*structure),
        )
    except ValueError as error:
        raise of_value_error(error, names_of(body, max_tokens_name, field)) from None


def names_of(body: SamplingBody, max_tokens_name: str, structure_field: str) -> dict[str, str]:
    """What the request calls the engine's arguments."""
    tokens = "messages" if isinstance(body, ChatBody) else "prompt"
    logprobs = "top_logprobs" if isinstance(body, ChatBody) else "logprobs"
    return {"max_tokens": max_tokens_name, "structure": structure_field, "tokens": tokens, "logprobs": logprobs}


def max_tokens_of(body: SamplingBody, limits: Limits) -> tuple[int, str]:
    """How many tokens are asked for, and by which field."""
    name, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        if asked is not None and asked != body.max_completion_tokens:
            raise wrong("max_tokens", f"expected max_completion_tokens = {body.max_completion_tokens}, got {asked}")
        name, asked = "max_completion_tokens", body.max_completion_tokens
    if asked is None:
        return limits.max_new_tokens, name
    if not 1 <= asked <= limits.max_new_tokens:
        raise wrong(name, f"expected 1 to {limits.max_new_tokens}, the limit of this server, got {asked}")
    return asked, name


def logprobs_of(body: SamplingBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    assert isinstance(body, ChatBody)
    if not body.logprobs:
        if body.top_logprobs is not None:
            raise wrong("top_logprobs", f"expected logprobs = true with it, got {body.top_logprobs}")
        return None
    return body.top_logprobs or 0


def structure_of(body: SamplingBody) -> tuple[str, tuple[str, Any] | None]:
    """The field that asks for a form, and the form's kind and value. Two of them are refused."""
    found: list[tuple[str, tuple[str, Any]]] = []
    asked = body.response_format
    if asked is not None and asked.type == "json_schema":
        if asked.json_schema is None:
            raise wrong("response_format.json_schema", "required with the type json_schema, but missing")
        found.append(("response_format", ("json_schema", asked.json_schema.schema_)))
    elif asked is not None:
        if asked.json_schema is not None:
            raise wrong("response_format.json_schema", f"expected none with the type {asked.type}")
        if asked.type == "json_object":
            found.append(("response_format", ("json_object", None)))
    for name, kind in (("json", "json_schema"), ("regex", "regex"), ("choice", "choice"), ("grammar", "grammar")):
        value = getattr(body, f"guided_{name}")
        if value is not None:
            found.append((f"guided_{name}", (kind, value)))
        nested = getattr(body.structured_outputs, "json_" if name == "json" else name, None)
        if nested is not None:
            found.append((f"structured_outputs.{name}", (kind, nested)))
    if body.structured_outputs is not None and body.structured_outputs.json_object:
        found.append(("structured_outputs.json_object", ("json_object", None)))
    if len(found) > 1:
        raise wrong(found[1][0], f"expected one form of the answer, got {found[0][0]} too")
    return found[0] if found else ("response_format", None)


def check_counts(body: SamplingBody, limits: Limits) -> None:
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    if prompts * body.n > limits.max_choices:
        text = f"expected at most {limits.max_choices} answers, got {prompts} prompts with n = {body.n}"
        raise wrong("n", text, code="too_many_choices")
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options", "expected stream = true with it")
    if body.session is not None and prompts * body.n > 1:
        raise wrong("session", f"expected one answer with it, got {prompts * body.n}")


def check_length(tokens: Sequence[int], name: str, limits: Limits) -> None:
    if not tokens:
        raise wrong(name, "expected at least one token, got none, and there is no BOS token to start from")
    most = limits.max_prompt_tokens
    if len(tokens) > most:
        text = f"{name}: expected at most {most} tokens, the limit of this server, got {len(tokens)}"
        raise ApiError(400, text, param=name, code="context_length_exceeded")


def requests_of(
    body: SamplingBody, prompts: Sequence[list[int]], limits: Limits, answer_id: str, key: str
) -> tuple[list[Request], dict[str, str]]:
    """The engine's requests, n after one another for each prompt, and what this request calls their arguments."""
    tokens_name = "messages" if isinstance(body, ChatBody) else "prompt"
    for tokens in prompts:
        check_length(tokens, tokens_name, limits)
    most, most_name = max_tokens_of(body, limits)
    params = params_of(body, most, most_name, logprobs_of(body))
    names = names_of(body, most_name, structure_of(body)[0])
    salt = body.cache_salt or ""
    if limits.cache_per_key:
        salt = f"{key}/{salt}"
    requests: list[Request] = []
    for tokens in prompts:
        for choice in range(body.n):
            if body.seed is not None:  # one of its own for each choice, or all would be the same text
                params = dataclasses.replace(params, seed=body.seed + choice)
            name = f"{answer_id}-{len(requests)}"
            # A session belongs to the key that named it.
            session = None if body.session is None else f"{key}/{body.session}"
            requests.append(Request(name, tokens, params, body.priority, limits.request_seconds, session, salt))
    return requests, names
