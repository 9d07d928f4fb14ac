# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: read within limits of size and time, and decoded as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from pydantic import JsonValue, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from .errors import ApiError, ClientLeft

_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
CLOSE = {"Connection": "close"}  # what is left of a body that is not read would be taken for the next request


async def read_json(request: Request, max_bytes: int, seconds: float) -> dict[str, Any]:
    """The JSON object that a request has as its body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        # A page of another site may send a form or plain text to this server without asking (CORS), but no JSON.
        raise ApiError(
            415, f"Content-Type: expected application/json, got {kind or 'none'!r}", code="wrong_content_type",
            headers=CLOSE,
        )  # fmt: skip
    try:
        body = await asyncio.wait_for(_read(request, max_bytes), seconds)
    except asyncio.TimeoutError:
        raise ApiError(
            408, f"body: expected it within {seconds:g} seconds", code="body_timeout", headers=CLOSE
        ) from None
    except ClientDisconnect:
        raise ClientLeft from None
    return json_object(body)


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    parts, size = [], int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if size <= max_bytes:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
    if size > max_bytes:
        text = f"body: expected at most {max_bytes} bytes, got {size} or more"
        raise ApiError(413, text, code="request_too_large", headers=CLOSE)
    return b"".join(parts)


def json_object(body: bytes) -> dict[str, Any]:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        text = f"body: expected UTF-8, got byte {byte:#04x} at position {error.start}"
        raise ApiError(400, text, code="invalid_utf8") from None
    try:
        value = _JSON.validate_json(body)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]
        text = reason.get("ctx", {}).get("error", reason["msg"])
        raise ApiError(400, f"body: expected JSON: {text}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"body: expected a JSON object, got {type(value).__name__}", code="invalid_json")
    return value
