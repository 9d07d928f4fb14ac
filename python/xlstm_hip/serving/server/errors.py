# SPDX-License-Identifier: Apache-2.0
"""Errors as OpenAI's API has them: a status, and {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

SHOWN = 80  # characters of a wrong value that a message repeats
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer that is an error.

    param          the field of the request that is wrong
    code           a name for programs
    retry_after    seconds, for the header Retry-After
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


class ClientLeft(Exception):
    """The connection was closed before the answer: there is nobody to answer."""


def wrong(param: str, expected: str, *, code: str | None = None) -> ApiError:
    """Of a field of the request, in the words of the package's other errors."""
    return ApiError(400, f"{param}: {expected}", param=param, code=code)


def shown(value: Any) -> str:
    """A value for a message, cut: a prompt may be long."""
    if isinstance(value, str):  # repr of all of it would be a copy
        value = value[: SHOWN + 1]
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def of_value_error(error: ValueError, names: Mapping[str, str]) -> ApiError:
    """Of an error of SamplingParams, Request or the engine, which begins with the argument's name.

    names: what the request calls an argument, where it has another name for it.
    """
    argument, colon, rest = str(error).partition(": ")
    if not colon or not argument.replace("_", "").replace(".", "").isalnum():
        return ApiError(400, str(error))
    name = names.get(argument, names.get(argument.partition(".")[0], argument))
    return ApiError(400, f"{name}: {rest if len(rest) < 500 else rest[:500] + '...'}", param=name)
