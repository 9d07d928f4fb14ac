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
from ..models.language_model import State

# The official model's kernels on a CPU: its default kernels are Triton's.
OFFICIAL_CPU_KERNELS = dict(zip(("chunkwise_kernel", "sequence_kernel", "step_kernel"), NATIVE, strict=True))


class Written:
    """A model that has read a text: `logits` of the next token, and write(n), which takes n steps from token to token
    and gives the tokens (B, n + 1): the one that it began with, and those that the steps chose. state: of ours, after
    what it has read, until it writes."""

    def __init__(self, logits: Tensor, write: Callable[[int], Tensor], state: State | None = None) -> None:
        self.logits, self.write, self.state = logits, write, state


class Reader(Protocol):
    """(B, S) -> having read it, after what the state is of, which stays as it was; None: from the beginning."""

    def __call__(self, x: Tensor, state: State | None = None) -> Written: ...


def copy_of(state: State) -> State:
    return {block: (c.clone(), n.clone(), m.clone()) for block, (c, n, m) in state.items()}


def of_package(model: xLSTMLarge) -> Reader:
    def read(x: Tensor, state: State | None = None) -> Written:
        stream = Stream(model, x.shape[0], None if state is None else copy_of(state))
        logits = stream.feed(x)

        def write(n: int) -> Tensor:
            return torch.stack(list(stream.tokens(n + 1)), 1)  # the first is chosen without a step

        return Written(logits, write, stream.state)

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

    def read(x: Tensor, state: State | None = None) -> Written:
        before = None if state is None else cache_of(state)
        name = importlib.import_module("..integrations.hf", __package__).CACHE
        out = model(x, use_cache=True, logits_to_keep=1, **{name: before})
        cache = [getattr(out, name)]

        def step(tokens: Tensor) -> Tensor:
            output = model(tokens, use_cache=True, **{name: cache[0]})
            cache[0] = getattr(output, name)
            return output.logits[:, -1]

        return Written(out.logits[:, -1], _greedy(out.logits[:, -1], step))

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


def of_official(model: Any) -> Reader:
    def read(x: Tensor, state: State | None = None) -> Written:
        logits, new_state = model(x, None if state is None else copy_of(state))

        def step(tokens: Tensor) -> Tensor:
            return model(tokens, new_state)[0][:, -1]  # writes the state in place

        return Written(logits[:, -1], _greedy(logits[:, -1], step))

    return read


class Captured:
    """The official model's step, compiled by torch and captured as one graph for each batch, from token to token."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._compiled = torch.compile(model.forward, dynamic=False)
        self._steps: dict[int, tuple[Tensor, State, Callable[[], None]]] = {}

    def _step(self, batch: int, like: State) -> tuple[Tensor, State, Callable[[], None]]:
        """The token's tensor, the states' tensors, and the function that moves them one token on."""
        state = copy_of(like)
        token = torch.zeros((batch, 1), dtype=torch.long, device=state[0][0].device)

        def move() -> None:
            logits, _ = self._compiled(token, state)  # writes the state in place
            token.copy_(logits[:, -1].argmax(-1, keepdim=True))

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # compiles, and lets Triton choose
                move()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            move()
        return token, state, graph.replay

    def __call__(self, x: Tensor, state: State | None = None) -> Written:
        logits, read = self.model(x, None if state is None else copy_of(state))
        first = logits[:, -1].argmax(-1, keepdim=True)

        def write(n: int) -> Tensor:
            batch = x.shape[0]
            if batch not in self._steps:
                self._steps[batch] = self._step(batch, read)
            token, graph_state, replay = self._steps[batch]
            token.copy_(first)
            for block, parts in read.items():
                for target, part in zip(graph_state[block], parts, strict=True):
                    target.copy_(part)
            generated = [first]
            for _ in range(n):
                replay()
                generated.append(token.clone())
            return torch.cat(generated, 1)

        return Written(logits[:, -1], write)
