# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for, and how many may be answered at a time: limits, and the door that counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from .errors import ApiError


@dataclass(frozen=True)
class Limits:
    """
    max_body_bytes         of a request
    max_prompt_tokens      of a prompt
    max_new_tokens         of an answer; also what a chat's answer may have that names no limit
    max_choices            answers that a request may ask for: its prompts times n
    max_requests_per_key   answered at a time, for one key; None: no limit
    cache_per_key          whether a request goes on from states of the same key's prompts alone
    request_seconds        from a request's arrival to the end of its answer; None: no limit
    head_seconds           for a request's head to arrive
    body_seconds           for its body
    stream_outputs         of the engine that may wait for a client to read; beyond, it is cut off
    stall_seconds          that a client may take to read what was sent; beyond, it is cut off
    """

    max_body_bytes: int = 16 << 20
    max_prompt_tokens: int = 262144
    max_new_tokens: int = 32768
    max_choices: int = 128
    max_requests_per_key: int | None = None
    cache_per_key: bool = False
    request_seconds: float | None = None
    head_seconds: float = 30.0
    body_seconds: float = 30.0
    stream_outputs: int = 4096
    stall_seconds: float = 60.0


class Door:
    """Counts the requests that are being answered, and lets no more in than may be."""

    def __init__(self, max_per_key: int | None) -> None:
        self._max_per_key = max_per_key
        self._of_key: Counter[str] = Counter()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def inside(self) -> int:
        return self._of_key.total()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Lets nobody in any more. Those inside go on."""
        self._closed = True

    async def until_empty(self) -> None:
        await self._empty.wait()

    def enter(self, key: str) -> Callable[[], None]:
        """Lets a request in, or raises. Returns what to call, once, when it has been answered."""
        if self._closed:
            raise ApiError(
                503, "the server is shutting down", code="draining", retry_after=5, headers={"Connection": "close"}
            )
        if self._max_per_key is not None and self._of_key[key] >= self._max_per_key:
            text = f"expected at most {self._max_per_key} requests of an API key at a time"
            raise ApiError(429, text, code="too_many_requests", retry_after=1)
        self._of_key[key] += 1
        self._empty.clear()

        def leave() -> None:
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]
            if not self._of_key:
                self._empty.set()

        return leave
