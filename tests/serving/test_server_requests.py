# SPDX-License-Identifier: Apache-2.0
"""The server's API with an engine that is none: what the official client sends and gets, what is refused and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from support.fake_engine import FakeEngine, served_by
from support.http_server import LocalServer, running
from support.serving import until
from xlstm_hip.serving import EngineClosed, QueueFull, Structure
from xlstm_hip.serving.server import Limits, Served, openai_types

ENGINE = FakeEngine()
HELLO = [{"role": "user", "content": "hello"}]
LIMITS = Limits(max_prompt_tokens=100, max_new_tokens=50, max_choices=8, max_body_bytes=4000)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with running(served_by(ENGINE), LIMITS) as local:
        yield local


@pytest.fixture(scope="module")
def client(server: LocalServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="hello", max_tokens=4)
    assert answer.choices[0].text == "abcd" and answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion" and answer.model == "fake" and answer.id.startswith("cmpl-")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 4, 10)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert ENGINE.requests[-1].tokens == (0, *b"hello")  # after a BOS token
    client.completions.create(model="fake", prompt="hello", extra_body={"add_special_tokens": False})
    assert ENGINE.requests[-1].tokens == tuple(b"hello") and ENGINE.requests[-1].params.max_tokens == 16


def test_prompts_and_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt=["a", "bc"], n=2, max_tokens=2, seed=5, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == ["aab", "aab", "bcab", "bcab"]
    assert answer.usage is not None and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2 + 3, 8)
    # The fake engine's threads may submit in any order: choices of one seed have seeds of their own.
    assert sorted(request.params.seed or 0 for request in ENGINE.requests[-4:]) == [5, 5, 6, 6]
    for prompt, tokens in (([5, 6], [(5, 6)]), ([[5], [6, 7]], [(5,), (6, 7)])):
        client.completions.create(model="fake", prompt=prompt, max_tokens=1)
        assert [request.tokens for request in ENGINE.requests[-len(tokens) :]] == tokens  # as they are
    answer = client.completions.create(model="fake", prompt=[104, 105], max_tokens=1, echo=True)
    assert answer.choices[0].text == "hia"


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    found = client.completions.create(model="fake", prompt="a", max_tokens=3, logprobs=2).choices[0].logprobs
    assert found is not None and found.tokens == ["a", "b", "c"] and found.text_offset == [0, 1, 2]
    assert found.token_logprobs == [-9999.0, -0.5, -0.5]  # minus infinity is no JSON
    assert found.top_logprobs is not None and found.top_logprobs[1] == {"b": -49.5, "c": -50.0}
    found = client.completions.create(model="fake", prompt="a", max_tokens=3, logprobs=0).choices[0].logprobs
    assert found is not None and found.top_logprobs is None and ENGINE.requests[-1].params.logprobs == 0
    events = list(client.completions.create(model="fake", prompt="a", max_tokens=3, logprobs=1, stream=True))
    offsets = [event.choices[0].logprobs.text_offset for event in events if event.choices[0].logprobs]
    assert offsets == [[0], [1], [2]]


def test_a_stream_of_completions(client: openai.OpenAI) -> None:
    events = list(client.completions.create(model="fake", prompt="hi", max_tokens=5, stream=True, echo=True))
    assert "".join(event.choices[0].text for event in events) == "hiabcde"
    assert [event.choices[0].finish_reason for event in events] == [None] * 4 + ["length"]
    assert len({event.id for event in events}) == 1 and all(event.usage is None for event in events)


def test_a_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "developer", "content": "Be kind."}, *HELLO]
    answer = client.chat.completions.create(model="fake", messages=messages, max_completion_tokens=4)
    choice = answer.choices[0]
    assert choice.message.content == "abcd" and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and choice.logprobs is None and answer.object == "chat.completion"
    assert bytes(ENGINE.requests[-1].tokens) == b"\0system: Be kind.\nuser: hello\nassistant:"
    # An answer may be sent back as the client has it, and text as parts.
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [*HELLO, choice.message.model_dump(), {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="fake", messages=messages)
    assert bytes(ENGINE.requests[-1].tokens) == b"\0user: hello\nassistant: abcd\nuser: one\ntwo\nassistant:"
    assert answer.usage is not None and answer.usage.completion_tokens == 50  # the server's limit


def test_a_stream_of_a_chat(client: openai.OpenAI) -> None:
    events = list(
        client.chat.completions.create(
            model="fake", messages=HELLO, max_tokens=4, n=2, stream=True, logprobs=True, top_logprobs=1,
            stream_options={"include_usage": True},
        )  # type: ignore[call-overload]
    )  # fmt: skip
    *events, last = events
    assert last.choices == [] and last.usage.completion_tokens == 8 and last.usage.prompt_tokens == 23
    for index in range(2):
        own = [event.choices[0] for event in events if event.choices[0].index == index]
        assert own[0].delta.role == "assistant" and own[-1].finish_reason == "length"
        assert "".join(choice.delta.content or "" for choice in own) == "abcd"
        tokens = [choice.logprobs.content[0] for choice in own if choice.logprobs]
        assert [(x.token, x.bytes, x.top_logprobs[0].token) for x in tokens[:2]] == [
            ("a", [97], "a"), ("b", [98], "b"),
        ]  # fmt: skip
        assert tokens[0].logprob == -9999.0


def test_every_event_has_usage_if_asked(http: httpx.Client) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 3, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = http.post("/v1/completions", json=body | {"stream_options": options}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 3 and text.endswith("data: [DONE]\n\n")


def test_what_is_asked_for_reaches_the_engine(client: openai.OpenAI) -> None:
    more = {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True, "stop_token_ids": [7]}
    client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=2, temperature=0.5, top_p=0.9, presence_penalty=0.3, user="someone",
        frequency_penalty=-0.4, logit_bias={"65": 2}, seed=3, stop=["x", "yz"], service_tier="auto",
        extra_body=more | {"priority": 4, "session": "mine", "cache_salt": "salt"},
    )  # type: ignore[call-overload]  # fmt: skip
    request, params = ENGINE.requests[-1], ENGINE.requests[-1].params
    assert (params.temperature, params.top_p, params.presence_penalty, params.frequency_penalty) == (
        0.5,
        0.9,
        0.3,
        -0.4,
    )
    assert (params.top_k, params.min_p, params.repetition_penalty, params.ignore_eos) == (0, 0.1, 1.2, True)
    assert (params.logit_bias, params.seed, params.stop, params.stop_token_ids) == ({65: 2.0}, 3, ("x", "yz"), (7,))
    assert (request.priority, request.session, request.cache_salt) == (4, "/mine", "salt")
    client.completions.create(model="fake", prompt="a", stop="end")
    assert ENGINE.requests[-1].params.stop == ("end",)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRUCTURES: list[tuple[dict[str, Any], Structure | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, Structure("json_object")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
        Structure("json_schema", SCHEMA),
    ),
    ({"guided_json": SCHEMA}, Structure("json_schema", SCHEMA)),
    ({"guided_regex": "a+"}, Structure("regex", "a+")),
    ({"guided_choice": ["a", "b"]}, Structure("choice", ("a", "b"))),
    ({"guided_grammar": 'root ::= "a"'}, Structure("grammar", 'root ::= "a"')),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, Structure("json_schema", json.dumps(SCHEMA))),
    ({"structured_outputs": {"choice": ["a"]}}, Structure("choice", ("a",))),
    ({"structured_outputs": {"json_object": True}}, Structure("json_object")),
]


@pytest.mark.parametrize(("fields", "structure"), STRUCTURES, ids=[str(*fields) for fields, _ in STRUCTURES])
def test_structures(fields: dict[str, Any], structure: Structure | None, http: httpx.Client) -> None:
    body = {"model": "fake", "messages": HELLO, "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body | fields).status_code == 200
    assert ENGINE.requests[-1].params.structure == structure


WRONG: list[tuple[str, dict[str, Any], str, str]] = [  # path, fields, the field that is named, words
    ("completions", {"prompt": None}, "prompt", "required, but missing"),
    ("completions", {"model": None}, "model", "required, but missing"),
    ("completions", {"prompt": 5}, "prompt", "expected a string, a list of strings"),
    ("completions", {"prompt": []}, "prompt", "got []"),
    ("completions", {"prompt": ["a", 1]}, "prompt", "got ['a', 1]"),
    ("completions", {"prompt": [True]}, "prompt", "got [True]"),
    ("completions", {"prompt": [[]]}, "prompt", "got [[]]"),
    ("completions", {"prompt": [256]}, "prompt", "expected token ids below 256, got 256"),
    ("completions", {"prompt": [10**30]}, "prompt", "expected token ids below 256"),
    ("completions", {"prompt": "x" * 101}, "prompt", "expected at most 100 tokens, the limit of this server, got 102"),
    ("completions", {"max_tokens": "5"}, "max_tokens", "expected a valid integer, got '5'"),
    ("completions", {"max_tokens": 1.5}, "max_tokens", "expected a valid integer"),
    ("completions", {"max_tokens": True}, "max_tokens", "expected a valid integer, got True"),
    ("completions", {"max_tokens": 0}, "max_tokens", "expected 1 to 50"),
    ("completions", {"max_tokens": 51}, "max_tokens", "expected 1 to 50, the limit of this server, got 51"),
    ("completions", {"temperature": -1}, "temperature", "expected a finite number from 0 up"),
    ("completions", {"temperature": "hot"}, "temperature", "expected a valid number"),
    ("completions", {"top_p": 0}, "top_p", "expected a finite number above 0"),
    ("completions", {"top_k": -2}, "top_k", "expected an integer >= 0"),
    ("completions", {"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
    ("completions", {"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ("completions", {"logit_bias": {"x": 1}}, "logit_bias", "expected token ids as keys, got 'x'"),
    ("completions", {"logit_bias": {"1": 101}}, "logit_bias", "expected numbers from -100 to 100"),
    ("completions", {"logit_bias": [1]}, "logit_bias", "expected an object"),
    ("completions", {"stop": [1]}, "stop", "expected a string or a list of strings"),
    ("completions", {"stop": ""}, "stop", "expected strings of at least one character"),
    ("completions", {"stop_token_ids": [-1]}, "stop_token_ids", "expected a list of token ids"),
    ("completions", {"n": 0}, "n", "greater than or equal to 1"),
    ("completions", {"n": 9}, "n", "expected at most 8 answers, got 1 prompts with n = 9"),
    ("completions", {"seed": 2**63}, "seed", "less than"),
    ("completions", {"stream_options": {"include_usage": True}}, "stream_options", "expected stream = true with it"),
    ("completions", {"stream": "yes"}, "stream", "expected a valid boolean"),
    ("completions", {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
    ("completions", {"best_of": 2}, "best_of", "expected n = 1"),
    ("completions", {"echo": True, "logprobs": 1}, "echo", "expected no logprobs with it"),
    ("completions", {"suffix": "end"}, "suffix", "not supported"),
    ("completions", {"max_token": 5}, "max_token", "unknown field; did you mean max_tokens?"),
    ("completions", {"session": "a", "n": 2}, "session", "expected one answer with it"),
    ("completions", {"response_format": {"type": "xml"}}, "response_format.type", "got 'xml'"),
    ("completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ("completions", {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "got guided_regex too"),
    ("completions", {"guided_regex": ""}, "guided_regex", "expected a regex as a string"),
    ("chat/completions", {"messages": None}, "messages", "required, but missing"),
    ("chat/completions", {"messages": []}, "messages", "expected a list of messages"),
    ("chat/completions", {"messages": [5]}, "messages[0]", "expected an object with role and content"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content", "expected text, got none"),
    ("chat/completions", {"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", "got 'robot'"),
    ("chat/completions", {"messages": [{"role": "tool", "content": ""}]}, "messages[0].role", "calls no tools"),
    ("chat/completions", {"messages": [HELLO[0] | {"x": 1}]}, "messages[0].x", "not a field"),
    ("chat/completions", {"messages": [HELLO[0] | {"tool_calls": [1]}]}, "messages[0].tool_calls", "calls no tools"),
    (
        "chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages[0].content[0].type", "expected 'text', as the model reads no other",
    ),
    ("chat/completions", {"tools": [{"type": "function"}]}, "tools", "not supported: this server calls no tools"),
    ("chat/completions", {"tool_choice": "auto"}, "tool_choice", "not supported"),
    ("chat/completions", {"modalities": ["text", "audio"]}, "modalities", "not supported: the model writes text"),
    ("chat/completions", {"store": True}, "store", "not supported: nothing is stored"),
    ("chat/completions", {"top_logprobs": 3}, "top_logprobs", "expected logprobs = true with it"),
    ("chat/completions", {"logprobs": 3}, "logprobs", "expected a valid boolean"),
    ("chat/completions", {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "expected max_completion_tokens"),
    ("chat/completions", {"max_completion_tokens": 99}, "max_completion_tokens", "expected 1 to 50"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"), WRONG, ids=[f"{param}-{n}" for n, (_, _, param, _) in enumerate(WRONG)]
)
def test_wrong_fields(path: str, fields: dict[str, Any], param: str, words: str, http: httpx.Client) -> None:
    """Nothing reaches the engine."""
    prompt = {"prompt": "a"} if path == "completions" else {"messages": HELLO}
    before = len(ENGINE.requests)
    answer = http.post(f"/v1/{path}", json={"model": "fake"} | prompt | fields)
    assert answer.status_code == 400 and len(ENGINE.requests) == before
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["param"] == param and error["message"].startswith(f"{param}: ") and words in error["message"]


def test_values_that_ask_for_nothing(http: httpx.Client) -> None:
    """null is as good as leaving a field out; and what this server does anyway may be asked for."""
    nothing = {"tools": None, "tool_choice": "none", "modalities": ["text"], "store": False, "stop": None, "seed": None}
    body = {"model": "fake", "messages": HELLO, "max_tokens": 1, "response_format": None}
    assert http.post("/v1/chat/completions", json=body | nothing).status_code == 200


BODIES: list[tuple[bytes, int, str]] = [
    (b"", 400, "expected JSON"),
    (b"{", 400, "expected JSON: EOF"),
    (b"[1]", 400, "expected a JSON object, got list"),
    (b'"text"', 400, "expected a JSON object, got str"),
    (b"{'model': 1}", 400, "expected JSON"),
    (b'{"model": "fake", "prompt": "\xff"}', 400, "expected UTF-8, got byte 0xff at position 29"),
    (b'{"model": "fake", "prompt": "\\ud800"}', 400, "expected JSON"),  # half a character
    (b'{"model": "fake", "prompt": "a", "temperature": NaN}', 400, "temperature: expected a finite number"),
    (b'{"model": "fake", "prompt": "a", "temperature": 1e999}', 400, "temperature: expected a finite number"),
    (b"[" * 3000, 400, "recursion limit"),
    (b'{"prompt": "' + b"x" * 4000 + b'"}', 413, "expected at most 4000 bytes"),
]


@pytest.mark.parametrize(("body", "status", "words"), BODIES, ids=[repr(body[:30]) for body, _, _ in BODIES])
def test_malformed_bodies(body: bytes, status: int, words: str, http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status and words in answer.json()["error"]["message"]

    def parts() -> Iterator[bytes]:
        yield from (body[n : n + 100] for n in range(0, len(body), 100))

    chunked = http.post("/v1/completions", content=parts(), headers={"Content-Type": "application/json"})
    assert chunked.status_code == status  # without a length that is said before


def test_other_types_of_content(http: httpx.Client) -> None:
    """A page of another site can send these without asking."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = http.post("/v1/completions", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 415 and "expected application/json" in answer.json()["error"]["message"]
    answer = http.post("/v1/completions", content=b"{}", headers={"Content-Type": "application/json; charset=utf-8"})
    assert answer.status_code == 400


