# SPDX-License-Identifier: Apache-2.0
"""What requests leave behind in native code: nothing, once caches are full."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.memory import native_bytes
from support.serving import Answers, engine_of, prompt_of, serving_model
from xlstm_hip.models import load_tokenizer
from xlstm_hip.serving import Request, SamplingParams, Structure

LETTERS = "abcdefghij"
WORD = 255  # bytes: of longer ones the tokenizers package keeps nothing


def test_a_tokenizer_does_not_keep_what_it_reads(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {letter: n for n, letter in enumerate(LETTERS)}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[])).save(str(tmp_path / "tokenizer.json"))
    tokenizer, random = load_tokenizer(tmp_path, len(LETTERS)), Random(1)

    def growth(words: int) -> int:
        before = native_bytes()
        for _ in range(words):
            tokenizer.encode("".join(random.choices(LETTERS, k=WORD)))
        return native_bytes() - before

    growth(100)
    assert min(growth(500) for _ in range(3)) < 500 * WORD // 2


def test_the_engine_holds_no_native_memory_of_requests_that_are_over() -> None:
    pytest.importorskip("xgrammar")
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 1, "top_k": 5, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
        {"logprobs": 3, "stop": ("ab", "xyz")},
        {"structure": Structure("regex", "[a-z]{3,9}")},
    ]
    answers = Answers()
    with engine_of(serving_model(), prefix_cache_bytes=0, swap_bytes=0, max_waiting=1000) as engine:

        def run(count: int) -> None:
            for n in range(count):
                params = SamplingParams(1 + n % 5, ignore_eos=True, **kinds[n % len(kinds)])
                engine.submit(Request(f"{n}", prompt_of(1 + n % 40, n), params), answers)
                if n % 7 == 0:
                    engine.cancel(f"{n}")
            answers.wait(*(f"{n}" for n in range(count)), seconds=60)
            answers.outputs.clear()

        def growth(count: int) -> int:
            before = native_bytes()
            run(count)
            return native_bytes() - before

        run(50)
        # What leaks does so each time. Other threads of this process may take memory once.
        assert min(growth(50) for _ in range(3)) < 50 * 500
