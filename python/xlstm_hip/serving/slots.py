# SPDX-License-Identifier: Apache-2.0
"""The states of all running requests, in one allocation for each tensor of a block: a slot is a row of all of them.

Rows that decode stand at the bottom, rows that are read at the top. So a decode step takes the first rows of each
tensor as they lie, without gathering: a view. A request that has been read moves to the lowest free row, and one that
ends leaves a gap. On a CPU the last decoding row moves into it before the next step, because a masked row costs a
step as much as one that decodes, and a move less. On a GPU a step is a graph for each number of rows, so numbers are
rounded up, gaps are masked, and a row moves only where the step then becomes one of fewer rows.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..models.decode_engine import keep_step_graphs
from ..models.language_model import ServedModel, State
from ..models.read_graphs import copied
from ..models.transfers import pinned_copy, to_device
from .narrow import narrow_bytes, narrowed, widened


@dataclass(frozen=True)
class KeptState:
    """A state outside of the slots, of one row, with the tokens that it has read and the logits of the next one. Its C
    may be narrow (narrow.py).
    """

    tokens: np.ndarray  # int32
    state: State
    logits: Tensor | None  # (1, V)
    copied: torch.cuda.Event | None = None  # of a copy on the host: after it the host may read the state

    @functools.cached_property
    def nbytes(self) -> int:
        logits = 0 if self.logits is None else self.logits.nbytes
        return self.tokens.nbytes + logits + state_bytes(self.state)


def state_bytes(state: State) -> int:
    return sum(x.nbytes for layer in state.values() for x in layer)


class Batch(NamedTuple):
    """The rows of a decode step."""

    ids: list[str | None]  # None: a row that does not decode, and is masked
    state: State
    mask: Tensor | None  # (rows) bool


class Slots:
    """The allocation of `count` states of a model.

    fixed_rows    every decode step has all rows
    kept_dtype    of C in states that are kept for others: see narrow.py
    """

    def __init__(self, model: ServedModel, count: int, fixed_rows: bool = False, kept_dtype: str | None = None) -> None:
        device = model.embedding.weight.device
        # The model itself says what its state looks like.
        _, like = model.read(torch.zeros(1, 1, dtype=torch.int64, device=device))
        self._rows: State = {}
        for block, (c, n, m) in like.items():
            self._rows[block] = (_rows_like(c, count), _rows_like(n, count), _rows_like(m, count))
        self.count, self.row_bytes, self._kept_dtype = count, state_bytes(like), kept_dtype
        self.kept_bytes = self.row_bytes + sum(narrow_bytes(c, kept_dtype) - c.nbytes for c, _, _ in like.values())
        self._fixed, self._graphs = fixed_rows, device.type != "cpu"
        self._device = device
        if self._graphs and isinstance(model, nn.Module):
            keep_step_graphs(model, len(self._sizes()))
        self._owner: list[str | None] = [None] * count
        self._decodes = [False] * count
        self._row_of: dict[str, int] = {}
        self._views: dict[tuple[int, int], State] = {}
        self.moves = 0

    @property
    def used(self) -> int:
        return len(self._row_of)

    @property
    def decoding(self) -> int:
        return sum(self._decodes)

    def decoding_ids(self) -> list[str]:
        return [id for row, id in enumerate(self._owner) if id is not None and self._decodes[row]]

    def has(self, id: str) -> bool:
        return id in self._row_of

    def claim(self, id: str) -> None:
        """Takes the highest free row for a request; its state is the initial one."""
        row = max(row for row, owner in enumerate(self._owner) if owner is None)
        self._set(row, id, False)
        torch._foreach_zero_(self._tensors(row))

    def release(self, id: str) -> None:
        row = self._row_of.pop(id)
        self._owner[row], self._decodes[row] = None, False

    def state_of(self, id: str) -> State:
        """The state of one request, in place: a call that overwrites its state can have it."""
        row = self._row_of[id]
        return self._view(row, row + 1)

    def copy_of(self, id: str) -> State:
        return copied(self.state_of(id))

    def load(self, id: str, state: State) -> None:
        """Copies a state into the request's row."""
        tensors = [x for c, n, m in state.values() for x in (self._widened(c), n, m)]
        torch._foreach_copy_(self._tensors(self._row_of[id]), tensors, True)

    def _widened(self, c: Tensor) -> Tensor:
        return widened(c.to(self._device, non_blocking=True)) if c.dtype == torch.int8 else c

    def keep(
        self, id: str, tokens: np.ndarray, logits: Tensor | None, to_host: bool = False, exact: bool = False
    ) -> KeptState:
        """A copy of the request's state, on the host or beside the slots; tokens are those that it has read.

        exact    whatever kept_dtype is
        """
        dtype = None if exact else self._kept_dtype
        kept = [x for c, n, m in self.state_of(id).values() for x in (narrowed(c, dtype), n, m)]
        event = None
        if to_host and self._graphs:
            # Pinned: the copies are only queued here, and so are those back, behind them.
            kept = [pinned_copy(x) for x in kept]
            logits = None if logits is None else pinned_copy(logits)
            event = torch.cuda.Event()
            event.record()
        else:
            kept = [x.clone() for x in kept]
            logits = None if logits is None else logits.clone()
        state: State = {b: (kept[3 * n], kept[3 * n + 1], kept[3 * n + 2]) for n, b in enumerate(self._rows)}
        return KeptState(tokens.copy(), state, logits, event)

    def decode(self, id: str) -> None:
        """The request has been read, and its row joins those that decode: it moves to the lowest free row below it."""
        row = self._row_of[id]
        free = next((n for n in range(row) if self._owner[n] is None), None)
        if free is not None:
            self._move(row, free)
            row = free
        self._decodes[row] = True

    def batch(self, without: Collection[str] = ()) -> Batch:
        """The rows of the next decode step; at least one decodes. Gaps are closed where that makes the step smaller.

        without    requests that decode, but not in this step
        """
        rows = [row for row, decodes in enumerate(self._decodes) if decodes]
        while self._size(len(rows)) < self._size(rows[-1] + 1):
            gap = next(n for n, decodes in enumerate(self._decodes) if not decodes)
            self._exchange(rows.pop(), gap)
            bisect.insort(rows, gap)
        size = self._size(rows[-1] + 1)
        ids = [self._owner[row] if self._decodes[row] else None for row in range(size)]
        ids = [None if id in without else id for id in ids]
        # A graph is of a mask or of none: on a GPU there is always one.
        mask = torch.tensor([id is not None for id in ids]) if None in ids or self._graphs else None
        return Batch(ids, self._view(0, size), None if mask is None else to_device(mask, self._device))

    def graph_batches(self) -> list[Batch]:
        """One of each number of rows that a GPU has a graph for, all rows masked; none on a CPU."""
        sizes = sorted(self._sizes()) if self._graphs else []
        masks = [torch.zeros(size, dtype=torch.bool, device=self._device) for size in sizes]
        return [Batch([None] * len(mask), self._view(0, len(mask)), mask) for mask in masks]

    def _sizes(self) -> set[int]:
        return {self._size(rows) for rows in range(1, self.count + 1)}

    def _size(self, rows: int) -> int:
        if self._fixed:
            return self.count
        if not self._graphs:
            return rows
        rounded = 1 << (rows - 1).bit_length() if rows <= 8 else -(-rows // 8) * 8
        return min(rounded, self.count)

    def _move(self, row: int, to: int) -> None:
        """To a free row."""
        torch._foreach_copy_(self._tensors(to), self._tensors(row))
        self._set(to, self._owner[row], self._decodes[row])
        self._set(row, None, False)
        self.moves += 1

    def _exchange(self, row: int, other: int) -> None:
        """A decoding row takes the place of one that is free or being read."""
        if self._owner[other] is None:
            return self._move(row, other)
        held, reading = [x.clone() for x in self._tensors(other)], self._owner[other]
        self._move(row, other)
        torch._foreach_copy_(self._tensors(row), held)
        self._set(row, reading, False)
        self.moves += 1

    def _set(self, row: int, id: str | None, decodes: bool) -> None:
        self._owner[row], self._decodes[row] = id, decodes
        if id is not None:
            self._row_of[id] = row

    def _view(self, begin: int, end: int) -> State:
        """Kept: a view of hundreds of tensors takes the host longer than a small model's step."""
        key = (begin, end)
        if key not in self._views:
            self._views[key] = {b: (c[begin:end], n[begin:end], m[begin:end]) for b, (c, n, m) in self._rows.items()}
        return dict(self._views[key])  # a model may put what it returns into the dict

    def _tensors(self, row: int) -> list[Tensor]:
        return [x for layer in self._view(row, row + 1).values() for x in layer]


def _rows_like(x: Tensor, rows: int) -> Tensor:
    return x.new_zeros(rows, *x.shape[1:])
