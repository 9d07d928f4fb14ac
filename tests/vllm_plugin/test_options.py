# SPDX-License-Identifier: Apache-2.0
"""What the plug-in does not do is refused before an engine starts, with the option's name and what was given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: ./scripts/test vllm")

from vllm.engine.arg_utils import EngineArgs  # noqa: E402

from support.vllm_engine import demo_checkpoint  # noqa: E402
from xlstm_hip.models import CheckpointError, load_pretrained, save_pretrained  # noqa: E402
from xlstm_hip.quantize import quantize  # noqa: E402


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_checkpoint(tmp_path_factory.mktemp("checkpoint") / "demo")


def configure(folder: Path, **options: Any) -> Any:
    return EngineArgs(str(folder), **options).create_engine_config()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tensor parallel": ({"tensor_parallel_size": 2}, "tensor_parallel_size: expected 1 for an xLSTM, got 2"),
    "pipeline": ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: expected 1 for an xLSTM, got 2"),
    "quantised as it loads": ({"quantization": "fp8"}, "quantization: expected weights of 16 or 32 bits .* got 'fp8'"),
    "adapters": ({"enable_lora": True}, "enable_lora: expected no adapters"),
    "guesses": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        "speculative_config: expected no speculative decoding for an xLSTM, got 'ngram'",
    ),
    "prefixes": ({"enable_prefix_caching": True}, "enable_prefix_caching: expected False"),
    "narrow states": ({"mamba_cache_dtype": "float16"}, "mamba_cache_dtype: expected one of auto, float32 .*'float16'"),
    "narrow keys": ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype: expected 'auto' for an xLSTM, got 'fp8'"),
    "vectors for tokens": ({"enable_prompt_embeds": True}, "enable_prompt_embeds: expected prompts of tokens"),
    "pooling": ({"runner": "pooling"}, "runner: expected 'generate' for an xLSTM, got 'pooling'"),
    "another model": ({"hf_overrides": {"tie_word_embeddings": True}}, "tie_word_embeddings: expected false"),
    "narrow states by the checkpoint": (
        {"hf_overrides": {"inference_state_dtype": "bfloat16"}},
        "inference_state_dtype: expected 'float32' .* got 'bfloat16'",
    ),
    "heads": ({"hf_overrides": {"num_heads": 5}}, "num_heads = 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(demo: Path, name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        configure(demo, **options)


def test_states_in_the_configuration(demo: Path) -> None:
    config = configure(demo, max_model_len=3000)
    assert config.model_config.is_attention_free and config.model_config.has_inner_state
    assert config.cache_config.mamba_block_size == 3000 and config.cache_config.mamba_cache_mode == "none"
    assert not config.cache_config.enable_prefix_caching


def test_a_checkpoint_of_quantised_weights(demo: Path, tmp_path: Path) -> None:
    """transformers, which reads the configuration for vLLM, does not know its type."""
    model = load_pretrained(demo, progress=False)
    quantize(model, 8, progress=False)
    save_pretrained(model, tmp_path)
    with pytest.raises(ValueError, match="model type `xlstm_hip_quantised`"):
        configure(tmp_path)


def test_the_kernels_that_released_checkpoints_name(demo: Path, tmp_path: Path) -> None:
    """transformers alone refuses these names without the xlstm package."""
    shutil.copytree(demo, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chunkwise_kernel": "chunkwise--triton_xl_chunk"}))
    assert configure(tmp_path).model_config.hf_config.chunkwise_kernel == "chunkwise--triton_xl_chunk"


@pytest.mark.parametrize("kind", ("missing", "unknown", "misshapen"))
def test_weights_that_do_not_fit(demo: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(demo, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    name = "backbone.blocks.2.mlstm_layer.q.weight"
    if kind == "missing":
        del weights[name]
    elif kind == "unknown":
        weights["backbone.blocks.9.norm_ffn.weight"] = torch.ones(128)
    else:
        weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    messages = {
        "missing": rf"language_model\.{name}",  # by vLLM's loader, with the model's name of it
        "unknown": "backbone.blocks.9.norm_ffn.weight: in the checkpoint but not in the model",
        "misshapen": rf"{name}: expected shape \(64, 128\), got \(64, 127\)",
    }
    with pytest.raises(ValueError, match=messages[kind]) as caught:
        vllm.LLM(str(tmp_path), max_model_len=64, kv_cache_memory_bytes=1 << 24)
    assert kind == "missing" or isinstance(caught.value, CheckpointError)
