# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for vLLM, its engine in this process, and what its answers are held against."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from support.peer_models import small_model
from xlstm_hip.models import load_pretrained, save_pretrained, xLSTMLarge

DEMO = Path(__file__).parents[2] / "models" / "demo"
LOGPROBS = 10
BYTES = 256


def byte_tokenizer() -> Tokenizer:
    """Token ids are bytes, as the demo model's: of ByteLevel's characters, those of printable bytes are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, BYTES)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    characters = {chr(byte): byte for byte in printable} | {chr(BYTES + n): byte for n, byte in enumerate(others)}
    assert characters.keys() == set(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def with_tokenizer(folder: Path) -> Path:
    """Without a tokenizer vLLM neither starts a server nor warms one up."""
    PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer()).save_pretrained(folder)
    return folder


def demo_checkpoint(folder: Path) -> Path:
    shutil.copytree(DEMO, folder)
    return with_tokenizer(folder)


def small_checkpoint(folder: Path) -> Path:
    """Random weights whose gates do something; head dims that are no powers of two. In bfloat16, as the demo model, so
    that an engine in either dtype has the same weights."""
    model = small_model(embedding_dim=120, num_heads=3, num_blocks=3, vocab_size=BYTES, dtype=torch.bfloat16)
    save_pretrained(model, folder)
    return with_tokenizer(folder)


def some_prompts(lengths: Sequence[int]) -> list[list[int]]:
    rng = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(3, BYTES, (length,), generator=rng).tolist() for length in lengths]


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[Mapping[int, float]]  # of each token and of the likeliest


def answer_of(output: Any) -> Answer:
    """vLLM's output of one request."""
    (one,) = output.outputs
    return Answer(list(one.token_ids), [{t: x.logprob for t, x in step.items()} for step in one.logprobs])


class Truth:
    """The log-probabilities after each token of a text, by transformers in float32, and by plain torch in float64."""

    def __init__(self, folder: Path) -> None:
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.theirs: Callable[[Tensor], Tensor] = lambda x: theirs(x, use_cache=False).logits
        self.wide = plain_model(folder, torch.float64)

    @torch.no_grad()
    def of(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        x = torch.tensor([tokens])
        return self.theirs(x)[0].double().log_softmax(-1), self.wide(x)[0].log_softmax(-1)


class TruthInBfloat16(Truth):
    """With plain torch in bfloat16 for transformers, whose own kernel mixes dtypes there and fails."""

    def __init__(self, folder: Path) -> None:
        self.theirs, self.wide = plain_model(folder, torch.bfloat16), plain_model(folder, torch.float64)


def plain_model(folder: Path, dtype: torch.dtype) -> xLSTMLarge:
    kernels = {"chunkwise_kernel": "chunkwise--native_autograd", "step_kernel": "native"}
    return load_pretrained(folder, dtype=dtype, progress=False, return_last_states=False, **kernels)


def check_errors(found: Tensor, theirs: Tensor, wide: Tensor) -> None:
    """Of the same log-probabilities: the error is at most twice transformers', as everywhere (support/accuracy.py).

    Root mean square: one number that is off by a hundredth shows among thousands, as others are by a hundred
    thousandth.
    """
    error, allowed = (factor * float((x - wide).square().mean().sqrt()) for factor, x in ((1, found), (2, theirs)))
    assert error <= allowed, f"error of log-probabilities: expected at most {allowed:.2e}, got {error:.2e}"


def check_answers(truth: Truth, prompts: list[list[int]], answers: list[Answer], greedy: bool = True) -> None:
    """Every token is transformers' choice, if greedy, and the log-probabilities of all are as exact as its own."""
    found: list[float] = []
    theirs: list[Tensor] = []
    wide: list[Tensor] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        their_steps, wide_steps = truth.of(prompt + answer.tokens)
        if greedy:
            assert answer.tokens == their_steps[len(prompt) - 1 : -1].argmax(-1).tolist()
        for step, logprobs in enumerate(answer.logprobs, len(prompt) - 1):
            found += logprobs.values()
            theirs.append(their_steps[step, list(logprobs)])
            wide.append(wide_steps[step, list(logprobs)])
    check_errors(torch.tensor(found), torch.cat(theirs), torch.cat(wide))
