# SPDX-License-Identifier: Apache-2.0
"""status(model): the path that each part of a model takes, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._core import ops
from .._core.environment import plain_torch_forced
from ..mlstm.select import KernelNames
from .blocks import to_be_called
from .decode_engine import DecodeEngine, engine_runs_kernels
from .hooks import known, watched, watches_gradients


@dataclass(frozen=True)
class Status:
    """The path of each part; `print` shows it as a table. A reason is None where nothing stands in the way of the fast
    path."""

    device: torch.device
    dtype: torch.dtype
    kernels: KernelNames
    plain_torch: str | None  # why no kernel of this package runs
    unfused: dict[str, str]  # parts of blocks that run by themselves, and why
    no_engine: str | None  # why single tokens run layer by layer
    adapted: int = 0  # layers whose LoRA adapters the decode engine has in weights of its own

    @property
    def fast(self) -> bool:
        """Whether every part takes the fast path."""
        return self.plain_torch is None and not self.unfused and self.no_engine is None

    def __str__(self) -> str:
        weights = f", with its own weights for {self.adapted} LoRA layers" if self.adapted else ""
        dtype = str(self.dtype).removeprefix("torch.")
        lines = [
            ("model", f"{dtype} on {self.device}"),
            ("kernels", ", ".join(map(str, self.kernels.values()))),
            ("runs in", "this package's kernels" if self.plain_torch is None else f"plain torch: {self.plain_torch}"),
            ("blocks", "norms, gates and feed-forwards fused" if not self.unfused else "fused, but for"),
            *(("", f"{part}: {reason}") for part, reason in self.unfused.items()),
            (
                "one token",
                f"the decode engine{weights}" if self.no_engine is None else f"layer by layer: {self.no_engine}",
            ),
        ]
        return "\n".join(f"{name:<10} {text}".rstrip() for name, text in lines)


def status_of(
    model: nn.Module,  # that single tokens are decoded for
    embedding: Tensor,
    blocks: nn.Module,
    path: str,  # of the blocks in the model
    kernels: KernelNames,
    state_dtype: str,
    engine: DecodeEngine,
) -> Status:
    device = embedding.device
    return Status(
        device,
        embedding.dtype,
        kernels,
        _why_plain_torch(device),
        _why_unfused((f"{path}.{name}", block) for name, block in blocks.named_children()),
        _why_no_engine(model, engine, kernels, state_dtype),
        engine.adapted,
    )


def _why_plain_torch(device: torch.device) -> str | None:
    if plain_torch_forced():
        return "XLSTM_HIP_BACKEND=reference"
    if device.type not in ops.devices_with_kernels():
        return f"the library has no kernels for {device.type}"
    return None


def _why_unfused(named_blocks: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The parts of blocks that are called as modules instead of inside a fused op."""
    unfused = {}
    for name, block in named_blocks:
        for path in ("norm_mlstm", "mlstm_layer.multihead_norm", "norm_ffn", "ffn"):
            part: nn.Module = block.get_submodule(path)
            if watched(part) or watches_gradients(part):
                unfused[f"{name}.{path}"] = "a hook, or a forward of its own"
            elif not known(part):
                unfused[f"{name}.{path}"] = f"a {type(part).__name__}"
            elif to_be_called(part):
                unfused[f"{name}.{path}"] = "hooks for all modules"
    return unfused


def _why_no_engine(model: nn.Module, engine: DecodeEngine, kernels: KernelNames, state_dtype: str) -> str | None:
    if plain_torch_forced():
        return "XLSTM_HIP_BACKEND=reference"
    if not engine_runs_kernels(kernels["chunkwise_kernel"], kernels["step_kernel"], state_dtype):
        return f"kernels {kernels['chunkwise_kernel']} and {kernels['step_kernel']}, states of {state_dtype}"
    obstacle = engine.obstacle(model)
    if obstacle is None and state_dtype == "bfloat16":
        return "states of bfloat16, which the engine's op does not take; on a GPU its graph holds the layers"
    return obstacle
