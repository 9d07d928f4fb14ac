# SPDX-License-Identifier: Apache-2.0
"""generate and Stream: the same text however it is asked for; transformers' processors; ends, seeds, states, memory."""

from __future__ import annotations

import gc

import pytest
import torch

from support.peer_models import SMALL, official, relative, small_model, tokens
from xlstm_hip.models import Sampling, Stream, generate, generation, xLSTMLarge
from xlstm_hip.models.config_files import SpecialTokens
from xlstm_hip.models.generation import logprobs_of

DRAWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1, "min_p": 0.01}
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return small_model(dtype=torch.float64)


@pytest.mark.parametrize(
    "options", [{}, DRAWN, {"temperature": 1.0, "seed": [7, 7, 1, 2]}], ids=["greedy", "drawn", "seeds"]
)
def test_the_same_text_alone_batched_and_streamed(model: xLSTMLarge, options: dict) -> None:
    options = {"eos": (), "seed": 3, **options}
    batch = generate(model, PROMPTS, 24, **options)
    assert batch.tokens.shape == (4, 24) and batch.lengths.tolist() == [24] * 4
    assert torch.equal(generate(model, PROMPTS, 24, **options).tokens, batch.tokens)
    seeds = options["seed"] if isinstance(options["seed"], list) else [3, 4, 5, 6]
    for row, prompt in enumerate(PROMPTS):
        streamed: list[int] = []
        alone = generate(
            model,
            [prompt],
            24,
            **options | {"seed": seeds[row]},
            callback=lambda step, to=streamed: to.extend(step.tolist()),
        )
        assert alone.tokens[0].tolist() == streamed == batch.tokens[row].tolist()
    if options.get("temperature"):
        other_seed = generate(model, PROMPTS, 24, **options | {"seed": 100})
        assert not torch.equal(other_seed.tokens, batch.tokens)


def test_greedy_is_the_official_one() -> None:
    model, x = small_model(mode="inference", return_last_states=True), tokens(2, 9)
    peer = official(model, mode="inference")
    expected, their_state = peer.generate(x, 20)
    actual, state = model.generate(x, 20)
    assert torch.equal(actual, expected)
    assert all(relative(a, b) < 1e-4 for n in state for a, b in zip(state[n], their_state[n], strict=True))
    drawn, _ = model.generate(x, 20, "sample", seed=1)
    assert not torch.equal(drawn, actual)


def test_all_forms_of_the_official_call() -> None:
    model = small_model(mode="inference", return_last_states=True)
    peer, x = official(model, mode="inference"), tokens(3, 1)[:, 0]
    beginning = dict.fromkeys(range(model.config.num_blocks))
    for prompt, state in ((x, None), (None, None), (x, beginning), (x[:, None].repeat(1, 4), beginning)):
        actual, last = model.generate(prompt, 5, state=None if state is None else dict(state))
        expected, their_last = peer.generate(prompt, 5, state=None if state is None else dict(state))
        assert torch.equal(actual, expected)
        assert all(relative(a, b) < 1e-4 for n in last for a, b in zip(last[n], their_last[n], strict=True))
    assert model.generate(x, 0, state=last) == (None, last)
    model.special_tokens = SpecialTokens(bos=None)
    with pytest.raises(ValueError, match="prefill_tokens: expected tokens for a model without a BOS token, got None"):
        model.generate(None, 5)


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_state_of_the_beginning_is_filled(mode: str) -> None:
    model, x = small_model(mode=mode), tokens(2, 3)
    want = Stream(model, 2)
    state = dict.fromkeys(range(model.config.num_blocks))
    with torch.no_grad():
        for n in range(3):
            logits = model.step(x[:, n], state)
        assert relative(logits, want.feed(x)) < 1e-5
    assert all(relative(a, b) < 1e-5 for n in state for a, b in zip(state[n], want.state[n], strict=True))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7),
        Sampling(1.0, top_k=5),
        Sampling(1.3, top_p=0.8),
        Sampling(0.9, 20, 0.6, 1.4),
        Sampling(1.0, 1000),
        Sampling(1.3, min_p=0.1),
        Sampling(1.5, 30, 0.9, 1.2, 0.05),
    ],
    ids=str,
)
def test_probabilities_are_those_of_transformers(sampling: Sampling, seed: int) -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, 97, generator=rng, dtype=torch.float64)
    history = tokens(3, 12, seed=seed)
    seen = torch.zeros(3, 97, dtype=torch.bool).scatter_(1, history, True)
    scores = logits_process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(history, logits.clone())
    scores = logits_process.TemperatureLogitsWarper(sampling.temperature)(history, scores)
    if sampling.top_k:
        scores = logits_process.TopKLogitsWarper(sampling.top_k)(history, scores)
    if sampling.top_p < 1:
        scores = logits_process.TopPLogitsWarper(sampling.top_p)(history, scores)
    if sampling.min_p:
        scores = logits_process.MinPLogitsWarper(sampling.min_p)(history, scores)
    actual = sampling.probabilities(logits.float().double(), seen)
    assert torch.allclose(actual, scores.softmax(-1), atol=1e-5)
    assert torch.equal(actual > 0, scores.softmax(-1) > 0)


