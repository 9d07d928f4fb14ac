# SPDX-License-Identifier: Apache-2.0
"""What vLLM's options may say for an xLSTM, checked before a process of the engine is started."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from ...models.config import xLSTMLargeConfig
from ...models.config_files import config_of_transformers

# Of c and n between two steps, whatever the weights' dtype is: m is never below it, and the decode engine takes these.
STATE_DTYPE = torch.float32
STATE_DTYPE_NAMES = ("auto", "float32")


class XLSTMConfig(VerifyAndUpdateConfig):
    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        for option, given, reason in _unsupported(vllm_config):
            raise ValueError(f"{option}: {reason} for an xLSTM, got {given!r}")
        config = config_of(vllm_config)
        if config.inference_state_dtype != "float32":
            raise ValueError(
                "inference_state_dtype: expected 'float32' in the checkpoint's config.json or by --hf-overrides, got "
                f"{config.inference_state_dtype!r}"
            )
        cache = vllm_config.cache_config
        cache.mamba_cache_mode = "none"
        # A request has one block, so that this is never reached.
        cache.mamba_block_size = vllm_config.model_config.max_model_len
        compilation = vllm_config.compilation_config
        if compilation.cudagraph_mode is None:  # vLLM's defaults come after this, and are of models that it captures
            compilation.cudagraph_mode = CUDAGraphMode.NONE


def _unsupported(vllm_config: Any) -> list[tuple[str, Any, str]]:
    """The options that were set to what this model does not do: name, value, what was expected."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    found: list[tuple[str, Any, str]] = []

    def expect(option: str, value: Any, fine: bool, expected: str) -> None:
        if not fine:
            found.append((option, value, expected))

    # Before others, whose defaults go by it.
    expect("runner", model.runner_type, model.runner_type == "generate", "expected 'generate'")
    for option in ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"):
        given = getattr(parallel, option)
        expect(option, given, given == 1, "expected 1")
    expect("quantization", model.quantization, model.quantization is None, "expected weights of 16 or 32 bits")
    expect("enable_lora", True, vllm_config.lora_config is None, "expected no adapters")
    speculative = vllm_config.speculative_config
    method = None if speculative is None else speculative.method
    # A state that has read a wrong guess cannot go back.
    expect("speculative_config", method, speculative is None, "expected no speculative decoding")
    # vLLM's copies of states at the ends of blocks are Triton kernels, which nothing here has run.
    expect("enable_prefix_caching", True, not cache.enable_prefix_caching, "expected False")
    expect("kv_transfer_config", True, vllm_config.kv_transfer_config is None, "expected no transfer of states")
    expect("enable_prompt_embeds", True, not model.enable_prompt_embeds, "expected prompts of tokens")
    expect("kv_cache_dtype", cache.cache_dtype, cache.cache_dtype == "auto", "expected 'auto'")
    for option in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
        given = getattr(cache, option)
        expect(option, given, given in STATE_DTYPE_NAMES, f"expected one of {', '.join(STATE_DTYPE_NAMES)}")
    return found


def config_of(vllm_config: Any) -> xLSTMLargeConfig:
    """The model's configuration, which --hf-overrides may have changed."""
    model = vllm_config.model_config
    return config_of_transformers(model.model, model.hf_config.to_dict())


def state_shapes(config: xLSTMLargeConfig) -> tuple[tuple[int, ...], ...]:
    """Of c, n and m of a block, for one request."""
    heads = config.num_heads
    dqk, dhv = config.qk_dim // heads, config.v_dim // heads
    return (heads, dqk, dhv), (heads, dqk), (heads, 1)
