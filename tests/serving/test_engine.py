# SPDX-License-Identifier: Apache-2.0
"""The engine's answers: those of generate, alone and in company, whatever ends them, and whose fault is whose."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
from typing import Any

import pytest
import torch

from support.serving import (
    EOS,
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
from xlstm_hip.models import generate, generate_text, load_pretrained, load_tokenizer, xLSTMLarge
from xlstm_hip.serving import (
    Engine,
    EngineClosed,
    EngineConfig,
    EngineFailed,
    Output,
    QueueFull,
    Request,
    SamplingParams,
    Structure,
)
from xlstm_hip.serving.sampler import Choice

pytestmark = pytest.mark.usefixtures("lookahead")
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return serving_model()


@pytest.fixture(scope="module")
def demo() -> Any:
    return load_pretrained("models/demo", weight_mode="fused")


# ---- the same answer


@pytest.mark.parametrize("changes", [{}, {"fixed_rows": True}, {"slots": 16}, {"prefix_cache_bytes": 0}], ids=str)
def test_the_same_bits_alone_and_in_company(model: xLSTMLarge, changes: dict[str, Any]) -> None:
    """Tokens and log-probabilities, which are the logits' bits: eight unlike requests on four slots, and each alone."""
    requests = unlike_requests(logprobs=3)
    with engine_of(model, **changes) as engine:
        together = ask(engine, *requests)
    with engine_of(model, prefix_cache_bytes=0) as engine:
        for request in requests:
            alone = ask(engine, request)
            assert alone.logprobs(request.id) == together.logprobs(request.id)
            assert len(alone.tokens(request.id)) == request.params.max_tokens
        assert engine.metrics().slots_used == 0


def test_the_tokens_of_generate() -> None:
    """In float64, where the rounding of another order of sums decides nothing."""
    model = serving_model(torch.float64)
    requests = [r for r in unlike_requests() if not (r.params.logit_bias or r.params.presence_penalty)]
    with engine_of(model) as engine:
        answers = ask(engine, *requests)
    for request in requests:
        params = request.params
        want = generate(
            model, [list(request.tokens)], params.max_tokens, bos=None, eos=(), seed=params.seed or 0,
            temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
        )  # fmt: skip
        assert answers.tokens(request.id) == want.tokens[0].tolist()


@pytest.mark.parametrize("changes", [{}, {"speculation_tokens": 3}], ids=str)
def test_an_answer_goes_on_elsewhere(changes: dict[str, Any]) -> None:
    """After its first token, half of them and all but one: the same tokens, whatever they depend on."""
    model = serving_model(torch.float64)
    requests = [request for request in unlike_requests(logprobs=1) if request.params.max_tokens > 2]
    with engine_of(model, **changes) as engine, engine_of(model, **changes) as other:
        whole = ask(engine, *requests)
        for share in (0.01, 0.5, 1):
            answered = {
                one.id: whole.tokens(one.id)[: 1 + int(share * (one.params.max_tokens - 2))] for one in requests
            }
            rest = ask(other, *(dataclasses.replace(one, answered=answered[one.id]) for one in requests))
            for request in requests:
                id = request.id
                assert answered[id] + rest.tokens(id) == whole.tokens(id)
                assert whole.text(id).endswith(rest.text(id)) and len(rest.logprobs(id)) == len(rest.tokens(id))
                assert rest.outputs[id][-1].new_tokens == len(whole.tokens(id))


