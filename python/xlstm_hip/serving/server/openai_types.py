# SPDX-License-Identifier: Apache-2.0
"""The bodies of requests as OpenAI's API has them, with the fields that users of vLLM know beside them.

A field that is not here is refused by its name, for a typing error would else change an answer unnoticed. So is a
field of OpenAI's that this server cannot honour, with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, ValidationInfo

from .errors import ApiError, shown, wrong

NO_TOOLS = "this server calls no tools"
ROLES = ("system", "developer", "user", "assistant")
Refused = Mapping[str, tuple[str, tuple[Any, ...]]]  # by field: why, and the values that ask for nothing
Body = TypeVar("Body", bound="ApiBody")


class _Strict(BaseModel):
    # Strict: "5" is no number and true no integer.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class ApiBody(_Strict):
    """What every body has in common."""

    REFUSED: ClassVar[Refused] = {}


def _texts(value: Any) -> tuple[str, ...]:
    """A text, or a list of texts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"expected a string or a list of strings, got {shown(value)}")
    return tuple(value)


def is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tokens(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(map(is_token, value)):
        raise ValueError(f"expected a list of token ids, got {shown(value)}")
    return value


def _bias(value: Any) -> dict[int, float]:
    """JSON's keys are strings."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object of token ids and numbers, got {shown(value)}")
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 20):
            raise ValueError(f"expected token ids as keys, got {shown(token)}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"expected numbers from -100 to 100, got {shown(bias)} for token {token}")
    return {int(token): float(bias) for token, bias in value.items()}


class StreamOptions(_Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # usage in every event, as vLLM's clients ask for it


class JsonSchema(_Strict):
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None  # a schema is always kept to


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Strict):
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


Texts = Annotated[tuple[str, ...], PlainValidator(_texts)]
TokenIds = Annotated[list[int], PlainValidator(_tokens)]


class SamplingBody(ApiBody):
    """What both kinds of completions take. Ranges are checked by SamplingParams, where there is one."""

    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[dict[int, float], PlainValidator(_bias)] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Texts = ()
    stop_token_ids: TokenIds = Field(default_factory=list)
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    session: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    user: Annotated[str, Field(max_length=256)] | None = None  # goes into the log
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


def _prompt(value: Any) -> list[str] | list[list[int]]:
    """One prompt or several, as texts or as token ids."""
    expected = "expected a string, a list of strings, a list of token ids or a list of such lists"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{expected}, got {shown(value)}")
    if all(isinstance(prompt, str) for prompt in value):
        return value
    if all(map(is_token, value)):
        return [value]
    if all(isinstance(prompt, list) and prompt and all(map(is_token, prompt)) for prompt in value):
        return value
    raise ValueError(f"{expected}, got {shown(value)}")


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    REFUSED: ClassVar[Refused] = {
        "suffix": ("the model writes on after a prompt, not into a gap", ("",)),
        "metadata": ("nothing is stored", ()),
        "store": ("nothing is stored", (False,)),
    }

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(_prompt)]
    max_tokens: int | None = 16
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0)] | None = None
    best_of: int | None = None
    add_special_tokens: bool = True


def _content(value: Any, where: str) -> str:
    """A text, or a list of parts that are texts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a string or a list of parts, got {shown(value)}")
    texts = []
    for number, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"{where}[{number}]: expected an object with a type, got {shown(part)}")
        if part["type"] != "text":
            raise ValueError(f"{where}[{number}].type: expected 'text', as the model reads no other, got "
                             f"{shown(part['type'])}")  # fmt: skip
        if not isinstance(part.get("text"), str) or len(part) > 2:
            raise ValueError(f"{where}[{number}]: expected type and text alone, got {shown(part)}")
        texts.append(part["text"])
    return "\n".join(texts)


# Fields of an answer, which clients send back as part of the conversation; null in those of this server.
_OF_ANSWERS = ("refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content", "reasoning")


