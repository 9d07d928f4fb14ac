# SPDX-License-Identifier: Apache-2.0
"""vLLM's plug-in: xLSTMForCausalLM of transformers' checkpoints, as a model without attention and of constant state.

vLLM calls register() in each of its processes, by the entry point in pyproject.toml. So does a vLLM that serves another
model: nothing but names is registered here, and the model's module is imported where one is made.

config.py    what vLLM's options may say, and what a state looks like
states.py    states in the blocks of vLLM's cache, and which rows of a batch they belong to
model.py     the model
"""

from __future__ import annotations

ARCHITECTURE = "xLSTMForCausalLM"


def register() -> None:
    """May be called again."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from ..hf_config import accept_registered_kernels
    from .config import XLSTMConfig

    accept_registered_kernels()
    ModelRegistry.register_model(ARCHITECTURE, f"{__name__}.model:XLSTMForCausalLM")
    # vLLM has no call for this: its table of checks is where it looks, by the architecture's name.
    MODELS_CONFIG_MAP[ARCHITECTURE] = XLSTMConfig
