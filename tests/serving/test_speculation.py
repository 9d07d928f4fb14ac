# SPDX-License-Identifier: Apache-2.0
"""Guesses of tokens: the same answer with and without, whatever ends, moves or breaks it; and what they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.serving import Answers, ask, engine_of, paused, prompt_of, serving_model
from xlstm_hip.models import xLSTMLarge
from xlstm_hip.serving import Output, Request, SamplingParams
from xlstm_hip.serving.speculation import NgramDraft

SPECULATES = {"speculation_tokens": 5}


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    """In float64, where a check's rounding decides nothing. It repeats itself: its head likes few tokens."""
    model = serving_model(torch.float64)
    with torch.no_grad():
        model.lm_head.weight[40:] *= 0.1
        model.lm_head.weight[:40] *= 2
    return model


REPEATS = [11, 12, 13, 14, 15, 16] * 6
UNLIKE: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0.6, "seed": 1},
    {"temperature": 0.4, "seed": 2, "top_k": 5, "logprobs": 2},
    {"temperature": 0.7, "seed": 3, "top_p": 0.8, "presence_penalty": 0.1},
]


def requests(**more: Any) -> list[Request]:
    return [
        Request(
            str(n), REPEATS + prompt_of(n, n) + REPEATS[: 7 + n], SamplingParams(60, ignore_eos=True, **params, **more)
        )
        for n, params in enumerate(UNLIKE)
    ]


def test_the_same_answers(model: xLSTMLarge) -> None:
    """Greedy and drawn: a token at a place is the same whether it was guessed or not, so all texts are as likely."""
    with engine_of(model) as engine:
        want = ask(engine, *requests())
    for changes in ({}, {"speculation_tokens": 1}, {"speculation_rows": 1}, {"slots": 1}):
        with engine_of(model, **SPECULATES | changes) as engine:
            answers = ask(engine, *requests())
            metrics = engine.metrics()
        for id in map(str, range(len(UNLIKE))):
            assert answers.tokens(id) == want.tokens(id) and answers.text(id) == want.text(id)
            for one, other in zip(answers.logprobs(id), want.logprobs(id), strict=True):
                assert abs(one.logprob - other.logprob) < 1e-9
        assert 0 < metrics.tokens_guessed_right < metrics.tokens_guessed
        assert metrics.tokens_generated == 60 * len(UNLIKE) and metrics.slots_used == 0


def test_fewer_calls_where_a_text_repeats_itself(model: xLSTMLarge) -> None:
    """A request that must repeat: each call gives six tokens."""
    params = SamplingParams(60, temperature=0, ignore_eos=True, logit_bias={11: 1000.0})
    steps = []
    for changes in ({}, SPECULATES):
        with engine_of(model, **changes) as engine:
            assert ask(engine, Request("a", [11] * 8, params)).tokens("a") == [11] * 60
        steps.append(engine.metrics().steps)
    assert steps == [60, 11]


def test_drawn_tokens_have_their_shares(model: xLSTMLarge) -> None:
    """Many short answers of few tokens, with guesses and without: the same, seed by seed, so the same shares."""
    bias = {token: 12.0 for token in REPEATS}
    params = [SamplingParams(8, temperature=1.5, seed=n, ignore_eos=True, logit_bias=bias) for n in range(100)]
    many = [Request(str(n), REPEATS, one) for n, one in enumerate(params)]
    counts = []
    for changes in ({}, SPECULATES):
        with engine_of(model, speculation_rows=4, **changes) as engine:
            answers = ask(engine, *many)
            counts.append([tuple(answers.tokens(request.id)) for request in many])
            metrics = engine.metrics()
    assert counts[0] == counts[1] and len(set(counts[0])) > 60
    assert 20 < metrics.tokens_guessed_right < metrics.tokens_guessed / 2


