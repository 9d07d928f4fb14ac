# SPDX-License-Identifier: Apache-2.0
"""What the ranks of tensor_parallel.py do: a model that is divided over them writes, or is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from harness.model_grid import DEMO, ROUNDED, config_of
from harness.training import SIZES, Step, optimizer_of
from xlstm_hip.bench.registry import DTYPES
from xlstm_hip.distributed import tensor_parallel
from xlstm_hip.models import Stream, load_pretrained, xLSTMLarge
from xlstm_hip.quantize import quantize

PROMPT, STEPS = 16, 64  # tokens


@dataclass(frozen=True)
class Writing:
    ranks: int
    batch: int
    shape: str
    dtype: str
    weights: str  # the dtype, int8 or int4


@dataclass(frozen=True)
class Training:
    ranks: int
    size: str


def writing(task: Writing, device: torch.device) -> tuple[Callable[[], Tensor], bool]:
    """STEPS steps of the most probable tokens, each a replayed graph on a GPU."""
    config = config_of(task.shape)
    torch.manual_seed(0)
    if config is None:
        model = load_pretrained(DEMO, DTYPES[task.dtype], device, progress=False)
    else:
        with torch.device(device):
            model = xLSTMLarge(config).to(DTYPES[task.dtype])
    model.config.mode = "inference"
    if task.weights in ROUNDED:
        model = quantize(model, ROUNDED[task.weights], progress=False)[0]
    if task.ranks > 1:
        model = tensor_parallel(model, init_device_mesh(device.type, (task.ranks,)))
    prompt = torch.randint(3, model.config.vocab_size, (task.batch, PROMPT), generator=torch.Generator().manual_seed(0))
    stream = Stream(model, task.batch)
    logits = stream.feed(prompt.to(device)).clone()
    tokens = stream.tokens()
    next(tokens)

    def write() -> Tensor:
        for _ in range(STEPS):
            next(tokens)
        return logits

    write()
    reason = model.status().no_engine
    if reason is not None:
        raise SystemExit(f"xlstm_hip: expected steps on the decode engine: {reason}")
    return write, False


def training(task: Training, device: torch.device) -> tuple[Callable[[], Tensor], bool]:
    """A step of AdamW, with autocast to bfloat16."""
    size = SIZES[task.size]
    torch.manual_seed(0)
    with torch.device(device):
        model = xLSTMLarge(size.config())
    if task.ranks > 1:
        model = tensor_parallel(model, init_device_mesh(device.type, (task.ranks,)), sequence_parallel=True)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, size.vocab, (size.batch, size.length + 1), generator=generator)
    return Step(model, optimizer_of(model), tokens.to(device), compiled=False), False
