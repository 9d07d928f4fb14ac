# SPDX-License-Identifier: Apache-2.0
"""Guesses of how a text goes on, for the model to check several tokens in one call: as it did where its last tokens
came before. No second model: prompts that are quoted, code and lists repeat themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (4, 3, 2)  # of the last tokens that are looked up, in this order
WINDOW = 8192  # tokens of a prompt that are looked at: its last ones
MOST_PAUSE = 64  # tokens without a guess, after guesses that were wrong


class NgramDraft:
    """Follows one text."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where the text went on after these tokens, the last time
        self._pause = self._waits = 0
        for token in prompt[-WINDOW:]:
            self.add(token)

    def add(self, token: int) -> None:
        end = len(self._tokens)
        for length in LENGTHS:
            if end >= length:
                self._after[tuple(self._tokens[end - length :])] = end
        self._tokens.append(token)

    def guess(self, most: int) -> list[int]:
        """Up to so many tokens that may come next; none if the text's last tokens are new, or guesses were wrong."""
        if self._waits:
            self._waits -= 1
            return []
        for length in LENGTHS:
            begin = self._after.get(tuple(self._tokens[-length:])) if len(self._tokens) >= length else None
            if begin is not None:
                period = len(self._tokens) - begin
                return [self._tokens[begin + n % period] for n in range(most)]  # at the text's end from there again
        return []

    def checked(self, right: int) -> None:
        """So many tokens of the last guess came. After none, guesses pause, for twice as long each time."""
        self._pause = 0 if right else min(2 * self._pause + 1, MOST_PAUSE)
        self._waits = self._pause
