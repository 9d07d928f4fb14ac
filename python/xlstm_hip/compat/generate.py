# SPDX-License-Identifier: Apache-2.0
"""xlstm.xlstm_large.generate: tokens from any model that is a function of tokens and state.

Our model's own generate (models/generation.py) is the faster one, and has sampling and end tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._core.checks import has_integers, has_shape, one_of

NAMES = ("LLMForwardFnType", "LLMStateType", "generate_tokens", "get_sampling_fn", "greedy_sampling")

LLMStateType = dict
LLMForwardFnType = Callable[[Tensor, LLMStateType | None], tuple[Tensor, LLMStateType]]


def greedy_sampling(logits: Tensor) -> Tensor:
    """The likeliest tokens (...) of logits (..., V)."""
    return logits.argmax(-1)


SAMPLING = {"greedy": greedy_sampling}


def get_sampling_fn(sampling_fn_name: str) -> Callable[[Tensor], Tensor]:
    """The sampling function named "greedy"; pass other functions of logits to generate_tokens directly."""
    one_of("sampling_fn_name", sampling_fn_name, tuple(SAMPLING))
    return SAMPLING[sampling_fn_name]


@torch.no_grad()
def generate_tokens(
    llm_forward: LLMForwardFnType,
    prefill_tokens: Tensor | None = None,  # (B, S), or (B): one of each row
    max_length: int = 128,
    token_sample_fn: Callable[[Tensor], Tensor] = greedy_sampling,  # logits (B, 1, V) to tokens (B, 1)
    bos_token_id: int = 0,
    state: LLMStateType | None = None,
    batch_size_no_prefill: int = 1,
    generated_tokens: Tensor | None = None,  # (B, max_length)
    device: str = "cuda",
) -> tuple[Tensor | None, LLMStateType | None]:
    """max_length new tokens (B, max_length) and the state that has read all but the last; (None, state) for none.

    Without prefill_tokens batch_size_no_prefill rows begin with bos_token_id. generated_tokens, if given, is written
    and returned, else it is made on device.
    """
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 0:
        raise ValueError(f"max_length: expected an integer >= 0, got {max_length!r}")
    if prefill_tokens is None:
        prefill_tokens = torch.full((batch_size_no_prefill, 1), bos_token_id, dtype=torch.int64, device=device)
    last = has_integers("prefill_tokens", prefill_tokens)
    if last.dim() == 1:
        last = last.unsqueeze(1)
    if max_length == 0:
        return None, state
    shape = (last.shape[0], max_length)
    if generated_tokens is None:
        generated_tokens = torch.empty(shape, dtype=torch.int64, device=device)
    has_shape("generated_tokens", generated_tokens, shape, "(B, max_length)")
    for column in range(max_length):
        logits, state = llm_forward(last, state)
        last = token_sample_fn(logits[:, -1:])
        generated_tokens[:, column : column + 1] = last
    return generated_tokens, state
