# SPDX-License-Identifier: Apache-2.0
"""A batch of unlike requests: each row as if alone, penalties and bias by formula, failures of one row its own."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip.models import Sampling, load_tokenizer, logprobs_of
from xlstm_hip.models.sampling import Drawing
from xlstm_hip.models.tokenizer import BYTES
from xlstm_hip.serving import SamplingParams, Structure
from xlstm_hip.serving.sampler import Choice, Drawn, Sampler
from xlstm_hip.serving.structure import Structures, unpacked

VOCAB = 256
CPU = torch.device("cpu")
PROMPT = [5, 6, 7, 7]
UNLIKE = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.5, "logit_bias": {9: 4.0}},
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"seed": 1, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"seed": 3, "temperature": 1.3, "min_p": 0.05, "presence_penalty": 0.8},
    {"seed": 4, "frequency_penalty": 1.5, "repetition_penalty": 1.1, "logprobs": 2},
    {"seed": 5, "logit_bias": {3: -100, 200: 5.0}, "logprobs": 0},
]


def logits_of(rows: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def choice_of(**params: Any) -> Choice:
    return Choice(SamplingParams(**params), PROMPT, VOCAB, CPU)


def test_the_same_alone_and_in_any_company() -> None:
    sampler, steps = Sampler(BYTES), [logits_of(len(UNLIKE), n) for n in range(12)]
    together = [choice_of(**params) for params in UNLIKE]
    drawn = [sampler.draw(together, logits) for logits in steps]
    for row, params in enumerate(UNLIKE):
        alone = choice_of(**params)
        assert [sampler.draw([alone], logits[row : row + 1])[0] for logits in steps] == [step[row] for step in drawn]
        pairs = [choice_of(seed=99), choice_of(**params)]
        others = [sampler.draw(pairs, torch.stack((logits[0], logits[row])))[1] for logits in steps]
        assert others == [step[row] for step in drawn]
    assert len({tuple(step[row].token for step in drawn) for row in range(len(UNLIKE))}) == len(UNLIKE)


def test_draws_are_those_of_generate() -> None:
    """The n-th token by Philox of the seed and n."""
    sampling, choice = (
        Sampling(0.9, top_k=50, top_p=0.95, min_p=0.01),
        choice_of(seed=7, temperature=0.9, top_k=50, top_p=0.95, min_p=0.01),
    )
    drawing = Drawing(sampling, (), 0, 1, None, CPU)
    drawing.begin([7])
    for n in range(10):
        logits = logits_of(1, n)
        drawing(logits)
        assert Sampler(BYTES).draw([choice], logits)[0].token == int(drawing.tokens)


def test_scores_by_their_formulas() -> None:
    """In the order of SamplingParams; the prompt counts for the repetition penalty alone."""
    params = {
        "repetition_penalty": 1.7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {8: 1.5, 7: -1},
    }
    choice, logits = choice_of(**params), logits_of(2)
    for token in (8, 8, 11):
        choice.add(token)
    before = logits.clone()
    scores = Sampler(BYTES)._scores([choice_of(), choice], logits)
    want = logits[1].clone()
    for token in (5, 6, 7, 8, 11):
        want[token] = want[token] / 1.7 if want[token] > 0 else want[token] * 1.7
    want[8] += -0.5 - 2 * 0.25 + 1.5
    want[11] -= 0.75
    want[7] -= 1
    assert torch.equal(logits, before) and torch.equal(scores[0], logits[0])
    assert torch.allclose(scores[1], want, atol=1e-6)


def test_logprobs_are_the_models_own() -> None:
    choices = [
        choice_of(temperature=0, logit_bias={9: 50.0}, logprobs=3),
        choice_of(seed=1),
        choice_of(seed=1, logprobs=0),
    ]
    logits = logits_of(3)
    first, second, third = Sampler(BYTES).draw(choices, logits)
    assert isinstance(first, Drawn) and first.token == 9 and second.logprob is None
    want = logprobs_of(logits, torch.tensor([9, second.token, third.token]), 3)
    assert first.logprob.logprob == float(want.tokens[0]) and third.logprob.logprob == float(want.tokens[2])
    assert [(t, x) for t, _, x in first.logprob.top] == list(
        zip(want.top_tokens[0].tolist(), want.top[0].tolist(), strict=True)
    )
    assert first.logprob.text == "\t" and third.logprob.top == []


def test_one_row_that_fails_fails_alone() -> None:
    choices = [choice_of(seed=n) for n in range(5)]
    logits = logits_of(5)
    logits[1] = math.nan

    class Broken:
        def allowed(self) -> Tensor:
            raise RuntimeError("planted")

    choices[3].structure = Broken()  # type: ignore[assignment]
    results = Sampler(BYTES).draw(choices, logits)
    assert isinstance(results[1], Exception) and "NaN" in str(results[1]) and str(results[3]) == "planted"
    for n in (0, 2, 4):
        assert results[n] == Sampler(BYTES).draw([choice_of(seed=n)], logits[n : n + 1])[0]


def test_seeds() -> None:
    """None is any: two requests without a seed are not alike."""
    logits = torch.zeros(2, VOCAB)
    sampler, pair = Sampler(BYTES), [choice_of(), choice_of()]
    texts = list(zip(*([one.token for one in sampler.draw(pair, logits)] for _ in range(8)), strict=True))
    assert texts[0] != texts[1]


# ---- structures


def written(structure: Structure, seed: int, ends: tuple[int, ...] = (2,), steps: int = 400) -> str:
    """A text of random tokens that the structure allows."""
    structures = Structures(BYTES, VOCAB, ends)
    follow = structures.follow(structures.compile(structure))
    choice = Choice(SamplingParams(seed=seed), PROMPT, VOCAB, CPU, follow)
    sampler, tokens = Sampler(BYTES), []
    for n in range(steps):
        logits = 0.1 * logits_of(1, n)
        logits[0, ord('"')] += 4  # strings end
        logits[0, ord("}")] += 6
        (one,) = sampler.draw([choice], logits)
        assert isinstance(one, Drawn), one
        if one.token in ends:
            assert follow.over
            break
        tokens.append(one.token)
        if follow.over:
            break
    else:
        raise AssertionError("no end")
    return BYTES.decode(tokens)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("ends", [(2,), ()], ids=["end token", "no end token"])
@pytest.mark.parametrize("seed", range(3))
def test_structures(seed: int, ends: tuple[int, ...]) -> None:
    pytest.importorskip("xgrammar")
    assert re.fullmatch(r"[ab]{3}-\d\d", written(Structure("regex", r"[ab]{3}-\d\d"), seed, ends))
    assert written(Structure("choice", ["yes", "no", 'ö"\\']), seed, ends) in ("yes", "no", 'ö"\\')
    assert re.fullmatch("(xy)+z", written(Structure("grammar", 'root ::= "xy" root | "xyz"'), seed, ends))
    for value in (SCHEMA, json.dumps(SCHEMA)):
        made = json.loads(written(Structure("json_schema", value), seed, ends))
        assert set(made) == {"name", "age"} and 0 <= made["age"] <= 99
    assert isinstance(json.loads(written(Structure("json_object"), seed, ends)), dict)


def test_structures_with_a_tokenizer_of_a_file(tmp_path: Path) -> None:
    """Tokens of several characters; a vocabulary that the model's is larger than; an end token."""
    pytest.importorskip("xgrammar"), pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, special_tokens=["</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(["abab abcab 123 1212 yes no"] * 20, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    size = made.get_vocab_size() + 7
    tokenizer, end = load_tokenizer(tmp_path, size), made.token_to_id("</s>")
    structures = Structures(tokenizer, size, (end,))
    compiled = structures.compile(Structure("regex", r"(ab|c)+ \d{4}"))
    for seed in range(5):
        choice = Choice(SamplingParams(seed=seed), PROMPT, size, CPU, structures.follow(compiled))
        tokens: list[int] = []
        while end not in tokens:
            (one,) = Sampler(tokenizer).draw([choice], torch.zeros(1, size))
            tokens.append(one.token)
        assert re.fullmatch(r"(ab|c)+ \d{4}", tokenizer.decode(tokens[:-1]))
    with pytest.raises(ValueError, match="structure: expected a tokenizer of load_tokenizer, got one .* from no file"):
        Structures(dataclasses.replace(tokenizer, file=None), size, ()).compile(Structure("json_object"))


def test_a_mask_in_words() -> None:
    allowed = torch.rand(3, 70, generator=torch.Generator().manual_seed(0)) < 0.5
    words = torch.zeros(3, 3, dtype=torch.int64)
    for token in range(70):
        words[:, token // 32] |= allowed[:, token].long() << token % 32
    assert torch.equal(unpacked(words.to(torch.int32), 70), allowed)


@pytest.mark.parametrize(
    "structure",
    [Structure("regex", "["), Structure("grammar", "root ::="), Structure("json_schema", "{")],
    ids=lambda structure: structure.kind,
)
def test_structures_that_mean_nothing(structure: Structure) -> None:
    pytest.importorskip("xgrammar")
    with pytest.raises(ValueError, match=f"^structure.value: expected a {structure.kind} that xgrammar takes: "):
        Structures(BYTES, VOCAB, ()).compile(structure)


def test_structures_have_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request cannot have the others with structures wait for minutes, nor many fill the memory."""
    xgrammar = pytest.importorskip("xgrammar")
    limits, compiler = [], xgrammar.GrammarCompiler
    monkeypatch.setattr(
        xgrammar, "GrammarCompiler", lambda *rest, **options: limits.append(options) or compiler(*rest, **options)
    )
    structures = Structures(BYTES, VOCAB, ())
    for structure in (
        Structure("choice", [f"{n:08}" for n in range(9000)]),
        Structure("regex", "a" * 65537),
        Structure("json_schema", {"enum": ["a" * 70000]}),
    ):
        with pytest.raises(ValueError, match=r"^structure.value: expected at most 65536 characters, got \d{5}$"):
            structures.compile(structure)
    structures.compile(Structure("choice", ["a", "b"]))
    assert limits[0]["cache_limit_bytes"] == 256 * 2**20


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    words = r'^structure: a text of a given form needs xgrammar: pip install "xlstm_hip\[structured\]"$'
    with pytest.raises(ModuleNotFoundError, match=words):
        Structures(BYTES, VOCAB, ()).compile(Structure("json_object"))
