# SPDX-License-Identifier: Apache-2.0
"""Several sequences in one row: where they begin, by the names that users give it.

A layer works token by token but for the mLSTM, so a batch of rows is packed by its offsets alone: MLSTMCall takes all
tokens as one row and starts a new state at each offset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import has_integers, same_device
from .._core.index_tensors import offsets_of_starts


def _per_token(name: str, x: Tensor, like: Tensor) -> Tensor:
    has_integers(name, x)
    if x.dim() == 1:
        x = x.unsqueeze(0)
    if x.dim() != 2 or x.shape[0] not in (1, like.shape[0]) or x.shape[1] != like.shape[1]:
        raise ValueError(f"{name}: expected shape {tuple(like.shape[:2])}, that of the tokens, got {tuple(x.shape)}")
    same_device("tokens", like, **{name: x})
    return x.expand(like.shape[0], -1)


def of_positions(position_ids: Tensor, like: Tensor, mask: Tensor | None) -> Tensor | None:
    """Offsets of sequences that begin where positions do not go on by 1. Padding begins none."""
    x = _per_token("position_ids", position_ids, like)
    starts = x.diff(dim=1) != 1
    return offsets_of_starts(starts if mask is None else starts & mask[:, 1:])


def of_sequence_numbers(seq_idx: Tensor, like: Tensor) -> Tensor | None:
    """Offsets of sequences that begin where the number of a token's sequence changes."""
    return offsets_of_starts(_per_token("seq_idx", seq_idx, like).diff(dim=1) != 0)


def last_of_rows(cu_seqlens: Tensor, rows: int, length: int) -> Tensor:
    """The number of the last sequence of each row (B), of offsets into B * S tokens."""
    ends = torch.arange(1, rows + 1, device=cu_seqlens.device) * length
    return torch.searchsorted(cu_seqlens.long(), ends) - 1
