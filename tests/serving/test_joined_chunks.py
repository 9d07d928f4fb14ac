# SPDX-License-Identifier: Apache-2.0
"""A chunk of a prompt in the same call as the rows that decode: the answers of calls apart, in float64, where another
order of sums decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from support.serving import (
    Answers,
    all_of,
    ask,
    engine_of,
    out_of_memory_at,
    paused,
    prompt_of,
    serving_model,
    unlike_requests,
)
from xlstm_hip.models import xLSTMLarge
from xlstm_hip.serving import Engine, EngineConfig, Request, SamplingParams

CHUNK = 16
LONG = SamplingParams(60, seed=3, ignore_eos=True)
pytestmark = pytest.mark.usefixtures("lookahead")


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return serving_model(torch.float64)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of step_and_read: the rows and the tokens of each."""
    seen: list[tuple[int, int]] = []
    original = xLSTMLarge.step_and_read

    def counted(self: xLSTMLarge, tokens: Any, state: Any, mask: Any, x: Any, *more: Any) -> Any:
        seen.append((len(tokens), x.shape[1]))
        return original(self, tokens, state, mask, x, *more)

    monkeypatch.setattr(xLSTMLarge, "step_and_read", counted)
    return seen


@pytest.fixture
def joining(model: xLSTMLarge) -> Iterator[Engine]:
    with engine_of(model, join_chunks=True) as engine:
        yield engine


def test_the_same_answers(model: xLSTMLarge, joining: Engine, calls: list[tuple[int, int]]) -> None:
    """Whole chunks alone, one in a step; prompts are read as far as without."""
    requests = unlike_requests(logprobs=1)
    with engine_of(model, join_chunks=False) as engine:
        want = ask(engine, *requests)
        assert not calls
        read = engine.metrics().tokens_prefilled
    answers = ask(joining, *requests)
    assert calls and all(tokens == CHUNK for _, tokens in calls)
    assert joining.metrics().tokens_prefilled == read and joining.metrics().slots_used == 0
    for id in all_of(requests):
        assert answers.tokens(id) == want.tokens(id) and answers.text(id) == want.text(id)
        for one, other in zip(answers.logprobs(id), want.logprobs(id), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-9)


def test_padded_ends_of_prompts(model: xLSTMLarge, joining: Engine, calls: list[tuple[int, int]]) -> None:
    """As on a GPU: they join, too, as chunks of two lengths, and no token counts twice."""
    requests = unlike_requests()
    with engine_of(model) as engine:
        want = ask(engine, *requests)
        read = engine.metrics().tokens_prefilled
    joining._stepper._pads, joining._stepper._graph_lengths = True, [CHUNK // 4, CHUNK]
    answers = ask(joining, *requests)
    assert {length for _, length in calls} == {CHUNK // 4, CHUNK}
    assert all(answers.tokens(id) == want.tokens(id) for id in all_of(requests))
    assert joining.metrics().tokens_prefilled == read


def test_a_long_prompt_beside_a_long_answer(joining: Engine, calls: list[tuple[int, int]]) -> None:
    """All six whole chunks of a prompt that came later; two in a step by the budget, of which one joins."""
    answers = Answers()
    joining.submit(Request("a", [5], LONG), answers)
    answers.wait_for_tokens("a", 3)
    joining.submit(Request("b", prompt_of(6 * CHUNK + 3), LONG), answers)
    answers.wait("a", "b")
    assert calls == [(1, CHUNK)] * 3 and len(answers.tokens("b")) == 60


def test_many_with_the_same_beginning_read_it_once(model: xLSTMLarge, joining: Engine) -> None:
    requests = [Request(str(n), [*prompt_of(3 * CHUNK), *prompt_of(5, n)], LONG) for n in range(4)]
    with engine_of(model, prefix_cache_bytes=0) as engine:
        want = ask(engine, *requests)
    answers = Answers()
    with paused(joining):
        for request in requests:
            joining.submit(request, answers)
    answers.wait(*all_of(requests))
    assert joining.metrics().tokens_prefilled == 1 + 3 * CHUNK + 4 * 5
    assert all(answers.tokens(id) == want.tokens(id) for id in all_of(requests))


@pytest.mark.parametrize("failing", [{1}, {2, 3}, {5}], ids=str)
def test_out_of_memory_delays_and_ends_nothing(
    model: xLSTMLarge, joining: Engine, monkeypatch: pytest.MonkeyPatch, failing: set[int]
) -> None:
    """The states of rows and of the prompt are spoilt: all are read again."""
    requests = unlike_requests()
    with engine_of(model) as engine:
        want = ask(engine, *requests)
    count = out_of_memory_at(monkeypatch, "step_and_read", failing)
    answers = ask(joining, *requests)
    more = 0
    while count[0] < max(failing):  # fewer slots, fewer calls of both
        more += 1
        joining._stepper.scheduler.slots, joining._stepper.cache.limit = 4, 0
        answers = ask(joining, *requests)
        assert more < 10
    for id in all_of(requests):
        assert answers.tokens(id) == want.tokens(id)
    assert joining.metrics().out_of_memory == len(failing) and joining.healthy


def test_who_reads_beside_may_be_cancelled(joining: Engine) -> None:
    answers = Answers()
    joining.submit(Request("a", [5], LONG), answers)
    answers.wait_for_tokens("a", 2)
    for n in range(5):
        joining.submit(Request(f"b{n}", prompt_of(20 * CHUNK, n), LONG), answers)
        joining.cancel(f"b{n}")
    answers.wait("a", *(f"b{n}" for n in range(5)))
    assert joining.metrics().slots_used == 0 and joining.healthy and len(answers.tokens("a")) == 60


@pytest.mark.parametrize("other", [{"fixed_rows": True}, {"speculation_tokens": 2}], ids=str)
def test_what_it_does_not_go_with(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="join_chunks: expected False or None with fixed_rows or speculation_tokens"):
        EngineConfig(join_chunks=True, **other)
    with pytest.raises(ValueError, match="join_chunks: expected"):
        EngineConfig(join_chunks="yes")  # type: ignore[arg-type]