def test_end_tokens(model: xLSTMLarge) -> None:
    free = generate(model, PROMPTS, 30, eos=(), seed=1, temperature=1.0)
    ends = (int(free.tokens[1, 4]), int(free.tokens[2, 9]))
    actual = generate(model, PROMPTS, 30, eos=ends, seed=1, temperature=1.0)
    pad = model.special_tokens.pad
    for row in range(len(PROMPTS)):
        layer = free.tokens[row].tolist()
        length = next((n + 1 for n, token in enumerate(layer) if token in ends), 30)
        assert actual.lengths[row] == length
        width = actual.tokens.shape[1]
        assert actual.tokens[row].tolist() == (layer[:length] + [pad] * width)[:width]
    alone = generate(model, [PROMPTS[1]], 30, eos=ends, seed=2, temperature=1.0)
    assert alone.tokens.shape[1] == alone.lengths[0] < 30
    # The state of a row that is over stays where it was, whatever the others still do.
    for n, layer in alone.state.items():
        assert all(relative(a[1:2], b) < 1e-12 for a, b in zip(actual.state[n], layer, strict=True))


@pytest.mark.parametrize("eos", [(), (3,)], ids=["", "eos"])
def test_stop_sequences_end_rows(model: xLSTMLarge, eos: tuple[int, ...]) -> None:
    """As end tokens do: a row that met one is padding from then on, and its state stays."""
    options = {"temperature": 1.0, "seed": 1, "eos": eos}
    free = generate(model, PROMPTS, 30, **options)
    row_1, row_2 = (free.tokens[n].tolist() for n in (1, 2))
    stops = (row_1[3:5], row_2[7:10], [row_1[0], 96, 96])
    assert len(set(map(tuple, stops))) == 3
    actual = generate(model, PROMPTS, 30, stop=stops, **options)
    for row in range(len(PROMPTS)):
        row_tokens = free.tokens[row, : free.lengths[row]].tolist()
        met = (n for n in range(1, len(row_tokens) + 1) if any(row_tokens[:n][-len(s) :] == s for s in stops))
        length = next(met, len(row_tokens))
        width = actual.tokens.shape[1]
        assert actual.lengths[row] == length
        assert actual.tokens[row].tolist() == (row_tokens[:length] + [model.special_tokens.pad] * width)[:width]
    assert actual.lengths[1] <= 5 and actual.lengths[2] <= 10
    alone = generate(model, [PROMPTS[1]], 30, stop=stops, **options | {"seed": 2})
    assert alone.tokens.shape[1] == alone.lengths[0] == actual.lengths[1]
    for n, layer_state in alone.state.items():
        assert all(relative(a[1:2], b) < 1e-12 for a, b in zip(actual.state[n], layer_state, strict=True))


def test_a_function_stops_rows(model: xLSTMLarge) -> None:
    """It is called with each step's tokens; also of a Stream that was asked without one before."""
    seen = []

    def stop(tokens: torch.Tensor) -> list[int]:
        seen.append(tokens.tolist())
        return [2] if len(seen) == 3 else [0, 1, 3] if len(seen) == 6 else []

    free = generate(model, PROMPTS, 10, eos=())
    generated = generate(model, PROMPTS, 10, eos=(), stop=stop)
    assert generated.lengths.tolist() == [6, 6, 3, 6] and torch.equal(generated.tokens[0], free.tokens[0, :6])
    assert generated.tokens.t().tolist() == seen
    stream = fed(model)
    first = [int(token) for token in stream.tokens(4)]
    stream.feed(torch.tensor([first[-1:]]))
    assert len(list(stream.tokens(4, stop=lambda tokens: [0]))) == 1
    assert [int(token) for token in fed(model).tokens(4)] == first


