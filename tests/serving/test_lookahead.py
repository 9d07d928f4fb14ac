# SPDX-License-Identifier: Apache-2.0
"""A step is launched before the last one's tokens are handled. Answers with lookahead are those without: the modules
that use the fixture `lookahead` run twice. Here: that it looks ahead, where it must not, and what an end leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.serving import EOS, Answers, ask, engine_of, prompt_of, serving_model
from xlstm_hip.models import xLSTMLarge
from xlstm_hip.serving import Engine, EngineConfig, Output, Request, SamplingParams

CHUNK = 16
PARAMS = SamplingParams(12, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return serving_model()


def steps_at_each_output(
    model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch, request: Request, **changes: Any
) -> list[int]:
    """How many decode steps had been called when each output came."""
    calls, seen, original = [0], [], xLSTMLarge.step

    def counted(*arguments: Any) -> Tensor:
        calls[0] += 1
        return original(*arguments)

    class Seeing(Answers):
        def __call__(self, output: Output) -> None:
            seen.append(calls[0])
            super().__call__(output)

    with monkeypatch.context() as patch, engine_of(model, **changes) as engine:
        patch.setattr(xLSTMLarge, "step", counted)
        answers = Seeing()
        engine.submit(request, answers)
        answers.wait(request.id)
    return seen


def test_a_step_is_called_before_the_last_ones_token_is_delivered(
    model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("a", prompt_of(5), PARAMS)
    assert steps_at_each_output(model, monkeypatch, request, lookahead=False) == list(range(12))
    # The last token is known to be the last: no step is wasted on it.
    assert steps_at_each_output(model, monkeypatch, request, lookahead=True) == [*range(1, 12), 11]


@pytest.mark.parametrize("changes", [{"speculation_tokens": 2}, {}], ids=["guesses", "session"])
def test_where_a_step_waits(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """Guesses need the text; a session's state is to have read all but the last token."""
    session = None if changes else "s"
    request = Request("a", prompt_of(5), PARAMS, session=session)
    seen = steps_at_each_output(model, monkeypatch, request, lookahead=True, **changes)
    assert seen == steps_at_each_output(model, monkeypatch, request, lookahead=False, **changes)


def test_a_cpu_does_not_look_ahead(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = steps_at_each_output(model, monkeypatch, Request("a", prompt_of(5), PARAMS), lookahead=None)
    assert seen == list(range(12))


def ends_with_eos(**more: Any) -> SamplingParams:
    """Two tokens, and the end token, which is certain from then on."""
    return SamplingParams(50, temperature=0, logit_bias={EOS: 1000.0}, **more)


@pytest.mark.parametrize("lookahead", [False, True])
def test_the_state_at_an_end_token(lookahead: bool) -> None:
    """With lookahead it has read that, too. A text that goes on with it or without has the right answer."""
    model = serving_model(torch.float64)
    prompt = prompt_of(2 * CHUNK)
    with engine_of(model, lookahead=lookahead) as engine, engine_of(model, prefix_cache_bytes=0) as plain:
        ask(engine, Request("a", prompt, ends_with_eos()))
        after = [*prompt, EOS]
        for text, cached in (([*after, 7, 8], 33 if lookahead else 32), ([*after, 9], 33 if lookahead else 32)):
            answers = ask(engine, Request("b", text, PARAMS))
            assert answers.outputs["b"][-1].cached_tokens == cached
            assert answers.tokens("b") == ask(plain, Request("b", text, PARAMS)).tokens("b")
        without = ask(engine, Request("c", [*prompt, 9], PARAMS))
        assert without.outputs["c"][-1].cached_tokens == 32
        assert without.tokens("c") == ask(plain, Request("c", [*prompt, 9], PARAMS)).tokens("c")


def test_a_row_without_a_token_ends_alone(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in one row at its third step: the next step is on its way, and reads token 0 there."""
    original, calls = xLSTMLarge.step, [0]

    def step(self: xLSTMLarge, tokens: Tensor, *more: Any) -> Tensor:
        assert int(tokens.min()) >= 0
        logits = original(self, tokens, *more)
        calls[0] += 1
        if calls[0] == 3:
            logits[0] = torch.nan
        return logits

    requests = [Request(str(n), prompt_of(5, n), PARAMS) for n in range(3)]
    with engine_of(model, lookahead=True) as engine:
        want = ask(engine, *requests)
        monkeypatch.setattr(xLSTMLarge, "step", step)
        answers = ask(engine, *requests)
        assert engine.healthy and engine.metrics().slots_used == 0
    reasons = sorted(answers.outputs[str(n)][-1].finish_reason or "" for n in range(3))
    assert reasons == ["error", "length", "length"]
    for n in range(3):
        if answers.outputs[str(n)][-1].finish_reason == "length":
            assert answers.tokens(str(n)) == want.tokens(str(n))
        else:
            assert "expected numbers to draw a token from" in str(answers.outputs[str(n)][-1].error)


@pytest.mark.parametrize("name", ["lookahead", "warm_up"])
def test_bad_values(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected "):
        EngineConfig(**{name: "yes"})  # type: ignore[arg-type]


def test_warm_up_leaves_the_slots_empty(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: all numbers of rows, twice each, with masked rows alone; and a chunk, twice. A failure is told."""
    calls: list[tuple[int, bool]] = []
    original = xLSTMLarge.step

    def step(self: xLSTMLarge, tokens: Tensor, state: Any, mask: Tensor | None = None, then: Any = None) -> Tensor:
        calls.append((len(tokens), mask is not None and not mask.any()))
        return original(self, tokens, state, mask, then)

    engine = engine_of(model, slots=12)
    stepper = engine._stepper
    stepper.warm_up()  # nothing, on a CPU
    monkeypatch.setattr(xLSTMLarge, "step", step)
    assert not calls
    stepper.slots._graphs = True
    stepper.warm_up()
    assert calls == [(rows, True) for rows in (1, 2, 4, 8, 12) for _ in range(2)]
    assert stepper.slots.used == 0
    stepper.slots._graphs = False
    want = ask(engine_of(model).start(), Request("a", prompt_of(40), PARAMS)).tokens("a")
    with engine:
        assert ask(engine, Request("a", prompt_of(40), PARAMS)).tokens("a") == want


def test_out_of_memory_in_a_warm_up_costs_only_the_graphs(
    model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = xLSTMLarge.step

    def failing(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("planted")

    engine: Engine = engine_of(model)
    engine._stepper.slots._graphs = True
    monkeypatch.setattr(xLSTMLarge, "step", failing)
    engine._stepper.warm_up()
    assert "out of memory while graphs were captured ahead" in caplog.text
    monkeypatch.setattr(xLSTMLarge, "step", original)
    engine._stepper.slots._graphs = False
    with engine:
        assert len(ask(engine, Request("a", prompt_of(40), PARAMS)).tokens("a")) == 12
