# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of one model: pp, processing a prompt, and tg, generating text.

The names are those of llama.cpp's llama-bench. A repetition of pp<N> reads N random tokens from an empty state; one of
tg<N> makes the next N tokens of a text, one after the other, by the way that generate takes. The length of the text so
far makes no difference to an xLSTM, so all repetitions continue the same text.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from ..models import Sampling, Stream, xLSTMLarge
from .machine import Machine
from .memory import MemoryUnknown, growth_of
from .table import UNKNOWN, lines_of, short
from .timing import Call

PROMPT, TEXT = "pp", "tg"
COLUMNS = ("model", "parameters", "weights", "batch", "test", "tokens/s", "peak memory")


@dataclass(frozen=True)
class Work:
    kind: str  # PROMPT or TEXT
    tokens: int  # of each row
    batch: int

    @property
    def name(self) -> str:
        return f"{self.kind}{self.tokens}"


def works_of(prompts: Sequence[int], texts: Sequence[int], batches: Sequence[int]) -> list[Work]:
    """One for each length, 0 for none, and batch."""
    kinds = [(kind, tokens) for kind, lengths in ((PROMPT, prompts), (TEXT, texts)) for tokens in lengths if tokens]
    return [Work(kind, tokens, batch) for batch in batches for kind, tokens in kinds]


def weight_bytes(model: xLSTMLarge) -> int:
    return sum(x.numel() * x.element_size() for x in model.state_dict().values())


def weights_text(model: xLSTMLarge) -> str:
    """The dtype of the weights, and what quantised ones are stored as."""
    dtype = str(model.dtype).removeprefix("torch.")
    return dtype if model.quantization is None else f"{model.quantization.q_name}, {dtype}"


def started(model: xLSTMLarge, test: Work, repetitions: int) -> Call:
    """A call that is one repetition. A work of kind TEXT allows so many calls before its text ends."""
    rng = torch.Generator().manual_seed(0)
    length = test.tokens if test.kind == PROMPT else 1
    prompt = torch.randint(model.config.vocab_size, (test.batch, length), generator=rng).to(model.device)
    if test.kind == PROMPT:
        return lambda: Stream(model, test.batch).feed(prompt)
    stream = Stream(model, test.batch)
    stream.feed(prompt)
    text = stream.tokens(1 + repetitions * test.tokens, Sampling(temperature=0.0))
    next(text)  # follows from the prompt: every later one is a step of the model
    return lambda: deque(islice(text, test.tokens), maxlen=0)


def measure(
    model: xLSTMLarge, test: Work, repetitions: int, machine: Machine, advance: Callable[[float], None]
) -> dict[str, Any]:
    """The result of a test. advance: gets the fraction of it that is done."""
    calls: list[Call] = []
    started(model, Work(test.kind, 1, 1), 1)()  # loads what a process loads once, which is no test's memory

    def first() -> None:  # not timed: it makes and compiles what is made once
        calls.append(started(model, test, 1 + repetitions))
        calls[0]()

    added = _added_bytes(machine, first)
    if not calls:
        first()
    samples = []
    for _ in range(repetitions):
        samples.append(test.batch * test.tokens / machine.seconds(calls[0], 1))
        advance(1 / repetitions)
    return {
        "test": test.name,
        "batch": test.batch,
        "tokens": test.tokens,
        "tokens_per_second": statistics.mean(samples),
        "deviation": statistics.stdev(samples) if repetitions > 1 else 0.0,
        "samples": samples,
        "peak_bytes": None if added is None else weight_bytes(model) + added,
    }


def _added_bytes(machine: Machine, call: Call) -> int | None:
    """The peak memory of a call beyond the weights; None if the system does not report it."""
    if machine.gpu:
        return machine.peak_bytes(call)
    try:
        return growth_of(call)
    except MemoryUnknown:
        return None


def facts_of(model: xLSTMLarge, name: str) -> dict[str, Any]:
    return {
        "model": name,
        "parameters": model.num_parameters(),
        "weights": weights_text(model),
        "weight_bytes": weight_bytes(model),
        "device": str(model.device),
    }


def table(facts: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    count = facts["parameters"]
    parameters = f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"
    model_columns = (facts["model"], parameters, f"{facts['weights']}, {_mib(facts['weight_bytes'])}")
    return lines_of(
        COLUMNS,
        [
            (
                *model_columns,
                str(row["batch"]),
                row["test"],
                f"{short(row['tokens_per_second'], 4)} ± {short(row['deviation'])}",
                UNKNOWN if row["peak_bytes"] is None else _mib(row["peak_bytes"]),
            )
            for row in rows
        ],
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