def test_lenient_servers_leave_unknown_fields_out() -> None:
    with running(served_by(ENGINE), LIMITS, lenient=True) as server, httpx.Client(base_url=server.url) as http:
        body = {"model": "fake", "messages": [HELLO[0] | {"x": 1}], "max_tokens": 1, "xyz": 5, "stream": True}
        body["stream_options"] = {"include_usage": True, "more": 1}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        answer = http.post("/v1/chat/completions", json=body | {"tools": [1]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools"


def test_models_that_are_not_served(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"] and client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="model: expected 'fake', which this server serves, got 'gpt-9'"):
        client.chat.completions.create(model="gpt-9", messages=HELLO)  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt-9")
    assert raised.value.code == "model_not_found" and raised.value.param == "model"


def test_what_is_refused_by_name(client: openai.OpenAI) -> None:
    for name, call in (
        ("embeddings", lambda: client.embeddings.create(model="fake", input="a")),
        ("images", lambda: client.images.generate(model="fake", prompt="a")),
        ("audio", lambda: client.audio.speech.create(model="fake", input="a", voice="alloy")),
        ("moderations", lambda: client.moderations.create(input="a")),
        ("responses", lambda: client.responses.create(model="fake", input="a")),
        ("files", lambda: client.files.list()),
    ):
        with pytest.raises(openai.NotFoundError, match=f"{name}: not supported: this server has") as raised:
            call()
        assert raised.value.code == "unsupported_endpoint"
    with pytest.raises(openai.BadRequestError, match="tools: not supported: this server calls no tools") as refused:
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
        client.chat.completions.create(model="fake", messages=HELLO, tools=[tool])  # type: ignore[arg-type]
    assert refused.value.param == "tools" and refused.value.code == "unsupported_parameter"


def test_paths_and_methods(http: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404), ("GET", "/nothing", 404), ("POST", "/", 405), ("GET", "/v1/completions", 405),
        ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models/fake", 405), ("PUT", "/tokenize", 405),
    ):  # fmt: skip
        answer = http.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["message"], (method, path)


def test_without_a_template() -> None:
    with running(served_by(ENGINE, template=False)) as server, httpx.Client(base_url=server.url) as http:
        answer = http.post("/v1/chat/completions", json={"model": "fake", "messages": HELLO})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "no_chat_template"
        assert not http.get("/v1/models").json()["data"][0]["chat"]


def test_tokenize_and_detokenize(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"model": "fake", "prompt": "hé"}).json()
    assert answer == {"tokens": [0, *"hé".encode()], "count": 4, "max_model_len": 100}
    tokens = http.post("/tokenize", json={"prompt": "hé", "add_special_tokens": False}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "hé"}
    assert bytes(http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]) == b"\0user: hello\nassistant:"
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ):
        refused = http.post(path, json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_errors_of_the_engine_when_it_is_asked(http: httpx.Client) -> None:
    body = {"model": "fake", "prompt": ["a", "b"], "max_tokens": 1000}
    body["max_tokens"] = 50
    for error, status, code in (
        (QueueFull("too many"), 429, "queue_full"),
        (EngineClosed("closed"), 503, "draining"),
        (ValueError("logprobs: expected at most 20, got 99"), 400, None),
        (ValueError("something without a name"), 400, None),
        (ModuleNotFoundError("structured answers need xgrammar"), 400, "not_installed"),
        (OSError("a secret of the inside"), 500, "internal_error"),
    ):
        ENGINE.fail[:] = [error]
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == status and answer.json()["error"]["code"] == code
        assert "secret" not in answer.text and "Traceback" not in answer.text
        assert ("Retry-After" in answer.headers) == (status in (429, 503))
    ENGINE.fail[:] = [ValueError("logprobs: expected at most 20, got 99")]
    chat = {"model": "fake", "messages": HELLO, "logprobs": True, "top_logprobs": 99}
    assert http.post("/v1/chat/completions", json=chat).json()["error"]["param"] == "top_logprobs"


def test_of_several_prompts_all_are_taken_or_none(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the queue is full at the third, the first two are cancelled."""
    monkeypatch.setattr(ENGINE, "slots", ENGINE.running + 2)
    monkeypatch.setattr(ENGINE, "step_seconds", 0.02)
    answer = http.post("/v1/completions", json={"model": "fake", "prompt": ["a", "b", "c"], "max_tokens": 50})
    assert answer.status_code == 429
    assert {request.id for request in ENGINE.requests[-2:]} <= ENGINE.cancelled
    until(lambda: ENGINE.running == 0)


def test_too_many_prompts_are_refused_before_they_are_encoded(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "tokens_of", None)
    answer = http.post("/v1/completions", json={"model": "fake", "prompt": ["a"] * 129})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_many_choices"


def test_a_long_name_of_a_field_is_not_compared_whole(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def compared(name: str, *rest: Any) -> list[str]:
        lengths.append(len(name))
        return []

    monkeypatch.setattr(openai_types.difflib, "get_close_matches", compared)
    answer = http.post("/v1/completions", json={"model": "fake", "prompt": "a", "x" * 900: 1})
    assert answer.status_code == 400 and lengths == [80] and len(answer.content) < 500


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [("error", 500, "engine_error"), ("deadline", 504, "deadline_exceeded"), ("cancelled", 503, "cancelled")],
)
def test_requests_that_fail(reason: str, status: int, code: str, client: openai.OpenAI) -> None:
    """Before the first token a stream's error has its own status, too."""
    for stream in (False, True):
        ENGINE.end[:] = [reason]
        with pytest.raises(openai.APIStatusError) as raised:
            client.completions.create(model="fake", prompt="a", max_tokens=50, stream=stream)
        assert raised.value.status_code == status and raised.value.code == code
        assert "secret" not in str(raised.value)


def test_a_stream_that_fails_later(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status is sent: the error is an event, which the official client raises."""
    monkeypatch.setattr(ENGINE, "step_seconds", 0.02)
    ENGINE.end[:] = ["", ("error", 10)]  # of the second choice
    stream = client.completions.create(model="fake", prompt="a", max_tokens=50, n=2, stream=True)
    with pytest.raises(openai.APIError, match="the engine could not answer this request: ValueError") as raised:
        list(stream)
    assert raised.value.code == "engine_error"
    until(lambda: ENGINE.running == 0)  # the other choice was cancelled
    assert ENGINE.requests[-2].id in ENGINE.cancelled or ENGINE.requests[-1].id in ENGINE.cancelled
