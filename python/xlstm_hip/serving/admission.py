# SPDX-License-Identifier: Apache-2.0
"""What an engine takes: a request beside the limits of its configuration, the vocabulary and the forms of answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .config import EngineConfig
from .params import Output, Request
from .structure import Structures


class Admission:
    """Checks requests before they wait. It needs no model, so that it can be done on another machine than the engine's.

    structures    compile the forms of answers, one at a time
    """

    def __init__(self, config: EngineConfig, vocab_size: int, structures: Structures) -> None:
        self._config, self._vocab_size, self._structures = config, vocab_size, structures
        self._compiling = threading.Lock()

    def check(self, request: Request, on_output: Callable[[Output], None]) -> Any:
        """The request's structure, compiled, None if it has none; a ValueError says what is not taken."""
        if not isinstance(request, Request):
            raise ValueError(f"request: expected a Request, got {request!r}")
        if not callable(on_output):
            raise ValueError(f"on_output: expected a function of an Output, got {on_output!r}")
        config, params, vocab = self._config, request.params, self._vocab_size
        for name, value, most in (
            ("tokens", len(request.tokens), config.max_prompt_tokens),
            ("max_tokens", params.max_tokens, config.max_new_tokens),
            ("logprobs", params.logprobs or 0, min(config.max_logprobs, vocab)),
        ):
            if most is not None and value > most:
                what = "tokens of a prompt" if name == "tokens" else ""
                raise ValueError(f"{name}: expected at most {most} {what}".rstrip() + f", got {value}")
        for name, ids in (
            ("tokens", request.tokens),
            ("answered", request.answered),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias),
        ):
            greatest = max(ids, default=0)
            if greatest >= vocab:
                raise ValueError(f"{name}: expected token ids from 0 to {vocab - 1}, got {greatest}")
        if params.structure is None:
            return None
        with self._compiling:
            return self._structures.compile(params.structure)
