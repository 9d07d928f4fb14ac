# SPDX-License-Identifier: Apache-2.0
"""The replacement of flash_attn.bert_padding."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import is_tensor
from .function_classes import function_class


def unpad_input(
    hidden_states: Tensor,  # (B, S, ...)
    attention_mask: Tensor,  # (B, S), true for tokens in use
    unused_mask: Tensor | None = None,  # (B, S): tokens that are given room too
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens in use, their places in (B * S), cu_seqlens, the longest length, and the lengths in use."""
    is_tensor("hidden_states", hidden_states)
    included = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = included.sum(-1, dtype=torch.int32)
    positions = included.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[positions], positions, ends, int(lengths.max()), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor,  # (B, S, ...)
    attention_mask_in_length: Tensor,  # (B, S): lengths of the sequences that lie one behind the other in a row, then 0
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The tokens of the sequences, their places in (B * S), cu_seqlens, and the longest length."""
    is_tensor("hidden_states", hidden_states)
    mask = is_tensor("attention_mask_in_length", attention_mask_in_length)
    used = torch.arange(mask.shape[1], device=mask.device) < mask.sum(-1, keepdim=True)
    positions = used.flatten().nonzero().flatten()
    lengths = mask.flatten()[mask.flatten() > 0]
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[positions], positions, ends, int(lengths.max())


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """(first_axis_dim, ...) with the values at their places, zero elsewhere."""
    padded = values.new_zeros(first_axis_dim, *values.shape[1:])
    return padded.index_put((indices,), values)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """unpad_input undone: (B, S, ...), zero where no token was."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    return x[indices]


def index_first_axis_residual(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The rows, and x for a residual stream."""
    return x[indices], x.view_as(x)


IndexFirstAxis = function_class("IndexFirstAxis", index_first_axis)
IndexFirstAxisResidual = function_class("IndexFirstAxisResidual", index_first_axis_residual)
IndexPutFirstAxis = function_class("IndexPutFirstAxis", index_put_first_axis)
