# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine with the plug-in against transformers: batches, parts of prompts, blocks that others had before."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: ./scripts/test vllm")

from support.vllm_engine import (  # noqa: E402
    LOGPROBS,
    Answer,
    Truth,
    TruthInBfloat16,
    answer_of,
    check_answers,
    check_errors,
    demo_checkpoint,
    small_checkpoint,
    some_prompts,
)
from xlstm_hip.integrations.vllm.model import XLSTMForCausalLM  # noqa: E402
from xlstm_hip.integrations.vllm.states import BatchRowsBuilder, BlockState  # noqa: E402

CHECKPOINTS = {"demo": demo_checkpoint, "small": small_checkpoint}
Start = Callable[..., Any]


Checkpoint = tuple[Path, Truth]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    folders = {name: make(tmp_path_factory.mktemp("checkpoint") / name) for name, make in CHECKPOINTS.items()}
    return {name: (folder, Truth(folder)) for name, folder in folders.items()}


@pytest.fixture(params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints[request.param]


@pytest.fixture
def small(checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints["small"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an engine, which ends with the test."""
    started = []

    def started_engine(folder: Path, **options: Any) -> Any:
        defaults = {"dtype": "float32", "max_model_len": 2048, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 24}
        engine = vllm.LLM(str(folder), disable_log_stats=True, **defaults | options)
        started.append(engine)
        return engine

    yield started_engine
    for engine in started:
        engine.llm_engine.engine_core.shutdown()


def sampling(**options: Any) -> Any:
    defaults = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "logprobs": LOGPROBS, "detokenize": False}
    return vllm.SamplingParams(**defaults | options)


def answers_to(engine: Any, prompts: list[list[int]], **options: Any) -> list[Answer]:
    texts = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [answer_of(output) for output in engine.generate(texts, sampling(**options), use_tqdm=False)]


def model_in(engine: Any) -> XLSTMForCausalLM:
    (model,) = engine.apply_model(lambda model: model)
    return model


def stepped(engine: Any, arrivals: dict[int, list[int]], before: Callable[[int], None] = lambda step: None) -> list:
    """Prompts that come at these steps, and their answers; `before` is called ahead of each step."""
    core, ended, waiting = engine.llm_engine, {}, dict(arrivals)
    step = 0
    while waiting or core.has_unfinished_requests():
        if step in waiting:
            core.add_request(str(step), {"prompt_token_ids": waiting.pop(step)}, sampling())
        before(step)
        ended |= {output.request_id: output for output in core.step() if output.finished}
        step += 1
    return [answer_of(ended[str(step)]) for step in arrivals]


def test_the_entry_point_is_installed() -> None:
    (found,) = [x for x in importlib.metadata.entry_points(group="vllm.general_plugins") if x.name == "xlstm_hip"]
    assert found.load().__module__ == "xlstm_hip.integrations.vllm"


def test_greedy_answers_are_those_of_transformers(checkpoint: Checkpoint, start: Start) -> None:
    """One prompt, then prompts of all lengths together, one token included."""
    folder, truth = checkpoint
    engine = start(folder)
    for lengths in ((17,), (1, 2, 63, 64, 65, 200, 1, 30)):
        prompts = some_prompts(lengths)
        check_answers(truth, prompts, answers_to(engine, prompts))


def test_prompts_in_parts(checkpoint: Checkpoint, start: Start) -> None:
    """No step has room for a prompt; what is left of the room beside rows that decode is of any size, one included."""
    folder, truth = checkpoint
    engine = start(folder, max_num_batched_tokens=33, max_num_seqs=4)
    prompts = some_prompts((500, 32, 33, 34, 100, 66))
    check_answers(truth, prompts, answers_to(engine, prompts))


def test_more_requests_than_blocks(checkpoint: Checkpoint, start: Start) -> None:
    """Three blocks, and one that vLLM keeps for itself: requests wait, and begin in a block that another one left."""
    folder, truth = checkpoint
    engine = start(folder, num_gpu_blocks_override=4)
    prompts = some_prompts((40, 1, 7, 90, 3, 25, 1, 12))
    check_answers(truth, prompts, answers_to(engine, prompts))


def test_prompts_beside_rows_that_decode(checkpoint: Checkpoint, start: Start) -> None:
    folder, truth = checkpoint
    prompts = some_prompts((20, 70, 1, 300, 5, 33))
    arrivals = dict(zip((0, 2, 3, 9, 10, 25), prompts, strict=True))
    check_answers(truth, prompts, stepped(start(folder, max_num_batched_tokens=64), arrivals))


def test_preempted_requests_are_read_again(small: Checkpoint, start: Start) -> None:
    """Memory never makes vLLM preempt one of these, as none grows; a reset of its caches does."""
    folder, truth = small
    engine, prompts = start(folder, max_num_batched_tokens=64), some_prompts((20, 150, 30))
    resets = []

    def before(step: int) -> None:
        if step in (5, 11):
            resets.append(engine.llm_engine.reset_prefix_cache(reset_running_requests=True))

    answers = stepped(engine, dict(zip((0, 1, 2), prompts, strict=True)), before)
    assert resets == [True, True]
    check_answers(truth, prompts, answers)


def test_without_the_decode_engine(small: Checkpoint, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLSTM_HIP_DECODE_OP_ROWS=0 has steps go layer by layer, as those of many rows do."""
    folder, truth = small
    monkeypatch.setenv("XLSTM_HIP_DECODE_OP_ROWS", "0")
    engine, prompts = start(folder), some_prompts((20, 1, 90))
    check_answers(truth, prompts, answers_to(engine, prompts))


def test_sampling(small: Checkpoint, start: Start) -> None:
    """A seed repeats its answer, in another batch too; log-probabilities are those of the tokens drawn."""
    folder, truth = small
    engine, prompts = start(folder), some_prompts((20, 50))
    drawn = answers_to(engine, prompts, temperature=1.0, seed=5)
    check_answers(truth, prompts, drawn, greedy=False)
    alone = answers_to(engine, prompts[1:], temperature=1.0, seed=5)
    assert alone[0].tokens == drawn[1].tokens
    assert answers_to(engine, prompts, temperature=1.0, seed=6)[0].tokens != drawn[0].tokens


def test_log_probabilities_of_a_prompt(small: Checkpoint, start: Start) -> None:
    folder, truth = small
    (prompt,) = some_prompts((90,))
    engine = start(folder, max_num_batched_tokens=32)
    (output,) = engine.generate([{"prompt_token_ids": prompt}], sampling(prompt_logprobs=0), use_tqdm=False)
    steps = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
    found = torch.tensor([step[token].logprob for token, step in steps])
    theirs, wide = truth.of(prompt)
    at = range(len(prompt) - 1), prompt[1:]
    check_errors(found, theirs[at], wide[at])


def test_bfloat16_weights(small: Checkpoint, start: Start) -> None:
    folder, _ = small
    engine, prompts = start(folder, dtype="bfloat16"), some_prompts((300, 20))
    answers = answers_to(engine, prompts, max_tokens=60)
    assert {x.dtype for x in model_in(engine).states[0].kv_cache} == {torch.float32}
    check_answers(TruthInBfloat16(folder), prompts, answers, greedy=False)


def _wrong_block(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = BlockState.read, BlockState.write
    monkeypatch.setattr(BlockState, "read", lambda self, rows: read(self, rows._replace(run=None)))

    def write_next(self: BlockState, rows: Any, state: Any) -> None:
        write(self, rows._replace(run=None, blocks=rows.blocks.roll(1)), state)

    monkeypatch.setattr(BlockState, "write", write_next)


def _state_of_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    read = BlockState.read
    monkeypatch.setattr(BlockState, "read", lambda self, rows: read(self, rows._replace(new=rows.new[:0])))


def _state_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a prompt begins a state."""
    made = BatchRowsBuilder._rows

    def rows(self: BatchRowsBuilder, starts: Any, is_new: Any, blocks: Any, begin: int, end: int) -> Any:
        longer = torch.diff(starts) > 1
        return made(self, starts, is_new | longer, blocks, begin, end)

    monkeypatch.setattr(BatchRowsBuilder, "_rows", rows)


@pytest.mark.parametrize("plant", (_wrong_block, _state_of_another_request, _state_lost))
def test_a_planted_bug_is_seen(
    small: Checkpoint, start: Start, monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None]
) -> None:
    folder, truth = small
    plant(monkeypatch)
    engine = start(folder, max_num_batched_tokens=64, num_gpu_blocks_override=4)
    prompts = some_prompts((200, 20, 9, 30))
    answers = answers_to(engine, prompts)
    with pytest.raises(AssertionError):
        check_answers(truth, prompts, answers)
