# SPDX-License-Identifier: Apache-2.0
"""Training steps of whole models: ours and the official xlstm_large, eager and compiled, with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.readers import official_model
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.models import xLSTMLarge, xLSTMLargeConfig

OFFICIAL = "xlstm_large"
COMPILED = "compiled"
CONTENDERS = (XLSTM_HIP, f"{XLSTM_HIP} {COMPILED}", OFFICIAL, f"{OFFICIAL} {COMPILED}")
LOSS_ERROR = 5e-3  # of the first step, between models of the same weights: that of bfloat16 products
GROUPS = {  # of a profile's kernels, by what their names have
    "matrix products": ("gemm", "nvjet", "cutlass", "splitkreduce", "cijk_", "hipblaslt"),
    "mLSTM": ("mlstm", "chunk_", "recurrent"),
    "norms, SwiGLU, caps, loss": ("norm", "swiglu", "soft_cap", "cross_entropy", "softmax", "pointwise<", "slices"),
    "optimizer": ("multi_tensor_apply", "fusedoptimizer"),
    "casts and copies": ("copy", "memcpy", "_to_copy"),
}
OTHER, IDLE = "sums and others", "idle"


@dataclass(frozen=True)
class Size:
    """A model, and the tokens of a step."""

    features: int
    blocks: int
    heads: int
    vocab: int
    batch: int
    length: int

    def config(self) -> xLSTMLargeConfig:
        return xLSTMLargeConfig(
            embedding_dim=self.features, num_heads=self.heads, num_blocks=self.blocks, vocab_size=self.vocab
        )


SIZES = {
    "24x1024": Size(1024, 24, 4, 50304, 8, 2048),
    "160m": Size(768, 12, 4, 50304, 16, 2048),
    "7b-blocks": Size(4096, 4, 8, 50304, 4, 2048),
    "tiny": Size(128, 2, 4, 97, 2, 64),
}


def official_like(model: xLSTMLarge, kernel: str, device: torch.device) -> nn.Module:
    # Its state stays in the result: without, its layer fails, since it unpacks a state that is not there.
    kernels = {} if device.type == "cpu" else {"chunkwise_kernel": kernel}
    return official_model(model, torch.float32, device, mode="train", **kernels).train()


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """As a user trains it: ours by its own loss, the official one by torch's."""
    if isinstance(model, xLSTMLarge):
        return model.loss

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        logits, _ = model(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return loss


class Step:
    """One step of AdamW with autocast to bfloat16, of one batch."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, compiled: bool) -> None:
        self.optimizer, self.device = optimizer, x.device
        self.x, self.targets = x[:, :-1].contiguous(), x[:, 1:].contiguous()
        self.loss = torch.compile(loss_of(model), dynamic=False) if compiled else loss_of(model)

    def __call__(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.loss(self.x, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def group_of(kernel: str) -> str:
    name = kernel.lower()
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), OTHER)


def gpu_kernels(step: Step) -> Iterator[tuple[str, float]]:
    """The names and ms of what a step runs on the GPU."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize(step.device)
    for event in profile.key_averages():
        if event.self_device_time_total:
            yield event.key, event.self_device_time_total * 1e-3


def time_by_group(step: Step, machine: Machine, ms: float) -> dict[str, float] | None:
    """Where the ms of a step go; idle: no kernel runs. None on a CPU."""
    if not machine.gpu:
        return None
    spent: dict[str, Any] = dict.fromkeys((*GROUPS, OTHER), 0.0)
    for name, taken in gpu_kernels(step):
        spent[group_of(name)] += taken
    return spent | {IDLE: max(0.0, ms - sum(spent.values()))}