def test_logprobs(model: xLSTMLarge) -> None:
    """Those of the model's logits, in float64: bit by bit of a Stream's, and of one call over the whole text."""
    options = {**DRAWN, "seed": 3, "eos": ()}
    plain = generate(model, PROMPTS, 12, **options)
    end = (int(plain.tokens[2, 4]),)
    generated = generate(model, PROMPTS, 12, logprobs=5, **options | {"eos": end})
    assert plain.logprobs is None and generated.logprobs is not None
    actual = generated.logprobs
    width = generated.tokens.shape[1]
    assert actual.tokens.shape == (4, width) and actual.top.shape == actual.top_tokens.shape == (4, width, 5)
    assert actual.tokens.dtype == actual.top.dtype == torch.float64
    for row, prompt in enumerate(PROMPTS):
        length = int(generated.lengths[row])
        stream = Stream(model, remember_tokens=True)
        stream.feed(torch.tensor([[0, *prompt]]))
        want = []
        for token in stream.tokens(length, Sampling(**DRAWN), 3 + row):
            want.append(stream.logits.double().log_softmax(-1)[0])
            one = logprobs_of(stream.logits, token, 2)
            assert one.tokens == want[-1][token] and torch.equal(one.top[0], want[-1].sort(descending=True).values[:2])
        text = generated.tokens[row, :length]
        # Rows of a batch and alone differ as sums of another order do: a state's of float64, through two blocks.
        scores = torch.stack(want)
        assert (actual.tokens[row, :length] - scores.gather(1, text[:, None])[:, 0]).abs().max() < 1e-12
        assert (actual.top[row, :length] - scores.gather(1, actual.top_tokens[row, :length])).abs().max() < 1e-12
        assert torch.equal(actual.top[row, :length], actual.top[row, :length].sort(descending=True).values)
        assert actual.tokens[row, length:].isnan().all() and actual.top[row, length:].isnan().all()
        with torch.no_grad():
            full = model(torch.tensor([[0, *prompt, *text.tolist()]]))[0].log_softmax(-1)[len(prompt) : -1]
        assert (full.gather(1, text[:, None])[:, 0] - actual.tokens[row, :length]).abs().max() < 1e-12
    assert generate(model, PROMPTS, 2, logprobs=0).logprobs.top.shape == (4, 2, 0)
    exact = generate(model, [[5]], 4, eos=(), logprobs=97).logprobs  # greedy
    assert torch.equal(exact.tokens, exact.top[..., 0]) and (exact.top.exp().sum(-1) - 1).abs().max() < 97 * 2**-52


def test_bos_rule(model: xLSTMLarge) -> None:
    first = generate(model, [[5, 6]], 8)
    assert torch.equal(first.tokens, generate(model, [[0, 5, 6]], 8).tokens)
    assert torch.equal(first.tokens, generate(model, [[0, 5, 6]], 8, bos=None).tokens)
    without = generate(model, [[5, 6]], 8, bos=None)
    assert not torch.allclose(without.state[0][0], first.state[0][0])
    assert torch.equal(generate(model, [[]], 8).tokens, generate(model, [[0]], 8, bos=None).tokens)
    with pytest.raises(ValueError, match="prompts: expected at least one"):
        generate(model, [[]], 8, bos=None)


def test_state_goes_on(model: xLSTMLarge) -> None:
    full = generate(model, [[5, 6, 7]], 20, eos=())
    first = generate(model, [[5, 6, 7]], 12, eos=())
    continued = generate(model, first.tokens[:, -1:], 8, eos=(), state=first.state)
    assert torch.equal(torch.cat((first.tokens, continued.tokens), 1), full.tokens)


def test_repetition_penalty_counts_prompt_and_output(model: xLSTMLarge) -> None:
    generated = generate(model, [[5, 6, 7]], 40, eos=(), repetition_penalty=1e6).tokens[0].tolist()
    positive = [t for t in generated if t not in (0, 5, 6, 7)]
    assert len(set(positive)) == len(positive) == 40


