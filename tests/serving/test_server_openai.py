# SPDX-License-Identifier: Apache-2.0
"""The official client's own calls against the demo model, with the texts that generate_text has without a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch

from support.served_model import DEMO, TEMPLATE, ServedModel, served_model
from xlstm_hip._core.extras import is_installed
from xlstm_hip.models import generate_text, load_pretrained, xLSTMLarge
from xlstm_hip.models.chat_template import ChatTemplate
from xlstm_hip.models.tokenizer import BYTES

PROMPT = "And it came to pass"
MESSAGES: list[Any] = [{"role": "system", "content": "Moses"}, {"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    with served_model(tmp_path_factory.mktemp("served"), "--max-new-tokens", 200) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: ServedModel) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return load_pretrained(DEMO, torch.float32, weight_mode="fused", progress=False)


def test_completions(client: openai.OpenAI, model: xLSTMLarge) -> None:
    (want,) = generate_text(model, BYTES, [PROMPT], 40, logprobs=2)
    answer = client.completions.create(model="demo", prompt=PROMPT, max_tokens=40, temperature=0, logprobs=2)
    choice = answer.choices[0]
    assert choice.text == want.text and choice.finish_reason == want.finish_reason == "length"
    assert choice.logprobs is not None and want.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.tokens == [x.text for x in want.logprobs]
    assert choice.logprobs.token_logprobs == pytest.approx([x.logprob for x in want.logprobs], abs=1e-4)
    assert answer.usage is not None and answer.usage.prompt_tokens == 1 + len(PROMPT)
    stream = client.completions.create(model="demo", prompt=PROMPT, max_tokens=40, temperature=0, stream=True)
    assert "".join(event.choices[0].text for event in stream) == want.text


def test_stop_strings(client: openai.OpenAI, model: xLSTMLarge) -> None:
    (whole,) = generate_text(model, BYTES, [PROMPT], 60)
    stop = whole.text[20:24]
    (want,) = generate_text(model, BYTES, [PROMPT], 60, stop=[stop])
    for stream in (False, True):
        answer: Any = client.completions.create(
            model="demo", prompt=PROMPT, max_tokens=60, temperature=0, stop=[stop, "\n\n"], stream=stream
        )
        choices = [event.choices[0] for event in answer] if stream else [answer.choices[0]]
        assert "".join(choice.text for choice in choices) == want.text and stop not in want.text
        assert choices[-1].finish_reason == "stop" and choices[-1].stop_reason == stop


def test_chats(client: openai.OpenAI, model: xLSTMLarge) -> None:
    text = ChatTemplate(TEMPLATE, {"bos_token": "\0"}, "template").render(MESSAGES)
    (want,) = generate_text(model, BYTES, [text], 50)
    ask: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 50}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == want.text
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None
    assert bytes(b for x in found.content for b in x.bytes or ()).decode() == want.text
    assert all(len(x.top_logprobs) == 2 and x.top_logprobs[0].logprob == x.logprob for x in found.content)
    events = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(event.choices[0].delta.content or "" for event in events[:-1]) == want.text
    assert events[-1].usage.completion_tokens == 50 and events[-1].usage.prompt_tokens == len(text)
    # The second turn begins with what was read: its state was kept.
    messages = [*MESSAGES, {"role": "assistant", "content": want.text}, {"role": "user", "content": "And why?"}]
    again = client.chat.completions.create(**ask | {"messages": messages})
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens is not None


def test_seeds_and_choices(client: openai.OpenAI) -> None:
    """One seed, one text, whatever runs beside; choices of one request differ."""
    ask: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "max_tokens": 40, "temperature": 1.0}
    several = client.completions.create(**ask, n=3, seed=11)
    texts = [choice.text for choice in several.choices]
    assert len(set(texts)) == 3
    found: list[str] = []

    def one() -> None:
        found.append(client.completions.create(**ask, seed=11).choices[0].text)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == texts[:1] * 4
    assert client.completions.create(**ask, seed=12).choices[0].text == texts[1]
    without = {client.completions.create(**ask).choices[0].text for _ in range(3)}
    assert len(without) == 3


def test_samplers_have_an_effect(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "max_tokens": 30, "temperature": 1.5, "seed": 3}
    greedy = client.completions.create(**ask | {"temperature": 0}).choices[0].text
    for more in ({"top_p": 1e-6}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}):
        assert client.completions.create(**ask | more).choices[0].text == greedy
    biased = client.completions.create(**ask, logit_bias={str(ord("z")): 100}).choices[0].text
    assert biased == "z" * 30
    ended = client.completions.create(**ask | {"extra_body": {"stop_token_ids": [ord(greedy[5])]}, "temperature": 0})
    assert ended.choices[0].finish_reason == "stop" and len(ended.choices[0].text) <= 6


@pytest.mark.skipif(not is_installed("xgrammar"), reason="needs the extra structured")
def test_answers_of_a_given_form(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Moses", "Aaron"]}, "of_age": {"type": "boolean"}},
        "required": ["name", "of_age"],
        "additionalProperties": False,
    }
    # Any amount of space may stand in JSON, and so small a model likes it.
    no_space = {str(space): -100 for space in b" \t\r\n"}
    ask: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 100, "seed": 1, "logit_bias": no_space}
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    answer = client.chat.completions.create(**ask, response_format=form)
    found = json.loads(answer.choices[0].message.content or "")
    assert found["name"] in ("Moses", "Aaron") and isinstance(found["of_age"], bool) and len(found) == 2
    assert answer.choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(**ask, extra_body={"guided_regex": "[0-9]{4}"})
    assert (answer.choices[0].message.content or "").isdigit() and len(answer.choices[0].message.content or "") == 4
    answer = client.chat.completions.create(**ask, extra_body={"guided_choice": ["yes", "no"]})
    assert answer.choices[0].message.content in ("yes", "no")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ask, extra_body={"guided_regex": "[0-9"})
    assert refused.value.param == "guided_regex"


def test_what_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="tools: not supported"):
        client.chat.completions.create(model="demo", messages=MESSAGES, tools=[{"type": "function"}])  # type: ignore
    with pytest.raises(openai.NotFoundError, match="embeddings: not supported"):
        client.embeddings.create(model="demo", input="a")
    with pytest.raises(openai.BadRequestError, match="max_tokens: expected 1 to 200"):
        client.completions.create(model="demo", prompt="a", max_tokens=201)
    with pytest.raises(openai.BadRequestError, match="top_logprobs: expected at most 20"):
        client.chat.completions.create(model="demo", messages=MESSAGES, logprobs=True, top_logprobs=21)


def test_models_and_tokens(client: openai.OpenAI, server: ServedModel) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert '"model": "demo"' in server.log


def test_the_asynchronous_client(server: ServedModel) -> None:
    import asyncio

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.completions.create(
                    model="demo", prompt=PROMPT, max_tokens=20, seed=number, stream=True
                )
                return "".join([event.choices[0].text async for event in stream])

            return await asyncio.gather(*(one(number) for number in range(32)))

    texts = asyncio.run(ask())
    assert len(texts) == 32 and all(texts)
