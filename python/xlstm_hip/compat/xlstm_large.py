# SPDX-License-Identifier: Apache-2.0
"""xlstm.xlstm_large's names: its model, the parts that it is made of, loader and conversion."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from .. import layers
from ..mlstm.backend import mLSTMBackendConfig
from ..models import blocks, load_pretrained, norms, xLSTMLarge, xLSTMLargeConfig
from ..models.config_files import FIELDS, YAML_FILE, stored_config
from ..models.hub import checkpoint_folder
from ..models.mapping import FUSED
from ..models.mlstm_call import LayerState
from ..models.xlstm_large import xLSTMLargeBlockStack
from . import generate
from .mlstm_calls import mLSTMBackend

XLSTM_VERSION = "2.0.6"  # whose interface this is

# Modules and names of `import xlstm` beside xlstm_large. Without a real xlstm they are refused by name.
NOT_OFFERED_MODULES = ("blocks", "components", "utils", "xlstm_block_stack", "xlstm_lm_model")
NOT_OFFERED_NAMES = (
    "FeedForwardConfig", "GatedFeedForward", "mLSTMBlock", "mLSTMBlockConfig", "mLSTMLayer", "mLSTMLayerConfig",
    "sLSTMBlock", "sLSTMBlockConfig", "sLSTMLayer", "sLSTMLayerConfig", "xLSTMBlockStack", "xLSTMBlockStackConfig",
    "xLSTMLMModel", "xLSTMLMModelConfig",
)  # fmt: skip

# Annotations of the configuration; here any registered kernel is legal.
TYPES = {
    "ChunkwiseKernelType": str,
    "SequenceKernelType": str,
    "StepKernelType": str,
    "BackendModeType": Literal["train", "train_with_padding", "inference"],
    "DtypeType": Literal["float32", "bfloat16", "float16"],
}
WEIGHT_MODE_TYPE = Literal["single", "fused"]


def _our_config(config: Any) -> xLSTMLargeConfig:
    """From any configuration that has the official fields, transformers' among them."""
    if isinstance(config, xLSTMLargeConfig):
        return config
    return xLSTMLargeConfig(**{name: getattr(config, name) for name in FIELDS if hasattr(config, name)})


def _copy_of_state(state: LayerState | None) -> LayerState | None:
    """The official blocks leave a given state as it is; ours write the next one over it."""
    return None if state is None else (state[0].clone(), state[1].clone(), state[2].clone())


@dataclass
class mLSTMLayerConfig:
    """The official fields."""

    embedding_dim: int
    num_heads: int
    use_bias: bool = False
    norm_eps: float = 1e-6
    norm_reduction_force_float32: bool = True
    qk_dim_factor: float = 0.5
    v_dim_factor: float = 1.0
    gate_soft_cap: float | None = 15.0
    mlstm_backend: mLSTMBackendConfig = field(default_factory=mLSTMBackendConfig)
    weight_mode: str = "single"

    def __post_init__(self) -> None:
        if not isinstance(self.mlstm_backend, mLSTMBackendConfig):
            raise TypeError(f"mlstm_backend: expected mLSTMBackendConfig, got {type(self.mlstm_backend).__name__}")
        self._of_a_model()

    def _of_a_model(self) -> xLSTMLargeConfig:
        """A model's configuration with these fields; making one checks them."""
        options = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "mlstm_backend"}
        return xLSTMLargeConfig(num_blocks=1, vocab_size=1, **options)

    @property
    def qk_dim(self) -> int:
        return self._of_a_model().qk_dim

    @property
    def v_dim(self) -> int:
        return self._of_a_model().v_dim

    def backend_config(self, *call: Any) -> mLSTMBackendConfig:
        """The same for a call of any shape, on any device."""
        return self.mlstm_backend

    def kernel_options(self) -> dict[str, Any]:
        return {}


class mLSTMLayer(blocks.mLSTMLayer):
    def __init__(self, config: mLSTMLayerConfig) -> None:
        super().__init__(config)

    def forward(self, x: Tensor, state: LayerState | None = None, *inner: Any) -> Any:
        """(B, S, D), and (c, n, m) or None. Within a block it is called with a mask and a call, too."""
        return super().forward(x, state if inner else _copy_of_state(state), *inner)


class FeedForward(blocks.FeedForward):
    def __init__(self, config: Any) -> None:
        super().__init__(_our_config(config))
        self.config = config
        self.up_proj_dim = self.proj_down.in_features