def test_text_that_was_held_back_goes_on_elsewhere(model: xLSTMLarge) -> None:
    """In the middle of a character, of what may become a stop string, and of a structure."""
    pytest.importorskip("xgrammar")
    params = SamplingParams(50, structure=Structure("choice", ["aä€ bcd"]), seed=1, stop=("bcx", "cd"))
    with engine_of(model) as engine:
        whole = ask(engine, Request("a", [5], params))
        tokens = whole.tokens("a")
        for count in range(1, len(tokens)):
            rest = ask(engine, Request("a", [5], params, answered=tokens[:count]))
            delivered = "".join(output.text for output in whole.outputs["a"][:count])
            assert delivered + rest.text("a") == whole.text("a") and rest.outputs["a"][-1].stop == "cd"
        with pytest.raises(
            ValueError, match=r"answered: expected tokens that do not end the answer, as token 100 does"
        ):
            engine.submit(Request("a", [5], params, answered=tokens), print)
        with pytest.raises(ValueError, match="answered: expected token ids from 0 to 255, got 256"):
            engine.submit(Request("a", [5], answered=[256]), print)


def test_states_in_bfloat16() -> None:
    model = serving_model()
    with engine_of(model, state_dtype="bfloat16") as engine:
        assert engine._stepper.slots._rows[0][0].dtype == torch.bfloat16
        together = ask(engine, *unlike_requests())
        # The model's layers, whose products of many rows may round otherwise than those of one.
        assert all(together.outputs[id][-1].finish_reason == "length" for id in map(str, range(8)))
    assert model.config.inference_state_dtype == "bfloat16"


@pytest.mark.parametrize("stop", [(), ("e",), ("the", " of"), ("zzz", "\n")], ids=str)
def test_the_text_of_generate_text(demo: Any, stop: tuple[str, ...]) -> None:
    model = demo
    tokenizer = load_tokenizer("models/demo", 256)
    prompts = ["And it came to pass", "The LORD said", "In the beginning"]
    options = {"stop": stop, "logprobs": 2, "temperature": 0.8}
    want = [generate_text(model, tokenizer, [prompt], 60, seed=n, **options)[0] for n, prompt in enumerate(prompts, 3)]
    requests = [
        Request(prompt, [0, *tokenizer.encode(prompt)], SamplingParams(60, 0.8, seed=seed, stop=stop, logprobs=2))
        for seed, prompt in enumerate(prompts, 3)
    ]
    with Engine(model, tokenizer, EngineConfig(slots=2)) as engine:
        answers = ask(engine, *requests)
    for prompt, expected in zip(prompts, want, strict=True):
        last = answers.outputs[prompt][-1]
        assert answers.text(prompt) == expected.text and answers.tokens(prompt) == expected.tokens
        assert (last.finish_reason, last.stop) == (expected.finish_reason, expected.stop)
        assert answers.logprobs(prompt) == expected.logprobs
        assert last.prompt_tokens == len(prompt) + 1 and last.new_tokens == len(expected.tokens)


def test_text_is_certain_when_it_comes(model: xLSTMLarge) -> None:
    """No half characters, and nothing of a stop string; what was held back comes with the end."""
    pytest.importorskip("xgrammar")

    def request(id: str, **params: Any) -> Answers:
        structure = Structure("choice", ["aä€ bcd"])
        with engine_of(model) as engine:
            return ask(engine, Request(id, [5], SamplingParams(structure=structure, seed=1, **params)))

    answers = request("a", max_tokens=50)
    texts = [output.text for output in answers.outputs["a"]]
    assert answers.text("a") == "aä€ bcd" and texts[:7] == ["a", "", "ä", "", "", "€", " "]
    assert answers.outputs["a"][-1].finish_reason == "stop"
    answers = request("b", max_tokens=50, stop=("bcx", "cd"))
    assert [output.text for output in answers.outputs["b"]][6:] == [" ", "", "", "b"]
    assert answers.outputs["b"][-1].stop == "cd"
    answers = request("c", max_tokens=9, stop=("bcx",))
    last = answers.outputs["c"][-1]
    assert answers.text("c") == "aä€ bc" and last.finish_reason == "length" and last.text == "bc"


# ---- what ends an answer


