# SPDX-License-Identifier: Apache-2.0
"""Index tensors of attention calls, for the library's ops and their plain-torch equivalents, and checks of their
values.

On a CPU the library's ops check values themselves, with the same messages (csrc/api/attention_checks.cpp). The checks
here serve the plain-torch ops and lengths that are passed to no op.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class SequenceBounds(NamedTuple):
    """The tensors that say which tokens belong to which sequence: int32 tensors, or None."""

    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_k: Tensor | None = None
    leftpad_k: Tensor | None = None


class Pages(NamedTuple):
    block_table: Tensor | None = None
    cache_batch_idx: Tensor | None = None


def offsets_of_starts(starts: Tensor) -> Tensor | None:
    """cu_seqlens over the tokens of all rows, from starts (B, S - 1): whether tokens 1.. of each row begin a sequence.
    None if no token does.
    """
    inside = torch.nonzero(pad(starts, (1, 0), value=False).flatten()).flatten()  # for which a GPU stops
    if not inside.numel():
        return None
    batch, length = starts.shape[0], starts.shape[1] + 1
    rows = torch.arange(batch, device=starts.device) * length
    return pad(torch.cat((rows, inside)).sort().values, (0, 1), value=batch * length)


def in_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {value}")


def offsets_fit(name: str, offsets: Tensor, longest: int, total: int | None = None) -> list[int]:
    """Returns the lengths between offsets. Offsets must start at 0, never decrease and end within `total` tokens."""
    ends = offsets.tolist()
    if ends[0] != 0:
        raise ValueError(f"{name}: expected to start at 0, got {ends[0]}")
    lengths = [end - begin for begin, end in zip(ends[:-1], ends[1:], strict=True)]
    for b, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"{name}: expected values that do not fall")
        if length > longest:
            bound = f"the longest is said to have: {longest} (max_seqlen{name[-2:]})"
            raise ValueError(f"{name}: sequence {b} has {length} tokens, more than {bound}")
    if total is not None:
        in_range(f"{name}: the last value", ends[-1], 0, total)
    return lengths


def lengths_within(name: str, lengths: Tensor, capacities: list[int]) -> None:
    for length, capacity in zip(lengths.tolist(), capacities, strict=True):
        in_range(name, length, 0, capacity)


def index_tensors_fit(
    q: Tensor, k: Tensor, bounds: SequenceBounds, pages: Pages, max_seqlen_q: int, max_seqlen_k: int
) -> None:
    """Checks the values of the index tensors of an attention op."""
    batch = q.shape[0]
    if bounds.cu_seqlens_q is not None:
        batch = len(offsets_fit("cu_seqlens_q", bounds.cu_seqlens_q, max_seqlen_q, q.shape[0]))
    if bounds.cu_seqlens_k is not None:
        capacities = offsets_fit("cu_seqlens_k", bounds.cu_seqlens_k, max_seqlen_k, k.shape[0])
    else:
        capacities = [k.shape[1] * (1 if pages.block_table is None else pages.block_table.shape[1])] * batch
    for name, lengths in (("seqused_k", bounds.seqused_k), ("leftpad_k", bounds.leftpad_k)):
        if lengths is not None:
            lengths_within(name, lengths, capacities)
    if pages.cache_batch_idx is not None:
        lengths_within("cache_batch_idx", pages.cache_batch_idx, [k.shape[0] - 1] * batch)
    if pages.block_table is not None:
        used = capacities if bounds.seqused_k is None else bounds.seqused_k.tolist()
        for row, keys in zip(pages.block_table.tolist(), used, strict=True):
            for page in row[: -(-keys // k.shape[1])]:  # unused entries may hold anything
                in_range("block_table", page, 0, k.shape[0] - 1)