class mLSTMBlock(blocks.mLSTMBlock):
    def __init__(self, config: Any) -> None:
        super().__init__(_our_config(config))

    def forward(self, x: Tensor, state: LayerState | None = None) -> Any:  # type: ignore[override]
        return super().forward(x, _copy_of_state(state))


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
    folder = checkpoint_folder("checkpoint_path", checkpoint_path)
    file, found, _ = stored_config(folder)
    official = {"mode": "train", "return_last_states": False}
    stored = {name: found.get(name, x) for name, x in official.items()} if file.name == YAML_FILE else {}
    options: dict[str, Any] = {
        "return_last_states": return_last_states,
        "chunkwise_kernel": chunkwise_kernel_name,
        "sequence_kernel": sequence_kernel_name,
        "step_kernel": step_kernel_name,
        "mode": backend_mode,
        "chunk_size": chunk_size,
    }
    options = stored | {name: x for name, x in options.items() if x is not None}
    return load_pretrained(folder, torch.float32, **options)


def convert_single_weights_to_fused_weights(single_weight_state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For any number of blocks, in whatever order the names come."""
    fused: dict[str, Tensor] = {}
    for name, x in single_weight_state_dict.items():
        match = re.fullmatch(r"(.*blocks\.\d+\.)(.+)\.(weight|bias)", name)
        fused_name = next((w for w, parts in FUSED.items() if match and match[2] in parts), None)
        if match is None or fused_name is None:
            fused[name] = x
            continue
        parts = [single_weight_state_dict[f"{match[1]}{part}.{match[3]}"] for part in FUSED[fused_name]]
        if parts[0] is x:
            fused[f"{match[1]}{fused_name}.{match[3]}"] = torch.cat(parts)
    return fused


def not_offered(name: str) -> ImportError:
    return ModuleNotFoundError(
        f"{name}: xlstm_hip.compat has xlstm.xlstm_large alone. sLSTM is not offered yet, and so no xLSTMBlockStack, "
        "xLSTMLMModel or their parts; with `pip install xlstm` the real ones work beside xlstm_hip.compat",
        name=name,
    )


def _getattr(name: str) -> Any:
    """xlstm's, as `from xlstm import xLSTMBlockStack` asks it."""
    if name in NOT_OFFERED_NAMES or name in NOT_OFFERED_MODULES:
        raise not_offered(f"xlstm.{name}")
    raise AttributeError(f"module 'xlstm' has no attribute {name!r}")


def package() -> dict[str, Any]:
    """The contents of `xlstm` itself, where no real one is installed."""
    return {"__version__": XLSTM_VERSION, "__getattr__": _getattr}


def contents() -> dict[str, Mapping[str, Any]]:
    """Module name, without xlstm.xlstm_large, to the module's attributes."""
    models = {"xLSTMLarge": xLSTMLarge, "xLSTMLargeConfig": xLSTMLargeConfig}
    layer = {"mLSTMLayer": mLSTMLayer, "mLSTMLayerConfig": mLSTMLayerConfig}
    parts = {"MultiHeadLayerNorm": norms.MultiHeadLayerNorm, "RMSNorm": norms.RMSNorm, "soft_cap": soft_cap}
    other_norms = {name: getattr(norms, name) for name in ("LayerNorm", "MultiHeadRMSNorm", "NormLayer")}
    rounding = {"round_up_to_next_multiple_of": round_up_to_next_multiple_of}
    states = {"mLSTMLayerStateType": LayerState, "mLSTMStateType": dict[int, LayerState]}
    generating = {name: getattr(generate, name) for name in ("generate_tokens", "get_sampling_fn")}
    return {
        "": {**models, **layer},
        ".model": {
            **models, **layer, **parts, **rounding, **states, **generating, **TYPES,
            "FeedForward": FeedForward, "mLSTMBackend": mLSTMBackend, "mLSTMBackendConfig": mLSTMBackendConfig,
            "mLSTMBlock": mLSTMBlock, "WeightModeType": WEIGHT_MODE_TYPE, "xLSTMLargeBlockStack": xLSTMLargeBlockStack,
        },
        ".components": {**parts, **other_norms},
        ".generate": {name: getattr(generate, name) for name in generate.NAMES},
        ".from_pretrained": {"load_from_pretrained": load_from_pretrained},
        ".utils": {
            **rounding, "convert_single_weights_to_fused_weights": convert_single_weights_to_fused_weights,
        },
    }  # fmt: skip
