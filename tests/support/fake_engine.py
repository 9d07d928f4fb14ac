# SPDX-License-Identifier: Apache-2.0
"""An engine without a model, for tests of the server: it answers each request with letters, a token a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from xlstm_hip.models.chat_template import ChatTemplate
from xlstm_hip.models.text import TokenLogprob
from xlstm_hip.models.tokenizer import BYTES
from xlstm_hip.serving import EngineClosed, HistogramSnapshot, Output, QueueFull, Request, Snapshot
from xlstm_hip.serving.server import Served

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


class FakeEngine:
    """
    step_seconds   between tokens of a request; 0: as fast as it can
    fail           exceptions that the next submits raise
    end            how the next requests end: "error" and so on, at their first token, or the one that is said with it
    """

    def __init__(self, step_seconds: float = 0.0, slots: int = 1000) -> None:
        self.step_seconds, self.slots = step_seconds, slots
        self.requests: list[Request] = []
        self.cancelled: set[str] = set()
        self.finished: dict[str, int] = {}
        self.fail: list[Exception] = []
        self.end: list[str | tuple[str, int]] = []
        self.healthy = True
        self.closed: list[tuple[bool, float | None]] = []
        self._lock = threading.Lock()
        self._running: set[str] = set()

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._running)

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        if self.fail:
            raise self.fail.pop(0)
        if self.closed:
            raise EngineClosed("closed")
        with self._lock:
            if len(self._running) >= self.slots:
                raise QueueFull(f"expected at most {self.slots} requests")
            self._running.add(request.id)
            self.requests.append(request)
        end = self.end.pop(0) if self.end else ""
        how, last = (end, 0) if isinstance(end, str) else end
        threading.Thread(target=self._answer, args=(request, on_output, how, last), daemon=True).start()

    def _answer(self, request: Request, on_output: Callable[[Output], None], how: str, last: int) -> None:
        params, reason = request.params, None
        for n in range(params.max_tokens):
            if self.step_seconds:
                time.sleep(self.step_seconds)
            token = LETTERS[n % 26]
            if request.id in self.cancelled or self.closed:
                reason = "cancelled"
            elif how and n == last:
                reason = how
            elif n == params.max_tokens - 1:
                reason = "length"
            logprobs = None
            if params.logprobs is not None:
                top = [(x, chr(x), -0.5 * (1 + x)) for x in range(token, token + params.logprobs)]
                logprobs = [TokenLogprob(token, chr(token), float("-inf") if n == 0 else -0.5, top)]
            error = ValueError("a secret of the inside") if reason == "error" else None
            gone = reason == "cancelled"
            with self._lock:
                if reason is not None:
                    self._running.discard(request.id)
                    self.finished[reason] = self.finished.get(reason, 0) + 1
            on_output(
                Output(
                    request.id, [] if gone else [token], "" if gone else chr(token), None if gone else logprobs, reason,
                    None, error, len(request.tokens), 3 if len(request.tokens) > 3 else 0, n if gone else n + 1,
                )
            )  # fmt: skip
            if reason is not None:
                return

    def cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        self.closed.append((drain, timeout))

    def metrics(self) -> Snapshot:
        seconds = HistogramSnapshot((0.1, 1.0), (1, 2, 3), 12.5, 6)
        counts = dict.fromkeys(Snapshot.__dataclass_fields__, 0) | {
            "healthy": self.healthy,
            "running": self.running,
            "slots_total": self.slots,
            "requests_finished": dict(self.finished),
            "prefix_cache_hits": 7,
        }
        histograms = ("rows_per_step", "step_seconds", "time_to_first_token", "inter_token_latency")
        return Snapshot(**counts | dict.fromkeys(histograms, seconds))  # type: ignore[arg-type]


def served_by(engine: FakeEngine, template: bool = True) -> Served:
    chat = ChatTemplate(TEMPLATE, {"bos_token": "\0"}, "chat_template.jinja") if template else None
    return Served("fake", engine, BYTES, 256, bos=0, template=chat)