def test_finish_reasons(model: xLSTMLarge) -> None:
    prompt = prompt_of(20)
    with engine_of(model) as engine:
        free = ask(engine, Request("a", prompt, GREEDY)).tokens("a")

        def ends(**params: Any) -> tuple[list[int], str | None]:
            answers = ask(engine, Request("a", prompt, SamplingParams(max_tokens=12, temperature=0, **params)))
            return answers.tokens("a"), answers.outputs["a"][-1].finish_reason

        at = next(n for n in range(1, 12) if free[n] not in free[:n])
        assert ends(stop_token_ids=(free[at],)) == (free[: at + 1], "stop")
        assert ends(logit_bias={EOS: 1000.0}) == ([EOS], "stop")
        assert ends(logit_bias={EOS: 1000.0}, ignore_eos=True) == ([EOS] * 12, "length")
        assert ends(logit_bias={EOS: -1000.0})[1] == "length"


def test_a_cancelled_request_ends_at_the_next_step(model: xLSTMLarge) -> None:
    answers = Answers()
    endless = SamplingParams(max_tokens=10**6, seed=0, ignore_eos=True)
    with engine_of(model, slots=2) as engine:
        for id in ("a", "b", "waits"):
            engine.submit(Request(id, prompt_of(5), endless), answers)
        for id in ("a", "b"):
            answers.wait_for_tokens(id, 5)
        engine.cancel("a")
        engine.cancel("a"), engine.cancel("unknown")
        (last,) = answers.wait("a")
        assert last.finish_reason == "cancelled" and last.new_tokens == len(answers.tokens("a"))
        answers.wait_for_tokens("waits", 3)  # it has the slot
        engine.cancel("b"), engine.cancel("waits")
        answers.wait("b", "waits")
        metrics = engine.metrics()
        assert metrics.slots_used == metrics.running == metrics.waiting == 0
        assert metrics.requests_finished == {"cancelled": 3}


def test_deadlines_of_those_that_run_and_wait(model: xLSTMLarge) -> None:
    answers = Answers()
    endless = SamplingParams(max_tokens=10**6, seed=0, ignore_eos=True)
    with engine_of(model, slots=1) as engine:
        engine.submit(Request("runs", [5], endless, deadline=1.0), answers)
        engine.submit(Request("waits", [5], endless, deadline=0.2), answers)
        began = time.monotonic()
        (last,) = answers.wait("waits")
        assert last.finish_reason == "deadline" and 0.15 < time.monotonic() - began < 0.9 and last.new_tokens == 0
        (last,) = answers.wait("runs")
        assert last.finish_reason == "deadline" and last.new_tokens > 5


def test_priorities(model: xLSTMLarge) -> None:
    answers, order = Answers(), []

    def on_output(output: Output) -> None:
        order.append(output.id)
        answers(output)

    with engine_of(model, slots=1, preemption=False) as engine:
        with paused(engine):
            for id, priority in (("low", 0), ("middle", 1), ("high", 2)):
                engine.submit(Request(id, [5], GREEDY, priority=priority), on_output)
        answers.wait("low", "middle", "high")
    assert list(dict.fromkeys(order)) == ["high", "middle", "low"]


@pytest.mark.parametrize("reading", [False, True], ids=["decodes", "is read"])
def test_a_preempted_request_goes_on_with_the_same_bits(model: xLSTMLarge, reading: bool) -> None:
    low = Request("low", prompt_of(3000 if reading else 20), SamplingParams(30, seed=5, ignore_eos=True, logprobs=1))
    high = Request("high", prompt_of(20, 1), GREEDY, priority=5)
    with engine_of(model, slots=1, prefix_cache_bytes=0, token_budget=16) as engine:
        want = ask(engine, low).logprobs("low")
        answers = Answers()

        def on_output(output: Output) -> None:
            answers(output)
            if not reading and output.new_tokens == 5:
                engine.submit(high, answers)

        steps = engine.metrics().steps
        engine.submit(low, on_output)
        if reading:
            while engine.metrics().steps < steps + 3:
                time.sleep(0.0001)
            engine.submit(high, answers)
        answers.wait("low")
        answers.wait("high")
        metrics = engine.metrics()
        assert metrics.preemptions == metrics.swapped_out == metrics.swapped_in == 1 and metrics.swap_host_bytes == 0
    assert answers.logprobs("low") == want and (len(answers.outputs["low"]) == 30)


