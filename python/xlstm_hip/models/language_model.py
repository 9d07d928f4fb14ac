# SPDX-License-Identifier: Apache-2.0
"""The interfaces that generation and serving need of a model."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from .decode_engine import Then
from .mlstm_call import LayerState

State = dict[int, LayerState]  # of each block


class LanguageModel(Protocol):
    """xLSTMLarge is one."""

    config: Any  # its vocab_size
    special_tokens: Any  # bos, eos and pad
    embedding: nn.Embedding

    def hidden(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None, keep_state: bool = False
    ) -> tuple[Tensor, State]: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def read(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None, replay: bool = False
    ) -> tuple[Tensor, State]:
        """The logits (B, V) after the tokens, and the state. replay: may be a replayed graph."""
        ...

    def step(
        self,
        tokens: Tensor,
        state: State,
        mask: Tensor | None = None,
        then: Then | None = None,  # called with the logits
    ) -> Tensor: ...


class ServedModel(LanguageModel, Protocol):
    """And what serving needs beyond."""

    def step_and_read(
        self,
        tokens: Tensor,
        state: State,
        mask: Tensor | None,
        x: Tensor,
        read_state: State,
        read_mask: Tensor | None = None,
        replay: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """step of tokens (B), and read of x (1, S), in one pass over the weights."""
        ...
