# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's chat template: the text that a model reads of messages. Rendered by transformers, in its sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core.extras import optional_module
from .config_files import SpecialTokens, json_object
from .tokenizer import Tokenizer

TEMPLATE_FILE, CONFIG_FILE, MAP_FILE = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
Message = dict[str, str]  # its role and content


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the special tokens that it may name."""

    source: str
    special_tokens: dict[str, str]
    file: str  # that it was read from, for errors

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text that a model reads; with add_generation_prompt up to the beginning of its answer."""
        needed_by = f"{self.file}: a chat template"
        errors = optional_module("jinja2", needed_by)
        optional_module("transformers", needed_by)
        templates = optional_module("transformers.utils.chat_template_utils", needed_by)
        arguments: dict[str, Any] = {"chat_template": self.source, "add_generation_prompt": add_generation_prompt}
        try:
            rendered: Any = templates.render_jinja_template([list(messages)], **arguments | self.special_tokens)
        except (
            errors.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ) as error:  # of what it computes
            raise ValueError(f"{self.file}: {error}") from None
        (text,), _ = rendered
        return text


def load_chat_template(
    folder: Path, tokenizer: Tokenizer, special_tokens: SpecialTokens, file: Path | None = None
) -> ChatTemplate:
    """The template of a checkpoint, or the one in `file`.

    Without the files of a tokenizer, special tokens are what the tokenizer makes of those of the model.
    """
    config = _object_if_there(folder / CONFIG_FILE)
    named = _object_if_there(folder / MAP_FILE) | config
    contents = {name: _content(value) for name, value in named.items() if name.endswith("_token")}
    tokens = {name: text for name, text in contents.items() if text is not None}
    if not tokens:
        ids = {"bos_token": special_tokens.bos, "eos_token": next(iter(special_tokens.eos), None)}
        tokens = {name: tokenizer.decode([token]) for name, token in ids.items() if token is not None}
    if file is None and (folder / TEMPLATE_FILE).is_file():
        file = folder / TEMPLATE_FILE
    if file is not None:
        try:
            return ChatTemplate(file.read_text("utf-8"), tokens, str(file))
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: expected UTF-8: {error}") from None
    where, source = folder / CONFIG_FILE, config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {x.get("name"): x.get("template") for x in source if isinstance(x, dict)}.get("default")
    if source is None:
        raise ValueError(f"{folder}: no chat template: expected {TEMPLATE_FILE}, or chat_template in {CONFIG_FILE}")
    if not isinstance(source, str):
        raise ValueError(f"{where}: chat_template: expected a string, got {source!r}")
    return ChatTemplate(source, tokens, str(where))


def _content(token: Any) -> str | None:
    """The text of a token as a tokenizer's files have it: a string, or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _object_if_there(file: Path) -> dict[str, Any]:
    return json_object(file) if file.is_file() else {}