# ---- what is refused


def test_a_full_queue_refuses(model: xLSTMLarge) -> None:
    answers = Answers()
    with engine_of(model, slots=1, max_waiting=2) as engine:
        with paused(engine):
            for id in ("a", "b"):
                engine.submit(Request(id, [5], GREEDY), answers)
            with pytest.raises(QueueFull, match=r"submit: 2 requests wait already \(max_waiting\)"):
                engine.submit(Request("c", [5], GREEDY), answers)
            with pytest.raises(ValueError, match="id: expected one that no unfinished request has, got 'a'"):
                engine.submit(Request("a", [5], GREEDY), answers)
        answers.wait("a", "b")
        engine.submit(Request("a", [5], GREEDY), (again := Answers()))  # a finished one's id is free
        again.wait("a")
        assert engine.metrics().requests_refused == 1


def test_a_late_cancel_is_not_of_the_next_request_of_that_id(model: xLSTMLarge) -> None:
    """It comes during the first one's last step, and that one's id is used again at once."""
    first, second = Answers(), Answers()
    with engine_of(model) as engine:
        draw = engine._stepper._sampler.draw

        def cancelled_meanwhile(*arguments: Any) -> Any:
            engine.cancel("a")
            return draw(*arguments)

        def on_output(output: Output) -> None:
            engine._stepper._sampler.draw = draw  # type: ignore[method-assign]
            engine.submit(Request("a", [5], GREEDY), second)
            first(output)

        engine._stepper._sampler.draw = cancelled_meanwhile  # type: ignore[method-assign]
        engine.submit(Request("a", [5], SamplingParams(max_tokens=1)), on_output)
        assert first.wait("a")[0].finish_reason in ("length", "stop")
        assert second.wait("a")[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("tokens", "params", "words"),
    [
        ([5] * 9, {}, "tokens: expected at most 8 tokens of a prompt, got 9"),
        ([256], {}, "tokens: expected token ids from 0 to 255, got 256"),
        ([5], {"max_tokens": 21}, "max_tokens: expected at most 20, got 21"),
        ([5], {"logprobs": 21}, "logprobs: expected at most 20, got 21"),
        ([5], {"stop_token_ids": (300,)}, "stop_token_ids: expected token ids from 0 to 255, got 300"),
        ([5], {"logit_bias": {256: 1.0}}, "logit_bias: expected token ids from 0 to 255, got 256"),
        ([5], {"structure": Structure("regex", "[")}, "structure.value: expected a regex that xgrammar takes: "),
    ],
)
def test_what_the_engine_does_not_take(model: xLSTMLarge, tokens: list[int], params: dict, words: str) -> None:
    if "structure" in params:
        pytest.importorskip("xgrammar")
    with (
        engine_of(model, max_prompt_tokens=8, max_new_tokens=20) as engine,
        pytest.raises(ValueError, match="^" + words),
    ):
        engine.submit(Request("a", tokens, SamplingParams(**params)), Answers())


def test_closed_and_not_started(model: xLSTMLarge) -> None:
    engine = engine_of(model)
    assert not engine.healthy
    with pytest.raises(EngineClosed, match="expected an engine that runs, but it was not started"):
        engine.submit(Request("a", [5]), Answers())
    with engine:
        assert engine.healthy
        with pytest.raises(RuntimeError, match="start: expected an engine that was not started before"):
            engine.start()
    assert not engine.healthy
    with pytest.raises(EngineClosed, match="it is closed"):
        engine.submit(Request("a", [5]), Answers())
    engine.close()
    engine_of(model).close()  # never started


