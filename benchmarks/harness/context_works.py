# SPDX-License-Identifier: Apache-2.0
"""What the ranks of context_parallel.py do: one sequence over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.model_grid import DEMO, config_of
from xlstm_hip import mlstm_interface
from xlstm_hip.attention import flash_attn_func
from xlstm_hip.distributed import ContextParallel, context_parallel_attention
from xlstm_hip.models import load_pretrained, xLSTMLarge

FORWARD, BACKWARD, PROMPT = "mLSTM", "mLSTM with gradients", "a prompt read by the model"
ATTENTION, ATTENTION_BACKWARD = "causal attention", "causal attention with gradients"
WORKS = (FORWARD, BACKWARD, PROMPT, ATTENTION, ATTENTION_BACKWARD)
OF_ATTENTION = 4  # whose time grows with the square of the tokens: it has so many times fewer
HEAD_DIM = 128  # of attention
SLICE = 131072  # tokens of a prompt that a rank reads at once


@dataclass(frozen=True)
class Task:
    work: str
    tokens: int  # of all ranks
    ranks: int
    device: str
    dtype: torch.dtype
    heads: tuple[int, int, int]  # NH, DHQK, DHHV of the mLSTM by itself
    shape: str  # of the model


def work_of(task: Task, device: torch.device) -> tuple[Callable[[], Tensor], bool]:
    span = _own_span(task.tokens, task.ranks)
    group: Any = dist.group.WORLD
    split = ContextParallel(group, span.stop - span.start) if task.ranks > 1 else None
    # All ranks have the logits after a prompt.
    return WAYS[task.work](task, span, split, device), task.work != PROMPT


def _own_span(tokens: int, ranks: int) -> slice:
    rank = dist.get_rank()
    return slice(rank * tokens // ranks, (rank + 1) * tokens // ranks)


def drawing(task: Task, span: slice, device: torch.device) -> Callable[..., Tensor]:
    """(1, NH, S, features) of a rank's tokens. A column of each is drawn whatever the ranks are, and shared by all
    features; without features it is all."""
    rng = torch.Generator().manual_seed(0)

    def drawn(*features: int) -> Tensor:
        columns = torch.randn(1, task.heads[0], task.tokens, generator=rng)[:, :, span]
        if not features:
            return columns.to(device, task.dtype)
        features_of = torch.randn(*features, generator=rng)
        return (columns[..., None] * features_of).to(device, task.dtype)

    return drawn


def passes(forward: Callable[..., Tensor], tensors: list[Tensor], with_gradients: bool) -> Callable[[], Tensor]:
    """Returns the output, or the third tensor's gradient."""
    if with_gradients:
        tensors = [x.requires_grad_() for x in tensors]

    def call() -> Tensor:
        out = forward(*tensors)
        return torch.autograd.grad(out, tensors, out.detach())[2] if with_gradients else out

    return call


def _mlstm(task: Task, span: slice, split: ContextParallel | None, device: torch.device) -> Callable[[], Tensor]:
    _, dqk, dhv = task.heads
    drawn = drawing(task, span, device)
    tensors = [drawn(dqk), drawn(dqk), drawn(dhv), drawn(), drawn() + 3]
    return passes(partial(mlstm_interface, cp_group=split), tensors, task.work == BACKWARD)


def _attention(task: Task, span: slice, split: ContextParallel | None, device: torch.device) -> Callable[[], Tensor]:
    drawn = drawing(task, span, device)
    tensors = [drawn(HEAD_DIM).transpose(1, 2).contiguous() for _ in range(3)]
    forward: Callable[..., Tensor] = partial(flash_attn_func, causal=True)
    if split is not None:
        forward = partial(context_parallel_attention, cp_group=split)
    return passes(forward, tensors, task.work == ATTENTION_BACKWARD)


def _prompt(task: Task, span: slice, split: ContextParallel | None, device: torch.device) -> Callable[[], Tensor]:
    config = config_of(task.shape)
    if config is None:
        model = load_pretrained(DEMO, task.dtype, device, progress=False)
    else:
        torch.manual_seed(0)
        with torch.device(device):
            model = xLSTMLarge(config).to(task.dtype)
    model.config.mode = "inference"
    prompt = torch.randint(3, model.config.vocab_size, (1, task.tokens), generator=torch.Generator().manual_seed(0))
    # As many tokens at once as a rank has memory for, on with the state.
    slices = [part[:, _own_span(part.shape[1], task.ranks)].to(device) for part in prompt.split(SLICE * task.ranks, 1)]
    splits = [split and ContextParallel(split.group, x.shape[1]) for x in slices]

    @torch.no_grad()
    def read() -> Tensor:
        state = None
        for x, of_slice in zip(slices, splits, strict=True):
            logits, state = model.read(x, state, cp_group=of_slice)
        return logits

    return read


WAYS = {
    FORWARD: _mlstm,
    BACKWARD: _mlstm,
    PROMPT: _prompt,
    ATTENTION: _attention,
    ATTENTION_BACKWARD: _attention,
}
