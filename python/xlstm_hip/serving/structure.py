# SPDX-License-Identifier: Apache-2.0
"""Texts of a given form: which tokens may come next, by xgrammar (the extra `structured`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.extras import optional_module
from ..models.tokenizer import BYTE_VALUES, BYTES, Tokenizer
from .params import Structure

NEEDED_BY = "structure: a text of a given form"
WORD = 32  # bits of a word of a mask
LONGEST = 65536  # characters of a structure: xgrammar takes some seconds for as many
COMPILED_BYTES = 256 * 2**20  # of compiled structures that are kept


class Structures:
    """Compiles structures for a tokenizer. Compiled ones are kept by xgrammar, the used last."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size, self._ends = tokenizer, vocab_size, list(ends)
        self._compiler: Any = None

    def compile(self, structure: Structure) -> Any:
        """May take seconds. ValueError if the structure's value means nothing, or is too long."""
        xgrammar = optional_module("xgrammar", NEEDED_BY)
        if self._compiler is None:
            self._compiler = xgrammar.GrammarCompiler(
                self._tokenizer_info(xgrammar), max_threads=1, cache_limit_bytes=COMPILED_BYTES
            )
        value, compiler = structure.value, self._compiler
        if structure.kind == "json_schema" and not isinstance(value, str):
            value = json.dumps(value)
        length = sum(map(len, value or ()))  # of a string or of all choices
        if length > LONGEST:
            raise ValueError(f"structure.value: expected at most {LONGEST} characters, got {length}")
        try:
            if structure.kind == "json_object":
                return compiler.compile_json_schema('{"type": "object"}')
            if structure.kind == "json_schema":
                return compiler.compile_json_schema(value)
            if structure.kind == "regex":
                return compiler.compile_regex(value)
            if structure.kind == "choice":
                return compiler.compile_grammar(
                    "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
                )
            return compiler.compile_grammar(value)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"structure.value: expected a {structure.kind} that xgrammar takes: {error}") from None

    def follow(self, compiled: Any) -> StructuredText:
        return StructuredText(compiled, self._vocab_size, self._ends)

    def _tokenizer_info(self, xgrammar: Any) -> Any:
        ends = self._ends or None
        if self._tokenizer == BYTES:
            vocabulary = [bytes([value]) for value in range(BYTE_VALUES)]
            return xgrammar.TokenizerInfo(vocabulary, vocab_size=self._vocab_size, stop_token_ids=ends)
        if self._tokenizer.file is None:
            raise ValueError("structure: expected a tokenizer of load_tokenizer, got one that was read from no file")
        transformers = optional_module("transformers", NEEDED_BY)
        loaded = transformers.PreTrainedTokenizerFast(tokenizer_file=str(self._tokenizer.file))
        return xgrammar.TokenizerInfo.from_huggingface(loaded, vocab_size=self._vocab_size, stop_token_ids=ends)


class StructuredText:
    """Follows one text through its structure."""

    def __init__(self, compiled: Any, vocab_size: int, ends: Sequence[int]) -> None:
        xgrammar = optional_module("xgrammar", NEEDED_BY)
        # Without an end token the text ends where nothing may follow.
        self._matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=not ends)
        self._words = torch.empty(-(-vocab_size // WORD), dtype=torch.int32)

    def allowed(self) -> Tensor:
        """A bit for each token, in words (V / 32) of int32: whether it may come next."""
        self._words.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._words.view(1, -1))
        return self._words

    def add(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise RuntimeError(f"structure: token {token} was drawn, which the structure does not have here")

    @property
    def over(self) -> bool:
        """Whether the text is complete, and nothing may follow but an end token."""
        return self._matcher.is_terminated()


def unpacked(words: Tensor, vocab_size: int) -> Tensor:
    """Masks in words (R, V / 32) -> (R, V) bool."""
    bits = torch.arange(WORD, device=words.device, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> bits) & 1).bool().flatten(1)[:, :vocab_size]
