# SPDX-License-Identifier: Apache-2.0
"""Models that read a prompt and generate, ours and others', behind one interface."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..mlstm.select import NATIVE
from ..models import Stream, xLSTMLarge
from ..models.decode_engine import captured
from ..models.language_model import State
from ..models.read_graphs import copied

# The official model's kernels on a CPU: its default kernels are Triton's.
OFFICIAL_CPU_KERNELS = dict(zip(("chunkwise_kernel", "sequence_kernel", "step_kernel"), NATIVE, strict=True))
COMPILED_SHAPES = 64  # so many may one function be compiled for
STEPS_BEFORE_GRAPH = 3


class Written:
    """A model that has read a text.

    logits   (B, V) of the next token
    write    write(n) takes n steps from token to token and gives the tokens (B, n + 1): the one that it began with, and
             those that the steps chose
    state    of ours, after what it has read, until it writes
    read_on  reads more of the text, (B, S), from the state so far; instead of writing
    """

    def __init__(
        self,
        logits: Tensor,
        write: Callable[[int], Tensor],
        state: State | None = None,
        read_on: Callable[[Tensor], Written] | None = None,
    ) -> None:
        self.logits, self.write, self.state = logits, write, state
        self._read_on = read_on

    def read_on(self, x: Tensor) -> Written:
        if self._read_on is None:
            raise ValueError("read_on: expected a reader that continues from its state, got one that does not")
        return self._read_on(x)


class Reader(Protocol):
    """(B, S) -> having read it, after what the state is of, which stays as it was; None: from the beginning."""

    def __call__(self, x: Tensor, state: State | None = None) -> Written: ...


def of_package(model: xLSTMLarge) -> Reader:
    def go_on(stream: Stream, x: Tensor) -> Written:
        logits = stream.feed(x)

        def write(n: int) -> Tensor:
            return torch.stack(list(stream.tokens(n + 1)), 1)  # the first is chosen without a step

        return Written(logits, write, stream.state, lambda more: go_on(stream, more))

    def read(x: Tensor, state: State | None = None) -> Written:
        return go_on(Stream(model, x.shape[0], None if state is None else copied(state)), x)

    return read


def _greedy(first: Tensor, step: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
    """The loop that a user of a model with a state writes."""
    last = [first.argmax(-1, keepdim=True)]

    def write(n: int) -> Tensor:
        generated = [last[0]]
        for _ in range(n):
            last[0] = step(last[0]).argmax(-1, keepdim=True)
            generated.append(last[0])
        return torch.cat(generated, 1)

    return write


def transformers_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(device)


def of_transformers(model: Any) -> Reader:
    def cache_of(state: State) -> Any:
        """In its own dtype, which is the model's."""
        batch = state[0][0].shape[0]
        kind = importlib.import_module("transformers.models.xlstm.modeling_xlstm").xLSTMCache
        cache = kind(model.config, batch, dtype=model.dtype, device=model.device)
        for block, parts in state.items():
            for target, part in zip(cache.rnn_state[block], parts, strict=True):
                target.copy_(part)
        return cache

    name = importlib.import_module("..integrations.hf", __package__).CACHE

    def go_on(x: Tensor, before: Any) -> Written:
        out = model(x, use_cache=True, logits_to_keep=1, **{name: before})
        cache = [getattr(out, name)]

        def step(tokens: Tensor) -> Tensor:
            output = model(tokens, use_cache=True, **{name: cache[0]})
            cache[0] = getattr(output, name)
            return output.logits[:, -1]

        return Written(out.logits[:, -1], _greedy(out.logits[:, -1], step), read_on=lambda more: go_on(more, cache[0]))

    def read(x: Tensor, state: State | None = None) -> Written:
        return go_on(x, None if state is None else cache_of(state))

    return read


def official_model(like: xLSTMLarge, dtype: torch.dtype, device: torch.device, **changes: Any) -> Any:
    """The official model with the same weights, for inference; changes: of its configuration."""
    package = importlib.import_module("xlstm.xlstm_large.model")
    copied = ("embedding_dim", "num_heads", "num_blocks", "vocab_size", "ffn_proj_factor", "weight_mode")
    fields = {name: getattr(like.config, name) for name in copied} | {"mode": "inference", "return_last_states": True}
    kernels = OFFICIAL_CPU_KERNELS if device.type == "cpu" else {}
    with torch.device(device):  # weights that are thrown away are made faster there
        model: nn.Module = package.xLSTMLarge(package.xLSTMLargeConfig(**fields | kernels | changes))
    model.load_state_dict(like.state_dict())
    return model.to(device, dtype).eval()


def compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled by torch for each shape that it meets."""
    config = torch._dynamo.config
    config.recompile_limit = COMPILED_SHAPES
    config.fail_on_recompile_limit_hit = True  # otherwise a shape too many runs eagerly, without a word
    return torch.compile(forward, dynamic=False)


def of_official(model: Any, compile: bool = False) -> Reader:
    forward = compiled(model.forward) if compile else model

    def go_on(x: Tensor, before: State | None) -> Written:
        logits, state = forward(x, before)

        def step(tokens: Tensor) -> Tensor:
            return forward(tokens, state)[0][:, -1]  # writes the state in place

        return Written(logits[:, -1], _greedy(logits[:, -1], step), read_on=lambda more: go_on(more, state))

    def read(x: Tensor, state: State | None = None) -> Written:
        return go_on(x, None if state is None else copied(state))

    return read


class GraphWriter:
    """write(n) of a text by a graph of one step, from token to token.

    The first steps run as they are: they compile, and let Triton choose. The graph works on the state that was read, so
    that there is no second one.
    """

    def __init__(self, forward: Callable[..., Any], first: Tensor, state: State) -> None:
        self._forward, self._token, self._state = forward, first.clone(), state
        self._steps = 0
        self._replay: Callable[[], None] | None = None

    def _move(self) -> None:
        logits, _ = self._forward(self._token, self._state)  # writes the state in place
        self._token.copy_(logits[:, -1].argmax(-1, keepdim=True))

    def _step(self) -> None:
        if self._steps == STEPS_BEFORE_GRAPH:
            self._replay = captured(self._move)
        self._steps += 1
        (self._replay or self._move)()

    def __call__(self, n: int) -> Tensor:
        tokens = [self._token.clone()]
        for _ in range(n):
            self._step()
            tokens.append(self._token.clone())
        return torch.cat(tokens, 1)


def of_official_in_graph(model: Any, compile: bool) -> Reader:
    """The official model, whose step, as it is or compiled by torch, is one graph for each text."""
    forward = compiled(model.forward) if compile else model.forward

    def read(x: Tensor, state: State | None = None) -> Written:
        logits, new_state = model(x, None if state is None else copied(state))
        return Written(logits[:, -1], GraphWriter(forward, logits[:, -1].argmax(-1, keepdim=True), new_state))

    return read