@pytest.mark.parametrize("params", [{"stop_token_ids": True}, {"stop": True}, {"max_tokens": 7}], ids=str)
def test_ends_within_a_guess(model: xLSTMLarge, params: dict[str, Any]) -> None:
    free_params = SamplingParams(60, temperature=0, ignore_eos=True)
    with engine_of(model) as plain, engine_of(model, **SPECULATES) as engine:
        free = ask(plain, Request("a", REPEATS, free_params)).tokens("a")
        for at in range(1, 30, 6):
            given = dict(params)
            if "stop_token_ids" in params:
                given["stop_token_ids"] = (free[at],)
            if "stop" in params:
                given["stop"] = (bytes(free[at : at + 2]).decode("latin1"),)
            request = Request("a", REPEATS, SamplingParams(**{"max_tokens": 40, "temperature": 0, **given}))
            want, answers = ask(plain, request), ask(engine, request)
            assert answers.tokens("a") == want.tokens("a") and answers.text("a") == want.text("a")
            # The state that was kept at its end is that of the answer: another turn has the same tokens.
            text = REPEATS + want.tokens("a") + prompt_of(4, at)
            turns = [ask(one, Request("b", text, free_params)) for one in (plain, engine)]
            assert turns[0].tokens("b") == turns[1].tokens("b")
            cached = [turn.outputs["b"][-1].cached_tokens for turn in turns]
            assert cached[0] == cached[1] >= len(text) - 5


def test_sessions_preemption_and_lack_of_memory(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    low = Request("low", REPEATS, SamplingParams(100, temperature=0.6, seed=4, ignore_eos=True), session="s")
    high = Request("high", prompt_of(20, 1), SamplingParams(5, temperature=0, ignore_eos=True), priority=5)
    with engine_of(model, slots=1) as engine:
        want = ask(engine, low).tokens("low")
        turn = Request("turn", [*REPEATS, *want, 5, 6], SamplingParams(20, temperature=0), session="s")
        want_turn = ask(engine, turn).tokens("turn")
    hidden, count = xLSTMLarge.hidden, [0]

    def failing(self: xLSTMLarge, x: torch.Tensor, state: Any = None, *rest: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] in (15, 31):
            state[0][0].fill_(float("nan"))
            raise torch.OutOfMemoryError("planted")
        return hidden(self, x, state, *rest, **named)

    with engine_of(model, slots=1, **SPECULATES) as engine:
        monkeypatch.setattr(xLSTMLarge, "hidden", failing)
        answers = Answers()

        def on_output(output: Output) -> None:
            answers(output)
            if output.new_tokens == 20:
                engine.submit(high, answers)

        engine.submit(low, on_output)
        answers.wait("low")
        answers.wait("high")
        assert answers.tokens("low") == want and engine.metrics().preemptions == 1
        answers = ask(engine, turn)
        assert answers.tokens("turn") == want_turn
        assert answers.outputs["turn"][-1].cached_tokens == len(REPEATS) + 99
        assert engine.metrics().out_of_memory > 0 and engine.metrics().slots_used == 0


def test_many_rows_do_without(model: xLSTMLarge) -> None:
    same = [Request(str(n), REPEATS, SamplingParams(20, temperature=0, ignore_eos=True)) for n in range(4)]
    with engine_of(model, speculation_rows=2, **SPECULATES) as engine:
        answers = Answers()
        with paused(engine):
            for request in same:
                engine.submit(request, answers)
        answers.wait(*(request.id for request in same))
        assert engine.metrics().tokens_guessed == 0


# ---- guesses


def test_a_guess_is_how_the_text_went_on() -> None:
    draft = NgramDraft([1, 2, 3, 4, 5, 1, 2, 3])
    assert draft.guess(3) == [4, 5, 1] and draft.guess(7) == [4, 5, 1, 2, 3, 4, 5]
    draft.add(9)
    assert draft.guess(3) == []
    for token in (2, 3):
        draft.add(token)
    assert draft.guess(2) == [9, 2]  # the last time, not the first
    for token in (1, 2, 3):
        draft.add(token)
    assert draft.guess(1) == [9]
    other = NgramDraft([7, 1, 2, 3, 8, 0, 1, 2, 3, 9, 7, 1, 2, 3])
    assert other.guess(1) == [8]  # four tokens say more than three
    assert NgramDraft([1]).guess(3) == NgramDraft([]).guess(3) == [] and NgramDraft([1, 1, 1]).guess(3) == [1, 1, 1]


def test_wrong_guesses_pause() -> None:
    draft = NgramDraft([1, 2, 3] * 5)

    def pause() -> int:
        return next(n for n in range(100) if draft.guess(1))

    pauses = []
    for _ in range(9):
        draft.checked(0)
        pauses.append(pause())
    assert pauses == [1, 3, 7, 15, 31, 63, 64, 64, 64]
    draft.checked(2)
    assert pause() == 0
