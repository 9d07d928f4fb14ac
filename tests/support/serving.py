# SPDX-License-Identifier: Apache-2.0
"""Small models for the engine, and who waits for its outputs."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from support.peer_models import small_model
from xlstm_hip.models import xLSTMLarge
from xlstm_hip.models.config_files import SpecialTokens
from xlstm_hip.models.text import TokenLogprob
from xlstm_hip.models.tokenizer import BYTES
from xlstm_hip.serving import Engine, EngineConfig, Output, Request, SamplingParams

EOS = 2
UNLIKE: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.5},
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"seed": 3, "temperature": 1.3, "min_p": 0.05},
    {"seed": 4, "repetition_penalty": 1.2},
    {"seed": 5, "logit_bias": {3: -100, 200: 5.0}},
    {"seed": 6, "presence_penalty": 1.0, "frequency_penalty": 0.5},
]
SMALL_ENGINE: dict[str, Any] = {"slots": 4, "prefill_chunk": 16, "token_budget": 32}


def serving_model(dtype: torch.dtype = torch.float32, **changes: Any) -> xLSTMLarge:
    """Reads bytes; two blocks."""
    model = small_model(dtype=dtype, **{"embedding_dim": 64, "num_blocks": 2, "vocab_size": 256, **changes})
    model.special_tokens = SpecialTokens(bos=0, eos=(EOS,), pad=1)
    return model


def engine_of(model: xLSTMLarge, **changes: Any) -> Engine:
    return Engine(model, BYTES, EngineConfig(**{**SMALL_ENGINE, **changes}))


class Answers:
    """Collects outputs by request, and waits for the last ones. Checks their order."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Output]] = {}
        self._over = threading.Condition()

    def __call__(self, output: Output) -> None:
        with self._over:
            outputs = self.outputs.setdefault(output.id, [])
            assert not outputs or outputs[-1].finish_reason is None, "an output after the last one"
            outputs.append(output)
            before = outputs[0].new_tokens - len(outputs[0].tokens)  # of a request that goes on with an answer
            assert output.new_tokens == before + sum(len(one.tokens) for one in outputs)
            self._over.notify_all()

    def wait(self, *ids: str, seconds: float = 30.0) -> list[Output]:
        """The last output of each."""
        with self._over:
            assert self._over.wait_for(lambda: all(self._is_over(id) for id in ids), seconds), "no last output came"
            return [self.outputs[id][-1] for id in ids]

    def wait_for_tokens(self, id: str, count: int, seconds: float = 30.0) -> None:
        with self._over:
            assert self._over.wait_for(lambda: len(self.tokens(id)) >= count, seconds)

    def _is_over(self, id: str) -> bool:
        return id in self.outputs and self.outputs[id][-1].finish_reason is not None

    def tokens(self, id: str) -> list[int]:
        return [token for output in self.outputs.get(id, ()) for token in output.tokens]

    def text(self, id: str) -> str:
        return "".join(output.text for output in self.outputs[id])

    def logprobs(self, id: str) -> list[TokenLogprob]:
        return [one for output in self.outputs[id] for one in output.logprobs or ()]


def ask(engine: Engine, *requests: Request) -> Answers:
    """Submits all at once, and waits for their ends."""
    answers = Answers()
    for request in requests:
        engine.submit(request, answers)
    answers.wait(*(request.id for request in requests))
    return answers


@contextmanager
def paused(engine: Engine) -> Iterator[None]:
    """The engine's next step waits until the block ends: what is submitted in it comes at once."""
    go_on, waits = threading.Event(), threading.Event()

    def hold(output: Output) -> None:
        waits.set()
        assert go_on.wait(30)

    engine.submit(Request("pause", [1], SamplingParams(max_tokens=1)), hold)
    assert waits.wait(30)
    try:
        yield
    finally:
        go_on.set()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def all_of(requests: Sequence[Request]) -> list[str]:
    return [request.id for request in requests]


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until something is true, or fails."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"still not true after {seconds} s"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_engine(changes: dict[str, Any], fault: str, number: int) -> Engine:
    """For a replica: with changes of SMALL_ENGINE, and a fault.

    broken     replica 1 does not load
    deadly     a prompt of tokens 66 ends the process after three tokens
    stuck      the engine makes no step after ten tokens of a request that began in it
    failing    the engine fails after ten tokens of a request that began in it
    """
    torch.set_num_threads(1)
    if fault == "broken" and number == 1:
        raise RuntimeError(f"planted in replica {number}")
    engine = engine_of(serving_model(torch.float64), **changes)
    step = engine._stepper.step

    def faulty() -> bool:
        for running in list(engine._stepper.live.values()):
            if fault == "deadly" and running.request.tokens[0] == 66 and len(running.generated) > 2:
                os._exit(9)
            if len(running.generated) == 10 and not running.request.answered:
                if fault == "failing":
                    raise ValueError("planted")
                if fault == "stuck":
                    time.sleep(1000)
        return step()

    engine._stepper.step = faulty  # type: ignore[method-assign]
    return engine.start()


def unlike_requests(**more: Any) -> list[Request]:
    """Prompts of one token up to several chunks, answers of one token up to many."""
    lengths, tokens = (1, 2, 15, 16, 17, 32, 47, 100), (40, 1, 2, 30, 12, 50, 7, 20)
    return [
        Request(str(n), prompt_of(length, n), SamplingParams(max_tokens=most, ignore_eos=True, **params, **more))
        for n, (params, length, most) in enumerate(zip(UNLIKE, lengths, tokens, strict=True))
    ]


def out_of_memory_at(monkeypatch: pytest.MonkeyPatch, name: str, calls: set[int]) -> list[int]:
    """These calls of a method of the model spoil the state that they were given, and run out of memory."""
    method, count = getattr(xLSTMLarge, name), [0]

    def failing(self: xLSTMLarge, x: torch.Tensor, state: Any = None, *rest: Any) -> Any:
        count[0] += 1
        if count[0] in calls:
            state[0][0].fill_(float("nan"))
            raise torch.OutOfMemoryError("planted")
        return method(self, x, state, *rest)

    monkeypatch.setattr(xLSTMLarge, name, failing)
    return count