def _messages(value: Any, info: ValidationInfo) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of messages, got {shown(value)}")
    messages = []
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise ValueError(f"[{number}]: expected an object with role and content, got {shown(message)}")
        fields = {name: field for name, field in message.items() if not (name in _OF_ANSWERS and field in (None, []))}
        role = fields.pop("role", None)
        if role in ("tool", "function"):
            raise ValueError(f"[{number}].role: {role!r}: {NO_TOOLS}")
        if role not in ROLES:
            raise ValueError(f"[{number}].role: expected one of {', '.join(ROLES)}, got {shown(role)}")
        if "content" not in fields:
            raise ValueError(f"[{number}].content: expected text, got none")
        content = _content(fields.pop("content"), f"[{number}].content")
        # What OpenAI calls developer is called system by the templates of open models.
        written = {"role": "system" if role == "developer" else role, "content": content}
        if isinstance(fields.get("name"), str):  # for the template
            written["name"] = fields.pop("name")
        for name in fields if not (info.context or {}).get("lenient") else set(fields) & set(_OF_ANSWERS):
            because = f": {NO_TOOLS}" if name in ("tool_calls", "function_call") else ""
            raise ValueError(f"[{number}].{name}: not a field that this server takes of a message{because}")
        messages.append(written)
    return messages


Messages = Annotated[list[dict[str, str]], BeforeValidator(_messages)]


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    REFUSED: ClassVar[Refused] = {
        "tools": (NO_TOOLS, ()),
        "tool_choice": (NO_TOOLS, ("none",)),
        "parallel_tool_calls": (NO_TOOLS, ()),
        "functions": (NO_TOOLS, ()),
        "function_call": (NO_TOOLS, ("none",)),
        "web_search_options": (NO_TOOLS, ()),
        "modalities": ("the model writes text alone", (["text"],)),
        "audio": ("the model writes text alone", ()),
        "prediction": ("an answer is not predicted by the client", ()),
        "reasoning_effort": ("the model has no such setting", ()),
        "verbosity": ("the model has no such setting", ()),
        "service_tier": ("there is one tier; see priority", ("auto", "default")),
        "metadata": ("nothing is stored", ()),
        "store": ("nothing is stored", (False,)),
    }

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    add_generation_prompt: bool = True


class TokenizeBody(ApiBody):
    """POST /tokenize: of a prompt or of messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(ApiBody):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


def parse(kind: type[Body], fields: dict[str, Any], lenient: bool) -> Body:
    """A body of this kind, or an error that names the first field that is wrong. lenient: unknown fields are left out.

    null is as good as leaving a field out.
    """
    known = {field.alias or name for name, field in kind.model_fields.items()}
    for name in fields:
        if name not in known and name not in kind.REFUSED and not lenient:
            raise _unknown(name, known)
    for name, (reason, harmless) in kind.REFUSED.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise wrong(name, f"not supported: {reason}", code="unsupported_parameter")
    kept = {name: value for name, value in fields.items() if name in known and value is not None}
    while True:
        try:
            return kind.model_validate(kept, context={"lenient": lenient})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if not (lenient and first["type"] == "extra_forbidden" and _dropped(kept, first["loc"])):
                raise _wrong(first) from None


def _unknown(name: str, known: set[str]) -> ApiError:
    like = difflib.get_close_matches(name[:80], known, 1)
    hint = f"; did you mean {like[0]}?" if like else ""
    return ApiError(400, f"{name[:80]}: unknown field{hint}", param=name[:80], code="unknown_parameter")


def _dropped(fields: Any, where: tuple[int | str, ...]) -> bool:
    """Takes an unknown field out of the objects in a body; whether it was found there."""
    for name in where[:-1]:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return isinstance(fields, dict) and fields.pop(where[-1], where) is not where


def _wrong(error: Any) -> ApiError:
    """The first of pydantic's errors, as the package writes its own."""
    parts = [part for part in error["loc"] if isinstance(part, int) or not part.endswith("]")]  # not a union's member
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    raised = error.get("ctx", {}).get("error")
    if error["type"] == "extra_forbidden":
        return ApiError(400, f"{path[:80]}: unknown field", param=path[:80], code="unknown_parameter")
    if error["type"] == "missing":
        return ApiError(400, f"{path}: required, but missing", param=path, code="missing_parameter")
    if isinstance(raised, ValueError):
        text = str(raised)
        if text.startswith("["):  # of an element
            inner, _, text = text.partition(": ")
            path += inner
    else:
        text = f"{error['msg'][0].lower()}{error['msg'][1:]}, got {shown(error['input'])}"
        text = text.replace("input should be", "expected")
    return wrong(path, text)


def schema_of(kind: type[ApiBody]) -> dict[str, Any]:
    """For /openapi.json."""
    return kind.model_json_schema(ref_template="#/components/schemas/{model}")
