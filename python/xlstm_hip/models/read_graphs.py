# SPDX-License-Identifier: Apache-2.0
"""Reading a few hundred tokens through a model as one GPU graph, by themselves or beside a step of other sequences.

A block of the model is some thirty launches, which the host needs longer for than a GPU needs to compute some hundred
tokens: a long prompt read in chunks, with others served in between, would take twice as long as at once. The first call
of a shape runs normally, the second is captured, and later ones are replayed. A graph has states of its own, so that
every sequence can use it: a sequence's states are copied in and out, at a copy's rate.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._core.environment import gpu_schedule
from .._core.plans import changes
from . import decode_engine

if TYPE_CHECKING:
    from .language_model import State

MOST_TOKENS = 2048  # more keep a GPU busy for longer than the host needs to launch them
MOST_GRAPHS = 4  # that are kept, the latest used; each has what its layers need, and states
LENGTHS_BESIDE_A_STEP = 2  # of graphs that are kept for each kind of step
MOST_SHAPES = 64  # that are remembered as seen
# tokens, state, mask -> logits of the next token, state
Read = Callable[[Tensor, "State | None", "Tensor | None"], tuple[Tensor, "State"]]
Key = tuple
Graph = TypeVar("Graph")


class StepAndReadInputs(NamedTuple):
    """What xLSTMLarge.step_and_read takes: of the rows, and of the sequence."""

    tokens: Tensor  # (B)
    state: State
    mask: Tensor | None  # (B)
    x: Tensor  # (1, S)
    read_state: State
    read_mask: Tensor | None  # (1, S)

    @property
    def copied_ones(self) -> tuple[Tensor | None, ...]:
        """What a graph has copies of; its rows' states it has by address."""
        return self.tokens, self.mask, self.x, self.read_mask


StepAndRead = Callable[[StepAndReadInputs], tuple[Tensor, Tensor]]  # -> logits of the rows and of the sequence


class _Inputs:
    """Tensors at fixed addresses, which a graph reads."""

    def __init__(self, *tensors: Tensor | None) -> None:
        self.tensors = [None if x is None else x.clone() for x in tensors]

    def set(self, *tensors: Tensor | None) -> None:
        for own, x in zip(self.tensors, tensors, strict=True):
            if own is not None and x is not None:
                own.copy_(x)


class _ReadGraph:
    """The graph of one shape, with tokens, mask, states and logits at fixed addresses."""

    def __init__(self, read: Read, x: Tensor, state: State | None, mask: Tensor | None) -> None:
        self._inputs = _Inputs(x, mask)
        self._state = None if state is None else copied(state)
        self._replay = decode_engine.captured(lambda: self._read(read))

    def _read(self, read: Read) -> None:
        x, mask = self._inputs.tensors
        assert x is not None
        self._logits, self._last = read(x, self._state, mask)

    def __call__(self, x: Tensor, state: State | None, mask: Tensor | None) -> tuple[Tensor, State]:
        self._inputs.set(x, mask)
        if state is not None and self._state is not None:
            overwrite(self._state, state)
        self._replay()
        if state is None:
            return self._logits.clone(), copied(self._last)
        overwrite(state, self._last)
        return self._logits.clone(), state


class _StepAndReadGraph:
    """The graph of one shape and of the rows' states, which it has by address; the sequence's are copied."""

    def __init__(self, call: StepAndRead, given: StepAndReadInputs) -> None:
        self._inputs = _Inputs(*given.copied_ones)
        tokens, mask, x, read_mask = self._inputs.tensors
        assert tokens is not None and x is not None
        self._given = StepAndReadInputs(tokens, given.state, mask, x, copied(given.read_state), read_mask)
        self._replay = decode_engine.captured(lambda: self._run(call))

    def _run(self, call: StepAndRead) -> None:
        self._logits, self._read_logits = call(self._given)

    def __call__(self, given: StepAndReadInputs) -> tuple[Tensor, Tensor]:
        self._inputs.set(*given.copied_ones)
        overwrite(self._given.read_state, given.read_state)
        self._replay()
        overwrite(given.read_state, self._given.read_state)
        return self._logits.clone(), self._read_logits.clone()


class ReadGraphs:
    """The graphs of a model as it is now, by shape.

    most_with_steps    of those of step_and_read that are kept
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._graphs: OrderedDict[Key, _ReadGraph] = OrderedDict()
        self._with_steps: OrderedDict[Key, _StepAndReadGraph] = OrderedDict()
        self.most_with_steps = 1

    def read(
        self, read: Read, x: Tensor, state: State | None, mask: Tensor | None, settings: str
    ) -> tuple[Tensor, State]:
        """What `read` returns; a given state is overwritten. settings: of the model, which a graph is captured with."""
        dtypes = None if state is None else tuple(part.dtype for part in state[0])
        key = (x.shape, mask is None, dtypes, settings, changes(), gpu_schedule())
        graph = self._graph_for(self._graphs, MOST_GRAPHS, key, lambda: _ReadGraph(read, x, state, mask))
        return read(x, state, mask) if graph is None else graph(x, state, mask)

    def step_and_read(self, call: StepAndRead, given: StepAndReadInputs, settings: str) -> tuple[Tensor, Tensor]:
        """What `call` returns; both states are overwritten."""
        addresses = tuple(part.data_ptr() for layer in given.state.values() for part in layer)
        dtypes = tuple(part.dtype for part in given.state[0])
        shapes = tuple(None if part is None else part.shape for part in given.copied_ones)
        key = (shapes, dtypes, addresses, settings, changes(), gpu_schedule())
        most = self.most_with_steps
        graph = self._graph_for(self._with_steps, most, key, lambda: _StepAndReadGraph(call, given))
        return call(given) if graph is None else graph(given)

    def _graph_for(
        self, graphs: OrderedDict[Key, Graph], most: int, key: Key, make: Callable[[], Graph]
    ) -> Graph | None:
        """The graph of a key: none at its first call, made at its second. Those unused for longest make room."""
        if key not in graphs:
            if not self._came_before(key):
                return None
            while len(graphs) >= most:
                graphs.popitem(last=False)
            graphs[key] = make()
        graphs.move_to_end(key)
        return graphs[key]

    def _came_before(self, key: Key) -> bool:
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > MOST_SHAPES:
            self._seen.popitem(last=False)
        return False


_GRAPHS: weakref.WeakKeyDictionary[decode_engine.DecodeEngine, ReadGraphs] = weakref.WeakKeyDictionary()


def read_graphs_of(engine: decode_engine.DecodeEngine) -> ReadGraphs:
    """An engine lasts as long as the model's parts stay what they are, and so do the graphs."""
    graphs = _GRAPHS.setdefault(engine, ReadGraphs())
    graphs.most_with_steps = LENGTHS_BESIDE_A_STEP * engine.most_graphs
    return graphs


def suits_graph(x: Tensor) -> bool:
    return x.is_cuda and x.shape[1] > 1 and x.numel() <= MOST_TOKENS and not torch.cuda.is_current_stream_capturing()


def copied(state: State) -> State:
    return {block: (c.clone(), n.clone(), m.clone()) for block, (c, n, m) in state.items()}


def overwrite(to: State, of: State) -> None:
    """In few launches."""
    torch._foreach_copy_([x for block in to for x in to[block]], [x for block in to for x in of[block]])