@pytest.mark.parametrize(("drain", "timeout"), [(True, None), (True, 0.2), (False, None)])
def test_close(model: xLSTMLarge, drain: bool, timeout: float | None) -> None:
    answers = Answers()
    engine = engine_of(model, slots=2).start()
    endless = SamplingParams(max_tokens=10**6, seed=0, ignore_eos=True)
    for n in range(5):
        engine.submit(Request(str(n), [5], GREEDY if timeout is None else endless), answers)
    engine.close(drain, timeout)
    reasons = {answers.outputs[str(n)][-1].finish_reason for n in range(5)}
    assert reasons == {"length"} if drain and timeout is None else "cancelled" in reasons
    assert engine.metrics().slots_used == 0 and not engine.healthy


# ---- whose fault it is


def test_a_callback_that_fails_ends_its_request_alone(model: xLSTMLarge) -> None:
    answers, seen = Answers(), []

    def fails(output: Output) -> None:
        seen.append(output)
        if len(seen) == 3:
            raise KeyError("planted")

    with engine_of(model) as engine:
        with paused(engine):
            engine.submit(Request("bad", [5], GREEDY), fails)
            engine.submit(Request("good", [5], GREEDY), answers)
        answers.wait("good")
        assert len(answers.tokens("good")) == 12 and engine.healthy
        assert len(seen) == 4 and seen[-1].finish_reason == "error" and isinstance(seen[-1].error, KeyError)
        assert engine.metrics().requests_finished == {"length": 2, "error": 1} and engine.metrics().slots_used == 0


