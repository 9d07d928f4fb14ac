# SPDX-License-Identifier: Apache-2.0
"""Reading a few hundred tokens through a model as one GPU graph.

A block of the model is some thirty launches, which the host needs longer for than a GPU needs to compute some hundred
tokens: a long prompt read in chunks, with others served in between, would take twice as long as at once. The first call
of a shape runs normally, the second is captured, and later ones are replayed. A graph has states of its own, so that
every sequence can use it: a sequence's states are copied in and out, at a copy's rate.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._core.environment import gpu_schedule
from .._core.plans import changes
from . import decode_engine

if TYPE_CHECKING:
    from .language_model import State

MOST_TOKENS = 2048  # more keep a GPU busy for longer than the host needs to launch them
MOST_GRAPHS = 4  # that are kept, the latest used; each has what its layers need, and states
MOST_SHAPES = 64  # that are remembered as seen
Read = Callable[[Tensor, "State | None"], tuple[Tensor, "State"]]  # tokens, state -> logits of the next token, state
Key = tuple


class _ReadGraph:
    """The graph of one shape, with tokens, states and logits at fixed addresses."""

    def __init__(self, read: Read, x: Tensor, state: State | None) -> None:
        self._x = x.clone()
        self._state = None if state is None else copied(state)
        self._replay = decode_engine.captured(lambda: self._read(read))

    def _read(self, read: Read) -> None:
        self._logits, self._last = read(self._x, self._state)

    def __call__(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        self._x.copy_(x)
        if state is not None and self._state is not None:
            overwrite(self._state, state)
        self._replay()
        if state is None:
            return self._logits.clone(), copied(self._last)
        overwrite(state, self._last)
        return self._logits.clone(), state


class ReadGraphs:
    """The graphs of a model as it is now, by shape."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._graphs: OrderedDict[Key, _ReadGraph] = OrderedDict()

    def read(self, read: Read, x: Tensor, state: State | None, settings: str) -> tuple[Tensor, State]:
        """What `read` returns; a given state is overwritten. settings: of the model, which a graph is captured with."""
        dtypes = None if state is None else tuple(part.dtype for part in state[0])
        key = (x.shape, dtypes, settings, changes(), gpu_schedule())
        graph = self._graphs.get(key)
        if graph is None and key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > MOST_SHAPES:
                self._seen.popitem(last=False)
            return read(x, state)
        if graph is None:
            if len(self._graphs) == MOST_GRAPHS:
                self._graphs.popitem(last=False)
            graph = self._graphs[key] = _ReadGraph(read, x, state)
        self._graphs.move_to_end(key)
        return graph(x, state)


_GRAPHS: weakref.WeakKeyDictionary[decode_engine.DecodeEngine, ReadGraphs] = weakref.WeakKeyDictionary()


def read_graphs_of(engine: decode_engine.DecodeEngine) -> ReadGraphs:
    """An engine lasts as long as the model's parts stay what they are, and so do the graphs."""
    return _GRAPHS.setdefault(engine, ReadGraphs())


def suits_graph(x: Tensor) -> bool:
    return x.is_cuda and x.shape[1] > 1 and x.numel() <= MOST_TOKENS and not torch.cuda.is_current_stream_capturing()


def copied(state: State) -> State:
    return {block: (c.clone(), n.clone(), m.clone()) for block, (c, n, m) in state.items()}


def overwrite(to: State, of: State) -> None:
    """In few launches."""
    torch._foreach_copy_([x for block in to for x in to[block]], [x for block in to for x in of[block]])
