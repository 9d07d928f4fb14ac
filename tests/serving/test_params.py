# SPDX-License-Identifier: Apache-2.0
"""What requests and the configuration refuse: each error begins with the argument's name and says what came."""

from __future__ import annotations

import re
from typing import Any

import pytest

from xlstm_hip.serving import EngineConfig, Request, SamplingParams, Structure


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1, got 0"),
        ({"max_tokens": 2.5}, "max_tokens: expected an integer >= 1, got 2.5"),
        ({"max_tokens": True}, "max_tokens: expected an integer >= 1, got True"),
        ({"temperature": -0.1}, "temperature: expected a finite number from 0 up, got -0.1"),
        ({"temperature": float("inf")}, "temperature: expected a finite number from 0 up, got inf"),
        ({"temperature": "1"}, "temperature: expected a finite number from 0 up, got '1'"),
        ({"top_p": 0}, "top_p: expected a finite number above 0 and up to 1, got 0"),
        ({"top_p": 1.5}, "top_p: expected a finite number above 0 and up to 1, got 1.5"),
        ({"top_k": -1}, "top_k: expected an integer >= 0, got -1"),
        ({"min_p": 1.1}, "min_p: expected a finite number from 0 to 1, got 1.1"),
        ({"repetition_penalty": 0}, "repetition_penalty: expected a finite number above 0, got 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty: expected a finite number, got nan"),
        ({"frequency_penalty": None}, "frequency_penalty: expected a finite number, got None"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias: expected token ids as keys, got '5'"),
        ({"logit_bias": {5: "x"}}, "logit_bias: expected finite numbers, got 'x' for token 5"),
        ({"logit_bias": [5]}, "logit_bias: expected a mapping of token ids to numbers, got [5]"),
        ({"seed": 1.5}, "seed: expected an integer, got 1.5"),
        ({"stop": "."}, "stop: expected a sequence of strings, got '.'"),
        ({"stop": ("",)}, "stop: expected strings of at least one character, got ''"),
        ({"stop": tuple("abcdefghijklmnopq")}, "stop: expected at most 16 strings, got 17"),
        ({"stop": ("ab", "a" * 1025)}, "stop: expected at most 1024 characters in a string, got 1025"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids: expected token ids, got -1"),
        ({"stop_token_ids": 5}, "stop_token_ids: expected a sequence of token ids, got 5"),
        ({"ignore_eos": 2}, "ignore_eos: expected one of True, False, got 2"),
        ({"logprobs": -1}, "logprobs: expected an integer >= 0, got -1"),
        ({"structure": "json"}, "structure: expected a Structure or None, got 'json'"),
    ],
    ids=str,
)
def test_sampling_params(make: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        SamplingParams(**make)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("yaml", "a", "structure.kind: expected one of 'json_schema', "),
        ("json_schema", 5, "structure.value: expected a JSON schema as a dict or a string, got 5"),
        ("json_object", {}, "structure.value: expected None with kind 'json_object', got {}"),
        ("regex", "", "structure.value: expected a regex as a string, got ''"),
        ("grammar", None, "structure.value: expected a grammar as a string, got None"),
        ("choice", [], "structure.value: expected a sequence of texts to choose from, got []"),
        ("choice", "ab", "structure.value: expected a sequence of texts to choose from, got 'ab'"),
    ],
)
def test_structures(kind: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        Structure(kind, value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": ""}, "id: expected a string of at least one character, got ''"),
        ({"tokens": []}, "tokens: expected at least one token, got none"),
        ({"tokens": "ab"}, "tokens: expected a sequence of token ids, got 'ab'"),
        ({"tokens": [1, -2]}, "tokens: expected token ids, got -2"),
        ({"tokens": [1, 2.0]}, "tokens: expected token ids, got 2.0"),
        ({"params": {}}, "params: expected SamplingParams, got {}"),
        ({"priority": 0.5}, "priority: expected an integer, got 0.5"),
        ({"priority": 10**400}, "priority: expected from -2147483648 to 2147483648, got 1000000"),
        ({"deadline": -1}, "deadline: expected a finite number from 0 up, got -1"),
        ({"session": ""}, "session: expected None or a string of at least one character, got ''"),
        ({"session": "\ud800"}, "session: expected text that UTF-8 can write, got '\\ud800'"),
        ({"cache_salt": "\ud800"}, "cache_salt: expected text that UTF-8 can write, got '\\ud800'"),
        ({"answered": "ab"}, "answered: expected a sequence of token ids, got 'ab'"),
        ({"answered": [-1]}, "answered: expected token ids, got -1"),
        ({"answered": [1] * 16}, "answered: expected fewer tokens than max_tokens = 16, got 16"),
    ],
    ids=str,
)
def test_requests(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        Request(**{"id": "a", "tokens": [1], **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 0}, "slots: expected an integer >= 1, got 0"),
        ({"prefill_chunk": 64, "token_budget": 63}, "token_budget: expected at least prefill_chunk = 64, .* got 63"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens: expected an integer >= 1, got 0"),
        ({"prefix_cache_bytes": -1}, "prefix_cache_bytes: expected an integer >= 0, got -1"),
        ({"prefix_cache_device": "cpu"}, "prefix_cache_device: expected one of 'host', 'device', got 'cpu'"),
        ({"state_dtype": "int8"}, "state_dtype: expected one of 'float32', 'bfloat16', got 'int8'"),
        ({"ageing_seconds": 0}, "ageing_seconds: expected a finite number > 0, got 0"),
        ({"swap_folder": 5}, "swap_folder: expected a folder or None, got 5"),
        ({"preemption": None}, "preemption: expected one of True, False, got None"),
    ],
    ids=str,
)
def test_engine_config(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="^" + words):
        EngineConfig(**changes)


def test_what_is_given_is_kept_unchangeable() -> None:
    bias = {5: 1}
    params = SamplingParams(logit_bias=bias, stop=["a"], stop_token_ids=[3])
    bias[6] = 2
    assert params.logit_bias == {5: 1.0} and params.stop == ("a",) and params.stop_token_ids == (3,)
    tokens = [1, 2]
    request = Request("a", tokens)
    tokens.append(3)
    assert request.tokens == (1, 2)
