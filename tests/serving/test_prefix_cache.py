# SPDX-License-Identifier: Apache-2.0
"""Kept states by their tokens: the longest beginning, no other tokens under the same hash, the budget, long prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlstm_hip.serving import prefix_cache
from xlstm_hip.serving.prefix_cache import HashedTokens, KeptBoundaries, PrefixCache, as_array
from xlstm_hip.serving.slots import KeptState

CHUNK = 4


def text(*tokens: int) -> HashedTokens:
    return HashedTokens(as_array(tokens), CHUNK)


def entry(tokens: np.ndarray, floats: int = 8) -> KeptState:
    x = torch.zeros(floats)
    return KeptState(tokens, {0: (x, x[:0], x[:0])}, x[:0])


def keep(cache: PrefixCache, of: HashedTokens, length: int) -> None:
    cache.keep(of, entry(of.tokens[:length]))


def test_the_longest_beginning() -> None:
    cache, long = PrefixCache(10_000, CHUNK), text(*range(20))
    for length in (4, 8, 10, 11, 20):
        keep(cache, long, length)
    assert len(cache) == 5

    def found(of: HashedTokens, above: int = 0, most: int = 99) -> int | None:
        kept = cache.longest(of, above, most)
        return None if kept is None else len(kept.tokens)

    assert found(long) == 20
    assert found(long, most=19) == 11 and found(long, most=10) == 10 and found(long, most=9) == 8
    assert found(long, above=11, most=19) is None and found(long, above=10, most=19) == 11
    assert found(text(*range(11), 99, 98)) == 11
    assert found(text(*range(10), 99, 98)) == 10
    assert found(text(*range(9), 99, 98)) == 8
    assert found(text(*range(7), 99, 98)) == 4
    assert found(text(0, 1, 2)) is None and found(text(9, 1, 2, 3, 4)) is None


def test_a_hash_alone_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All hashes collide: the tokens are compared."""
    monkeypatch.setattr(prefix_cache, "_chained", lambda before, tokens: b"same")
    cache = PrefixCache(10_000, CHUNK)
    a, b = text(1, 2, 3, 4, 5), text(1, 2, 3, 9, 5)
    for of in (a, b):
        keep(cache, of, 5), keep(cache, of, 4)
    kept = cache.longest(a, 0, 5)
    assert kept is not None and np.array_equal(kept.tokens, a.tokens)
    assert cache.longest(b, 0, 5) is None
    cache.drop_unused(b, 5)
    assert cache.has(a, 5)


def test_the_used_last_stay_within_the_bytes() -> None:
    one = entry(as_array([1])).nbytes
    cache = PrefixCache(3 * one, CHUNK)
    texts = [text(n) for n in range(5)]
    for of in texts[:3]:
        keep(cache, of, 1)
    assert cache.longest(texts[0], 0, 1) is not None
    keep(cache, texts[3], 1)
    assert [cache.has(of, 1) for of in texts] == [True, False, True, True, False] and cache.nbytes == 3 * one
    cache.keep(texts[4], entry(as_array([4]), floats=1000))  # more than there is room for
    assert len(cache) == 3
    off = PrefixCache(0, CHUNK)
    keep(off, texts[0], 1)
    assert len(off) == 0


def test_a_long_prompt_keeps_a_few_evenly_spaced_states() -> None:
    cache, long = PrefixCache(10**9, CHUNK), text(*range(400))
    kept, first = KeptBoundaries(cache, long, most=8), text(*range(400))
    for length in range(4, 401, 4):
        keep(cache, long, length)
        kept.kept(length)
        assert len(cache) <= 9
        if length == 8:
            assert cache.longest(first, 4, 8) is not None  # another request goes on from it
    lengths = [n for n in range(4, 401, 4) if cache.has(long, n)]
    assert lengths == [8, 64, 128, 192, 256, 320, 384, 400]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=14), st.booleans()), max_size=40))
def test_any_course(steps: list[tuple[list[int], bool]]) -> None:
    """Beside a list of all that was kept, with room for all; and with less room never above it."""
    all_of_it, little = PrefixCache(10**9, CHUNK), PrefixCache(300, CHUNK)
    kept: list[list[int]] = []
    for tokens, is_kept in steps:
        of = text(*tokens)
        if is_kept:
            keep(all_of_it, of, len(tokens)), keep(little, of, len(tokens))
            kept.append(tokens)
        best = max((len(k) for k in kept if k == tokens[: len(k)]), default=None)
        found = all_of_it.longest(of, 0, len(tokens))
        assert (None if found is None else len(found.tokens)) == best
        assert little.nbytes <= 300 and little.nbytes == sum(e.nbytes for e in little._entries.values())