@pytest.mark.parametrize("at_a_time", [4096, 2, 1])
def test_left_padding_is_not_seen(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it goes through the model with: a slice may be padding alone."""
    monkeypatch.setattr(generation, "SLICE", at_a_time)
    model = small_model(dtype=torch.float64)
    model.special_tokens = SpecialTokens(pad=1)
    stream = Stream(model, 2, remember_tokens=True)
    stream.feed(torch.tensor([[1, 1, 4], [2, 3, 4]]), torch.tensor([[False, False, True], [True, True, True]]))
    assert stream.seen is not None
    assert [row.nonzero().flatten().tolist() for row in stream.seen] == [[4], [2, 3, 4]]


def test_score(model: xLSTMLarge) -> None:
    x = tokens(2, 40)
    with torch.no_grad():
        want = model(x)[:, :-1].log_softmax(-1).gather(-1, x[:, 1:, None]).squeeze(-1)
    stream = Stream(model, 2)
    actual = torch.cat([stream.score(x[:, a:b]) for a, b in ((0, 1), (1, 17), (17, 40))], dim=1)
    assert actual[:, 0].isnan().all()
    assert torch.allclose(actual[:, 1:].double(), want, atol=1e-5)


def test_a_stream_keeps_its_memory_and_its_result() -> None:
    """A long input in pieces: the state's size, the number of tensors alive and the result of one long call."""
    model = small_model()
    x = tokens(1, 20_000)

    def tensors() -> list[torch.Tensor]:
        gc.collect()
        return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]

    earlier = tensors()  # other tests' tensors: holding them keeps their ids from being reused
    known = {id(t) for t in earlier}
    stream = Stream(model)
    alive = []
    for begin in range(0, x.shape[1], 1000):
        stream.feed(x[:, begin : begin + 1000])
        if begin in (2000, 19_000):
            alive.append(sum(id(t) not in known for t in tensors()))
    assert alive[0] == alive[1]
    with torch.no_grad():
        hidden, _ = model.hidden(x)
        assert relative(stream.logits, model.logits(hidden[:, -1])) < 1e-4
    endless = stream.tokens()
    before = [s.data_ptr() for s in stream.state[0]]
    for _ in range(300):
        next(endless)
    assert [s.data_ptr() for s in stream.state[0]] == before


def test_a_training_model_generates_too() -> None:
    training, inference = small_model(mode="train"), small_model(mode="inference", return_last_states=True)
    assert torch.equal(generate(training, [[4, 5]], 10).tokens, generate(inference, [[4, 5]], 10).tokens)
    assert SMALL["vocab_size"] == 97


