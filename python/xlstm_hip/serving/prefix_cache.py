# SPDX-License-Identifier: Apache-2.0
"""Kept states of prompts and answers, found by their tokens, so that a beginning that many share is read once.

An entry lies under the hash of its tokens. The hash up to a multiple of the chunk size is of the chunk and of the hash
before it, so those of a prompt take one pass over it; an entry that ends between multiples (at a prompt's or an
answer's end) is noted under the multiple before its end. Hashes only find entries: all tokens are compared.

The entries used last stay within a number of bytes. One request has a limited number of states at chunk boundaries:
beyond it every second one is dropped, so that a long prompt does not push out all others.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np

from .slots import KeptState


def as_array(tokens: Sequence[int]) -> np.ndarray:
    return np.asarray(tokens, dtype=np.int32)


class HashedTokens:
    """Tokens, and the hash of those up to each multiple of the chunk size. Other salts have other hashes."""

    def __init__(self, tokens: np.ndarray, chunk: int, salt: str = "") -> None:
        self.tokens, self.chunk = tokens, chunk
        self.hashes = [_digest(salt.encode()) if salt else b""]
        for end in range(chunk, len(tokens) + 1, chunk):
            self.hashes.append(_chained(self.hashes[-1], tokens[end - chunk : end]))

    def __len__(self) -> int:
        return len(self.tokens)

    def boundary(self, length: int) -> bytes:
        """The hash up to the last multiple within the first `length` tokens."""
        return self.hashes[length // self.chunk]

    def hash_of(self, length: int) -> bytes:
        """The hash of the first `length` tokens."""
        begin = length // self.chunk * self.chunk
        return self.boundary(length) if begin == length else _chained(self.boundary(length), self.tokens[begin:length])

    def begins_with(self, tokens: np.ndarray) -> bool:
        return len(tokens) <= len(self.tokens) and np.array_equal(self.tokens[: len(tokens)], tokens)


def _chained(before: bytes, tokens: np.ndarray) -> bytes:
    return _digest(before + tokens.tobytes())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class PrefixCache:
    """States of up to `limit` bytes, which is lower for a while where memory ran out. 0: nothing is kept."""

    def __init__(self, limit: int, chunk: int) -> None:
        self.limit, self._most, self._chunk = limit, limit, chunk
        self._entries: OrderedDict[bytes, KeptState] = (
            OrderedDict()
        )  # by the hash of their tokens; used last: at the end
        self._boundaries: dict[bytes, bytes] = {}  # by the same: the hash at the boundary before their end
        self._lengths: dict[bytes, Counter[int]] = {}  # by that: of how many tokens entries are, and how many are
        self._used: set[bytes] = set()  # those that something has gone on from
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, text: HashedTokens, above: int, most: int) -> KeptState | None:
        """The entry with the longest beginning of the text: of more than `above` tokens and at most `most`."""
        for boundary in range(min(most // self._chunk, len(text.hashes) - 1), above // self._chunk - 1, -1):
            for length in sorted(self._lengths.get(text.hashes[boundary], ()), reverse=True):
                entry = self._entry(text, length) if above < length <= most else None
                if entry is not None:
                    hash_ = text.hash_of(length)
                    self._entries.move_to_end(hash_)
                    self._used.add(hash_)
                    return entry
        return None

    def has(self, text: HashedTokens, length: int) -> bool:
        return self._entry(text, length) is not None

    def takes(self, nbytes: int) -> bool:
        """Whether an entry of so many bytes may be kept at all."""
        return nbytes <= self.limit

    def keep(self, text: HashedTokens, entry: KeptState) -> None:
        """Adds a state that has read the first tokens of a text; those unused for longest make room."""
        length = len(entry.tokens)
        hash_ = text.hash_of(length)
        if not self.takes(entry.nbytes) or hash_ in self._entries:
            return
        while self.nbytes + entry.nbytes > self.limit:
            self._remove(next(iter(self._entries)))
        self._entries[hash_] = entry
        self._lengths.setdefault(text.boundary(length), Counter())[length] += 1
        self._boundaries[hash_] = text.boundary(length)
        self.nbytes += entry.nbytes

    def drop_unused(self, text: HashedTokens, length: int) -> None:
        hash_ = text.hash_of(length)
        if self.has(text, length) and hash_ not in self._used:
            self._remove(hash_)

    def raise_limit(self, nbytes: int) -> None:
        """By so much, up to what it was at first."""
        self.limit = min(self.limit + nbytes, self._most)

    def halve(self) -> None:
        """Drops half of what is kept, and keeps no more than that, until raise_limit."""
        self.limit = self.nbytes // 2
        while self.nbytes > self.limit:
            self._remove(next(iter(self._entries)))

    def clear(self) -> None:
        while self._entries:
            self._remove(next(iter(self._entries)))

    def _entry(self, text: HashedTokens, length: int) -> KeptState | None:
        entry = self._entries.get(text.hash_of(length))
        return entry if entry is not None and text.begins_with(entry.tokens) else None

    def _remove(self, hash_: bytes) -> None:
        entry = self._entries.pop(hash_)
        self._used.discard(hash_)
        self.nbytes -= entry.nbytes
        boundary, length = self._boundaries.pop(hash_), len(entry.tokens)
        lengths = self._lengths[boundary]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._lengths[boundary]


class KeptBoundaries:
    """The chunk boundaries of which one request put states into the cache: evenly spaced, and the last one. Those that
    another request went on from stay.
    """

    def __init__(self, cache: PrefixCache, text: HashedTokens, most: int) -> None:
        self._cache, self._text, self._most = cache, text, most
        self._spacing = 1
        self._kept: list[int] = []

    def kept(self, length: int) -> None:
        """A state at this boundary was kept; drops what is too much."""
        chunk = self._text.chunk
        if self._kept and self._kept[-1] // chunk % self._spacing:
            self._cache.drop_unused(self._text, self._kept.pop())
        self._kept.append(length)
        while len(self._kept) > self._most:
            self._spacing *= 2
            for old in [old for old in self._kept[:-1] if old // chunk % self._spacing]:
                self._kept.remove(old)
                self._cache.drop_unused(self._text, old)
