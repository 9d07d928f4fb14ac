# SPDX-License-Identifier: Apache-2.0
"""The interface of the engine; its steps follow in the next commit."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ..models.language_model import LanguageModel
from ..models.tokenizer import Tokenizer
from .config import EngineConfig
from .metrics import Snapshot
from .params import Output, Request


class QueueFull(RuntimeError):
    """As many requests wait as may (EngineConfig.max_waiting)."""


class EngineClosed(RuntimeError):
    """The engine takes no more requests: it was not started, was closed or has failed."""


class Engine:
    """Answers requests with a model, many at a time, from a thread of its own."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, config: EngineConfig | None = None) -> None: ...

    def start(self) -> Engine:
        """Starts the thread. `with Engine(...) as engine` does so, and closes it without draining."""
        raise NotImplementedError

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Accepts a request, or raises QueueFull, EngineClosed or a ValueError that says what the engine does not take.

        on_output is called from the engine's thread: it must be quick.
        """
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step, with the finish reason "cancelled". Unknown and finished ones: nothing."""
        raise NotImplementedError

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Takes no more requests and ends the thread.

        drain      finish all accepted requests first; those unfinished after `timeout` seconds are cancelled
        """
        raise NotImplementedError

    def metrics(self) -> Snapshot:
        raise NotImplementedError

    @property
    def healthy(self) -> bool:
        """Whether the thread runs and has not failed."""
        raise NotImplementedError

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=False)