def fed(model: xLSTMLarge) -> Stream:
    stream = Stream(model)
    stream.feed(torch.tensor([[5]]))
    return stream


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: generate(m, [[1]], 0), "max_new_tokens: expected an integer >= 1, got 0"),
        (lambda m: generate(m, [[1]], 1, temperature=-1), "temperature: expected a number from 0.0 to inf, got -1"),
        (lambda m: generate(m, [[1]], 1, top_k=5), "temperature: expected above 0 with top_k, top_p or min_p"),
        (lambda m: generate(m, [[1]], 1, min_p=0.1), "temperature: expected above 0 with top_k, top_p or min_p"),
        (
            lambda m: generate(m, [[1]], 1, temperature=1, min_p=1.5),
            "min_p: expected a number from 0.0 to 1.0, got 1.5",
        ),
        (
            lambda m: generate(m, [[1]], 1, stop="ab"),
            "stop: expected sequences of token ids, or a function .*, got 'ab'",
        ),
        (lambda m: generate(m, [[1]], 1, stop=[5]), r"stop\[0\]: expected a sequence of token ids, got 5"),
        (lambda m: generate(m, [[1]], 1, stop=[[5], []]), r"stop\[1\]: expected at least one token id"),
        (lambda m: generate(m, [[1]], 1, stop=[[97]]), r"stop\[0\]: expected token ids from 0 to 96, got 97"),
        (lambda m: generate(m, [[1]], 1, stop=lambda step: [1]), r"stop: .* return rows from 0 to 0, got \[1\]"),
        (lambda m: generate(m, [[1]], 1, stop=lambda step: True), "stop: .* return rows from 0 to 0, got True"),
        (lambda m: list(fed(m).tokens(1, stop=lambda step: 1)), "stop: .* return rows from 0 to 0, got 1"),
        (lambda m: fed(m).tokens(1, stop=[[5]]), r"stop: expected a function of each step's tokens, or None, got \[\["),
        (lambda m: generate(m, [[1]], 1, logprobs=98), "logprobs: expected None or an integer from 0 to 97, got 98"),
        (
            lambda m: generate(m, [[1]], 1, logprobs=True),
            "logprobs: expected None or an integer from 0 to 97, got True",
        ),
        (lambda m: m.generate(torch.zeros(1, 1).long(), 1, logprobs=1), "logprobs: expected a call of .*generate"),
        (lambda m: generate(m, [[1]], 1, temperature=1, top_p=0), "top_p: expected a finite number above 0, got 0"),
        (lambda m: generate(m, [[1]], 1, temperature=1, top_k=-1), "top_k: expected an integer >= 0, got -1"),
        (lambda m: generate(m, [[1]], 1, seed=[1, 2]), "seed: expected an integer, or one for each of 1 rows"),
        (lambda m: Stream(m).tokens(), r"tokens: expected feed\(\) before it"),
        (lambda m: generate(m, torch.tensor([1, 2]), 1), r"prompts: expected 2 dimensions \(B, S\), got 1: \(2\)"),
        (lambda m: generate(m, torch.zeros(1, 2), 1), "prompts: expected int32 or int64, got torch.float32"),
        (lambda m: generate(m, [1, 2], 1), r"prompts\[0\]: expected a sequence of token ids, got 1"),
        (lambda m: generate(m, "ab", 1), "prompts: expected .* lists of token ids, got 'ab'"),
        (lambda m: generate(m, [torch.tensor(3)], 1), r"prompts\[0\]: expected a sequence of token ids, got 3"),
        (lambda m: generate(m, [[1, 2.7]], 1), r"prompts\[0\]: expected token ids from 0 to 96, got 2.7"),
        (lambda m: generate(m, [[1], [-1]], 1), r"prompts\[1\]: expected token ids from 0 to 96, got -1"),
        (lambda m: generate(m, [[97]], 1), r"prompts\[0\]: expected token ids from 0 to 96, got 97"),
        (lambda m: generate(m, [[1]], 1, eos="foo"), "eos: expected 'model' or a sequence of token ids, got 'foo'"),
        (lambda m: generate(m, [[1]], 1, eos=5), "eos: expected 'model' or a sequence of token ids, got 5"),
        (lambda m: generate(m, [[1]], 1, eos=[97]), "eos: expected token ids from 0 to 96, got 97"),
        (lambda m: generate(m, [[1]], 1, eos=range(65)), "eos: expected at most 64 token ids, got 65"),
        (lambda m: fed(m).tokens(1, eos=range(65)), "eos: expected at most 64 token ids, got 65"),
        (lambda m: generate(m, [[1]], 1, bos="x"), "bos: expected 'model', None or a token id from 0 to 96, got 'x'"),
        (lambda m: generate(m, [[1]], 1, bos=97), "bos: expected 'model', None or a token id from 0 to 96, got 97"),
        (lambda m: fed(m).tokens(1, eos=5), "eos: expected a sequence of token ids, got 5"),
        (lambda m: fed(m).tokens(1, eos="foo"), "eos: expected a sequence of token ids, got 'foo'"),
        (lambda m: fed(m).tokens(1, eos=[2.5]), "eos: expected token ids from 0 to 96, got 2.5"),
        (lambda m: Stream(m).feed(torch.ones(1, 2).long(), [[1, 1]]), "mask: expected a torch.Tensor, got list"),
        (lambda m: fed(m).tokens(1, seed=[1.5]), "seed: expected integers, got 1.5"),
        (lambda m: Stream(m).feed([[1]]), "tokens: expected a torch.Tensor, got list"),
        (lambda m: Stream(m).feed(torch.zeros(1, 3)), "tokens: expected int32 or int64, got torch.float32"),
        (lambda m: Stream(m).feed(torch.tensor([[97]])), "tokens: expected token ids from 0 to 96, got 97"),
        (lambda m: Stream(m).score(torch.tensor([[3, -1]])), "tokens: expected token ids from 0 to 96, got -1"),
        (lambda m: fed(m).tokens(0), "most: expected an integer >= 1, got 0"),
        (lambda m: fed(m).tokens(-1), "most: expected an integer >= 1, got -1"),
        (lambda m: fed(m).tokens(2.5), "most: expected an integer >= 1, got 2.5"),
        (lambda m: fed(m).tokens("a"), "most: expected an integer >= 1, got 'a'"),
        (lambda m: Stream(m, 2).feed(torch.zeros(1, 3)), r"tokens: expected shape \(2, S >= 1\), got \(1, 3\)"),
        (
            lambda m: m.generate(torch.zeros(1, 1).long(), 1, "beam"),
            "sampling_type: expected one of 'greedy', 'sample'",
        ),
    ],
)
def test_wrong_calls(model: xLSTMLarge, call, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call(model)


def test_a_wrong_call_leaves_the_state_as_it_is(model: xLSTMLarge) -> None:
    state = generate(model, [[1, 2]], 1).state
    before = {n: tuple(x.clone() for x in layer) for n, layer in state.items()}
    with pytest.raises(ValueError, match="seed: expected an integer, or one for each of 1 rows"):
        generate(model, [[3]], 1, seed=[1, 2], state=state)
    assert all(torch.equal(a, b) for n in before for a, b in zip(before[n], state[n], strict=True))
