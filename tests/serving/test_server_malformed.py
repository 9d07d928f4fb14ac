# SPDX-License-Identifier: Apache-2.0
"""Whatever a client sends: an answer, or an error in OpenAI's form with a status below 500; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.fake_engine import FakeEngine, served_by
from support.http_server import LocalServer, post, running
from xlstm_hip.serving.server import Limits
from xlstm_hip.serving.server.openai_types import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

PATHS = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
FIELDS = sorted({field.alias or name for kind in PATHS.values() for name, field in kind.model_fields.items()})
FIELDS += ["tools", "suffix", "tool_choice", "function_call"]
HEADERS = {"Content-Type": "application/json"}
# Values of every type of JSON, and those that programs stumble over.
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([2**63, -(2**63), 2**64, 10**400, 1e308, -0.0, "", "\0", "\ufffd", "fake", "user"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.sampled_from(FIELDS), inner,
                                                               max_size=4),
    max_leaves=8,
)  # fmt: skip
GOOD: dict[str, Any] = {"model": "fake", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}
LIMITS = Limits(max_prompt_tokens=100, max_new_tokens=4, max_choices=4, max_body_bytes=4000)
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with running(served_by(FakeEngine()), LIMITS) as local:
        yield local


@pytest.fixture(scope="module")
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def check(answer: httpx.Response) -> None:
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    assert "Traceback" not in answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"} and error["message"] and len(answer.content) < 3000


@settings(quick, max_examples=75)
@given(path=st.sampled_from(list(PATHS)), body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_bytes(path: str, body: bytes, http: httpx.Client) -> None:
    check(http.post(path, content=body, headers=HEADERS))


def written(value: Any) -> bytes:
    return json.dumps(value).encode()  # with NaN and Infinity, which are no JSON


@settings(quick, max_examples=100)
@given(path=st.sampled_from(list(PATHS)), fields=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
def test_fields(path: str, fields: dict[str, Any], http: httpx.Client) -> None:
    """Any values in the place of the right ones."""
    known = {field.alias or name for name, field in PATHS[path].model_fields.items()}
    good = {name: value for name, value in GOOD.items() if name in known}
    if path == "/tokenize":
        good.pop("messages")
    check(http.post(path, content=written(good | fields), headers=HEADERS))


@settings(quick, max_examples=75)
@given(
    structure=st.sampled_from(["response_format", "structured_outputs", "stream_options", "logit_bias", "messages"]),
    value=st.dictionaries(
        st.sampled_from(
            ["type", "json_schema", "json", "schema", "name", "choice", "include_usage", "1", "role", "content", "text"]
        ),
        values,
    ),
)
def test_fields_of_fields(structure: str, value: dict[str, Any], http: httpx.Client) -> None:
    body = {"model": "fake", "messages": GOOD["messages"], "stream": True}
    body |= {structure: [value]} if structure == "messages" else {structure: value}
    check(http.post("/v1/chat/completions", content=written(body), headers=HEADERS))


@settings(quick, max_examples=50)
@given(content=values | st.lists(values | st.fixed_dictionaries({"type": values | st.just("text"), "text": values})))
def test_contents_of_messages(content: Any, http: httpx.Client) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": content}]}
    check(http.post("/v1/chat/completions", content=written(body), headers=HEADERS))


@settings(quick, max_examples=50)
@given(cut=st.integers(0, 200), noise=st.binary(max_size=6))
def test_requests_that_are_cut_or_damaged_on_the_wire(cut: int, noise: bytes, server: LocalServer) -> None:
    """Below the application: uvicorn's answer, an error of ours or a closed connection; then the next is served."""
    body = written({name: GOOD[name] for name in ("model", "prompt")})
    whole = post("/v1/completions", body, "Connection: close")
    with server.connect() as client:
        client.sendall(whole[:cut] + noise + (whole[cut:] if noise else b""))
        client.shutdown(1)  # nothing more will come
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert b"Traceback" not in answer and not answer.startswith(b"HTTP/1.1 5")
    assert httpx.get(f"{server.url}/ready").json()["status"] == "ready"


def test_the_server_still_answers(http: httpx.Client) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 3}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == "abc"
