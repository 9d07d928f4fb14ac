# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as a process, as a user starts it, and OpenAI's client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: ./scripts/test vllm")

from support.serving import free_port, until  # noqa: E402
from support.vllm_engine import Answer, Truth, check_answers, demo_checkpoint  # noqa: E402

PROMPT = "In the beginning"


def vllm_serve(folder: Path, port: int, log: Path, *options: object) -> subprocess.Popen[bytes]:
    """With vLLM's defaults: processes of its own, and torch.compile."""
    of_tests = ("VLLM_ENABLE_V1_MULTIPROCESSING", "TORCH_COMPILE_DISABLE")
    environment = {name: value for name, value in os.environ.items() if name not in of_tests}
    command = [Path(sys.executable).with_name("vllm"), "serve", folder, "--port", port, "--host", "127.0.0.1", *options]
    with log.open("wb") as output:
        return subprocess.Popen(
            list(map(str, command)), env=environment, stdout=output, stderr=output, start_new_session=True
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_checkpoint(tmp_path_factory.mktemp("checkpoint") / "demo")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[openai.OpenAI]:
    port, log = free_port(), folder.parent / "log.txt"
    options = ("--dtype", "float32", "--max-model-len", 2048, "--kv-cache-memory-bytes", 1 << 24)
    process = vllm_serve(folder, port, log, "--served-model-name", "demo", *options)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(ready, 300)
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    finally:
        process.terminate()
        process.wait(60)


def test_completions(client: openai.OpenAI, folder: Path) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    answer = client.completions.create(
        model="demo", prompt=[PROMPT, "And"], max_tokens=30, temperature=0, logprobs=3, extra_body={"ignore_eos": True}
    )
    prompts, answers = [], []
    for prompt, choice in zip((PROMPT, "And"), answer.choices, strict=True):
        assert choice.finish_reason == "length" and choice.logprobs is not None
        tokens = list(choice.text.encode())
        assert len(tokens) == 30
        chosen = [{token: logprob} for token, logprob in zip(tokens, choice.logprobs.token_logprobs or (), strict=True)]
        prompts.append(list(prompt.encode()))
        answers.append(Answer(tokens, chosen))
    check_answers(Truth(folder), prompts, answers)


def test_a_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    options = {"model": "demo", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**options).choices[0].text
    parts = [event.choices[0].text for event in client.completions.create(**options, stream=True)]
    assert "".join(parts) == whole and len(parts) > 10


def test_sampling_and_stops(client: openai.OpenAI) -> None:
    options = {"model": "demo", "prompt": PROMPT, "max_tokens": 60}
    texts = {seed: client.completions.create(**options, temperature=1, seed=seed).choices[0].text for seed in (1, 2)}
    assert texts[1] == client.completions.create(**options, temperature=1, seed=1).choices[0].text != texts[2]
    stopped = client.completions.create(**options, temperature=0, stop=" ").choices[0]
    assert stopped.finish_reason == "stop" and " " not in stopped.text


def test_chat_needs_a_template(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model="demo", messages=messages)
    template = "{% for m in messages %}{{ m.role }} said: {{ m.content }}\n{% endfor %}And he said"
    with pytest.raises(openai.BadRequestError, match="template"):  # which the server does not trust a client with
        client.chat.completions.create(model="demo", messages=messages, extra_body={"chat_template": template})


def test_too_long_a_text(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model="demo", prompt=PROMPT * 200, max_tokens=30)


def test_an_option_that_is_refused_ends_the_command(folder: Path, tmp_path: Path) -> None:
    process = vllm_serve(folder, free_port(), tmp_path / "log.txt", "--tensor-parallel-size", 2)
    assert process.wait(300) != 0
    assert "tensor_parallel_size: expected 1 for an xLSTM, got 2" in (tmp_path / "log.txt").read_text()