def test_sampling_that_fails_ends_its_request_alone(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Choice.add

    def failing(self: Choice, token: int) -> None:
        if self.params.seed == 13 and self.count == 4:
            raise RuntimeError("planted")
        add(self, token)

    monkeypatch.setattr(Choice, "add", failing)
    requests = [Request(str(n), [5], SamplingParams(12, seed=n, ignore_eos=True)) for n in (12, 13, 14)]
    with engine_of(model) as engine:
        answers = ask(engine, *requests)
        last = answers.outputs["13"][-1]
        assert last.finish_reason == "error" and str(last.error) == "planted" and last.new_tokens == 4
        assert all(len(answers.tokens(id)) == 12 for id in ("12", "14")) and engine.healthy


def test_a_prompt_that_fails_ends_its_request_alone(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    read = xLSTMLarge.read

    def failing(self: xLSTMLarge, x: torch.Tensor, *rest: Any) -> Any:
        if x[0, 0] == 77:
            raise RuntimeError("planted")
        return read(self, x, *rest)

    with engine_of(model) as engine:
        monkeypatch.setattr(xLSTMLarge, "read", failing)
        answers = ask(engine, Request("bad", [77], GREEDY), Request("good", [5], GREEDY))
        assert str(answers.outputs["bad"][-1].error) == "planted" and len(answers.tokens("good")) == 12
        assert engine.healthy and engine.metrics().slots_used == 0


@pytest.mark.parametrize(("method", "calls"), [("step", {3, 4, 30}), ("read", {2, 5}), ("read", {1})], ids=str)
def test_out_of_memory_delays_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, calls: set[int]
) -> None:
    model = serving_model(torch.float64)
    requests = unlike_requests()
    with engine_of(model) as engine:
        want = ask(engine, *requests)
        engine._stepper.cache.clear()
        count = out_of_memory_at(monkeypatch, method, calls)
        answers = ask(engine, *requests)
        assert count[0] > max(calls)
        for id in all_of(requests):
            assert answers.tokens(id) == want.tokens(id) and answers.text(id) == want.text(id)
        metrics = engine.metrics()
        assert metrics.out_of_memory == len(calls) and metrics.slots_used == 0 and engine.healthy
        assert "out of memory while " in caplog.text and "slots are used for now" in caplog.text
        assert engine._stepper.scheduler.slots < 4


def test_out_of_memory_without_end_ends_its_request(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(model) as engine:
        out_of_memory_at(monkeypatch, "step", set(range(1, 100)))
        for id in ("a", "b"):
            (last,) = ask(engine, Request(id, [5], GREEDY)).wait(id)
            assert last.finish_reason == "error" and isinstance(last.error, torch.OutOfMemoryError)
        one_token = SamplingParams(max_tokens=1)
        assert ask(engine, Request("c", [5], one_token)).tokens("c") and engine.healthy
        out_of_memory_at(monkeypatch, "read", set(range(1, 100)))
        (last,) = ask(engine, Request("d", [6], one_token)).wait("d")
        assert isinstance(last.error, torch.OutOfMemoryError) and engine.metrics().slots_used == 0


def test_slots_come_back_after_an_out_of_memory(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(model) as engine:
        out_of_memory_at(monkeypatch, "read", {1})
        ask(engine, Request("a", [5], SamplingParams(max_tokens=1200, ignore_eos=True, seed=0)))
        assert engine._stepper.scheduler.slots == 4


def test_a_failure_of_the_thread_is_told_to_all(model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()

    def failing(*arguments: Any) -> Any:
        raise RuntimeError("planted")

    with engine_of(model, slots=2) as engine:
        with paused(engine):
            for n in range(5):
                engine.submit(Request(str(n), [5], GREEDY), answers)
            monkeypatch.setattr(xLSTMLarge, "step", failing)
        for last in answers.wait(*map(str, range(5))):
            assert last.finish_reason == "error" and isinstance(last.error, EngineFailed)
            assert str(last.error) == "the engine's thread failed: RuntimeError: planted"
        engine._thread.join(10)
        assert not engine.healthy and not engine.metrics().healthy
        with pytest.raises(EngineClosed, match="it has failed"):
            engine.submit(Request("a", [5], GREEDY), answers)


# ---- for long


def test_many_short_requests_leave_nothing_behind(model: xLSTMLarge, request: pytest.FixtureRequest) -> None:
    """Two threads submit and cancel at random; slots and tensors are back where they were."""
    answers = Answers()
    gc.collect()
    gc.freeze()  # other tests' tensors, some of which end in the meantime, are not counted
    request.addfinalizer(gc.unfreeze)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    with engine_of(model, slots=8, prefix_cache_bytes=300_000, max_waiting=10**6) as engine:

        def submit(thread: int, count: int) -> None:
            rng = torch.Generator().manual_seed(thread)
            numbers = torch.randint(0, 1000, (count, 3), generator=rng).tolist()
            for n, (a, b, c) in enumerate(numbers):
                params = SamplingParams(1 + b % 6, seed=c, ignore_eos=True, presence_penalty=c % 2)
                session = f"s{c % 20}" if c % 5 == 0 else None
                engine.submit(
                    Request(f"{thread} {n}", prompt_of(1 + a % 40, a % 50), params, b % 3, None, session), answers
                )
                if a % 4 == 0:
                    engine.cancel(f"{thread} {n - c % 3}")

        def run(count: int) -> None:
            answers.outputs.clear()
            threads = [threading.Thread(target=submit, args=(n, count)) for n in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            answers.wait(*(f"{thread} {n}" for thread in range(2) for n in range(count)), seconds=60)

        run(100)
        before = tensors()
        run(450)
        metrics = engine.metrics()
        assert metrics.slots_used == metrics.running == metrics.waiting == 0 and not engine._ids
        assert metrics.requests_accepted == sum(metrics.requests_finished.values()) == 1100
        assert metrics.requests_finished["cancelled"] > 25 and "error" not in metrics.requests_finished
        assert metrics.prefix_cache_bytes <= 300_000
        # The cache and the sessions hold up to some tensors more or less: requests that left one each would be 900.
        assert tensors() - before < 400
