# SPDX-License-Identifier: Apache-2.0
"""The server's log: a line of text or a JSON object for each request. No text of a request is ever in it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("xlstm_hip.serving")


@dataclass
class Record:
    """What is known of a request, for its line in the log, its metrics and its span.

    trace       the client's header traceparent
    outcome     the finish reason, or what became of it: "refused", "left", "slow", "failed"
    on_end      called when it has been answered
    """

    id: str
    method: str
    path: str
    trace: str = ""
    route: str = "other"
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    outcome: str = ""
    code: str | None = None  # of an error
    param: str | None = None
    key: str = ""
    user: str | None = None
    streamed: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    first_seconds: float | None = None  # from its arrival to the first token
    on_end: list[Callable[[], None]] = field(default_factory=list)

    def fields(self, seconds: float) -> dict[str, Any]:
        """For the log, without what is not known."""
        found: dict[str, Any] = {"request_id": self.id, "method": self.method, "path": self.path}
        found |= {"status": self.status, "seconds": round(seconds, 4)}
        for name in ("outcome", "code", "param", "key", "user", "prompt_tokens", "cached_tokens", "new_tokens"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        if self.streamed:
            found["streamed"] = True
        if self.first_seconds is not None:
            found["first_token_seconds"] = round(self.first_seconds, 4)
        return found


def say(event: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Logs an event. `error`: with its traceback."""
    logger.log(level, event, extra={"fields": fields}, exc_info=error)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{name}={_word(value)}" for name, value in fields.items())])


def _word(value: Any) -> Any:
    """Quoted, if a reader could not tell where it ends."""
    return repr(value) if isinstance(value, str) and not (value.isprintable() and value and " " not in value) else value


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"


def _not_of_slow_clients(record: logging.LogRecord) -> bool:
    """uvicorn calls it an error that a client was cut off; the request's own line says that and why."""
    return not record.getMessage().startswith("ASGI callable returned without completing response")


def set_up(kind: str, level: str) -> None:
    """Lines on stderr, of the server, of the package beside it (its engine, say) and of uvicorn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if kind == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    for log in (logger, logging.getLogger("xlstm_hip"), logging.getLogger("uvicorn.error")):
        log.handlers[:] = [handler]
        log.propagate = False
    logger.setLevel(level.upper())
    logging.getLogger("uvicorn.error").addFilter(_not_of_slow_clients)
    # What uvicorn says of its start and its end, the server says itself.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logger.level))
