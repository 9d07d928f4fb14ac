# SPDX-License-Identifier: Apache-2.0
"""xlstm.xlstm_large's names: its model, loader and conversion, and the parts that transformers takes from it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from .. import layers
from ..models import blocks, load_pretrained, xLSTMLarge, xLSTMLargeConfig
from ..models.checkpoint import checkpoint_folder
from ..models.config_files import FIELDS, YAML_FILE, stored_config
from ..models.mapping import FUSED
from ..models.mlstm_call import LayerState

# Annotations of the configuration; here any registered kernel is legal.
TYPES = {
    "ChunkwiseKernelType": str,
    "SequenceKernelType": str,
    "StepKernelType": str,
    "BackendModeType": Literal["train", "train_with_padding", "inference"],
    "DtypeType": Literal["float32", "bfloat16", "float16"],
}
WEIGHT_MODE_TYPE = Literal["single", "fused"]


class RMSNorm(blocks.RMSNorm):
    """With the official arguments."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-6,
        use_weight: bool = True,
        use_bias: bool = False,
        force_float32_reductions: bool = True,
    ) -> None:
        if not use_weight:
            raise ValueError("use_weight: expected True, got False")
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features)) if use_bias else None
        self.num_features, self.eps, self.force_float32_reductions = num_features, eps, force_float32_reductions


class mLSTMBlock(blocks.mLSTMBlock):
    """Of any configuration that has the official fields, transformers' among them."""

    def __init__(self, config: Any) -> None:
        names = [name for name in FIELDS if hasattr(config, name)]
        super().__init__(xLSTMLargeConfig(**{name: getattr(config, name) for name in names}))

    def forward(self, x: Tensor, state: LayerState | None = None) -> Any:  # type: ignore[override]
        return super().forward(x, state)


def soft_cap(values: Tensor, cap_value: float | None) -> Tensor:
    return layers.soft_cap(values, cap_value)


def round_up_to_next_multiple_of(x: float, multiple_of: int) -> int:
    return int(((x + multiple_of - 1) // multiple_of) * multiple_of)


def load_from_pretrained(
    checkpoint_path: str | os.PathLike[str],
    return_last_states: bool | None = None,
    chunkwise_kernel_name: str | None = None,
    sequence_kernel_name: str | None = None,
    step_kernel_name: str | None = None,
    backend_mode: str | None = "inference",
    chunk_size: int | None = None,
) -> xLSTMLarge:
    """As the official loader has it: in float32, and what is None is as config.yaml says, or as the official
    configuration has it by default. But kernels that are not named are the best ones of this package."""
    file, fields, _ = stored_config(checkpoint_folder("checkpoint_path", checkpoint_path))
    official = {"mode": "train", "return_last_states": False}
    stored = {name: fields.get(name, x) for name, x in official.items()} if file.name == YAML_FILE else {}
    given: dict[str, Any] = {
        "return_last_states": return_last_states,
        "chunkwise_kernel": chunkwise_kernel_name,
        "sequence_kernel": sequence_kernel_name,
        "step_kernel": step_kernel_name,
        "mode": backend_mode,
        "chunk_size": chunk_size,
    }
    given = stored | {name: x for name, x in given.items() if x is not None}
    return load_pretrained(checkpoint_path, torch.float32, **given)


def convert_single_weights_to_fused_weights(single_weight_state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For any number of blocks, in whatever order the names come."""
    fused: dict[str, Tensor] = {}
    for name, x in single_weight_state_dict.items():
        match = re.fullmatch(r"(.*blocks\.\d+\.)(.+)\.(weight|bias)", name)
        whole = next((w for w, parts in FUSED.items() if match and match[2] in parts), None)
        if match is None or whole is None:
            fused[name] = x
            continue
        parts = [single_weight_state_dict[f"{match[1]}{part}.{match[3]}"] for part in FUSED[whole]]
        if parts[0] is x:
            fused[f"{match[1]}{whole}.{match[3]}"] = torch.cat(parts)
    return fused


def contents() -> dict[str, Mapping[str, Any]]:
    """What comes after xlstm.xlstm_large in a module's name, to what it holds."""
    models = {"xLSTMLarge": xLSTMLarge, "xLSTMLargeConfig": xLSTMLargeConfig}
    parts = {"RMSNorm": RMSNorm, "soft_cap": soft_cap}
    rounding = {"round_up_to_next_multiple_of": round_up_to_next_multiple_of}
    states = {"mLSTMLayerStateType": LayerState, "mLSTMStateType": dict[int, LayerState]}
    return {
        "": models,
        ".model": {
            **models, **parts, **rounding, **states, **TYPES,
            "mLSTMBlock": mLSTMBlock, "WeightModeType": WEIGHT_MODE_TYPE,
        },
        ".components": parts,
        ".from_pretrained": {"load_from_pretrained": load_from_pretrained},
        ".utils": {
            **rounding, "convert_single_weights_to_fused_weights": convert_single_weights_to_fused_weights,
        },
    }  # fmt: skip
