# SPDX-License-Identifier: Apache-2.0
"""Every argument of every public function, of the module, of what stands in for other libraries' functions and of
transformers' attention call: changing it changes the result or raises, by its name.

Their own signatures are walked, so an argument that is added without a line here fails. What cannot change a result
says so: SAME holds arguments whose other values must give the same numbers, up to rounding, and why. All of them but
IDLE's must still come to the ops.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from support.compat_parts import compat_part
from xlstm_hip import attention
from xlstm_hip.attention.transformers import attention_forward as transformers_call

compat = compat_part("attention")

B, S, H, D = 2, 40, 4, 16
G = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G)


X = {name: draw(B, S, H, D) for name in ("q", "k", "v")}
OTHER = {name: draw(B, S, H, D) for name in ("q", "k", "v")}
ENDS, OTHER_ENDS = torch.tensor([0, 30, 80]), torch.tensor([0, 40, 80])
SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])
TABLE = torch.arange(10).reshape(2, 5).flip(0)

# Of an argument that functions share: another value than the default.
COMMON: dict[str, Any] = {
    "dropout_p": 0.3, "softmax_scale": 0.1, "causal": True, "window_size": (3, 3), "softcap": 1.0,
    "alibi_slopes": SLOPES, "return_attn_probs": True, "sink": torch.ones(H), "block_size": 32,
    "attention_dropout": 0.3, "dropout": 0.3, "backward_plan": "test_ops.test_a_plan_comes_to_backward",
    "k_descale": "test_float8.test_forward", "v_descale": "test_float8.test_forward",
    "q_descale": "test_float8.test_mla_of_queries_in_float8",
}  # fmt: skip
SAME = {
    "deterministic": "the order of a sum changes roundings alone",
    "zero_tensors": "what belongs to no sequence is 0, asked for or not",
    "block_size": "tiles change roundings alone",
    "num_splits": "parts change roundings alone",
    "max_seqlen_q": "a bound: too low a one raises",
    "max_seqlen_k": "a bound: too low a one raises",
    "max_seqlen": "a bound: too low a one raises",
    "max_seqlen_qo": "a bound: too low a one raises",
    "max_seqlen_kv": "a bound: too low a one raises",
    "is_varlen": "lengths are read from the offsets",
    "pack_gqa": "FlashAttention-3's tiles",
    "sm_margin": "FlashAttention-3's tiles",
    "scheduler_metadata": "FlashAttention-3's schedule",
    "tile_scheduler_metadata": "a schedule changes roundings alone",
    "plan": "parts and tiles change roundings alone",
}
IDLE = (
    "deterministic",
    "zero_tensors",
    "is_varlen",
    "pack_gqa",
    "sm_margin",
    "scheduler_metadata",
)  # of SAME: what there is nothing to hand on of


class Uncausal(nn.Module):
    is_causal = False


def constructed(module: type[nn.Module]) -> Callable[..., Any]:
    """A call of X with the constructor's arguments."""

    def call(**arguments: Any) -> Any:
        return module(**arguments)(**{name: x.to(torch.get_default_device()) for name, x in X.items()})

    call.__signature__ = inspect.signature(module)  # type: ignore[attr-defined]
    return call


def written(half: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass by itself, with what it writes."""

    @functools.wraps(half)
    def call(**arguments: Any) -> Any:
        arguments = {"deterministic": False} | {n: x for n, x in arguments.items() if n != "return_softmax"}
        return half(**arguments), *(arguments[name] for name in ("dq", "dk", "dv"))

    return call


def as_tensor(function: Callable[..., int]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        return torch.tensor(function(**arguments))

    return call


def rotary_embedding(dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: Any = None) -> Any:
    """A call of the module with its constructor's arguments."""
    module = compat.rotary.RotaryEmbedding(dim, base, interleaved, scale_base, torch.get_default_device())
    return module(X["q"].to(torch.get_default_device()).unsqueeze(2).expand(-1, -1, 3, -1, -1).clone())


Call = tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]  # function, base arguments, changes
flat = {name: x.flatten(0, 1) for name, x in X.items()}
flat_other = {name: x.flatten(0, 1) for name, x in OTHER.items()}
packed = {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS, "max_seqlen_q": 50, "max_seqlen_k": 50}
dense_more = {"seqused_k": torch.tensor([40, 7]), "leftpad_k": torch.tensor([0, 9])}
varlen_more = {"seqused_k": torch.tensor([30, 7]), "leftpad_k": torch.tensor([0, 9]), "num_splits": 3}
varlen_changes = {
    "cu_seqlens_q": OTHER_ENDS, "cu_seqlens_k": OTHER_ENDS, "max_seqlen_q": 60, "max_seqlen_k": 60,
    "block_table": ValueError,
}  # fmt: skip
cache_base: dict[str, Any] = {
    "q": X["q"][:, :3], "k_cache": X["k"], "v_cache": X["v"], "k": draw(B, 3, H, D), "v": draw(B, 3, H, D),
    "rotary_cos": draw(50, 4), "rotary_sin": draw(50, 4), "cache_seqlens": torch.tensor([20, 9]),
}  # fmt: skip
cache_changes: dict[str, Any] = {
    "q": OTHER["q"][:, :3], "k_cache": OTHER["k"], "v_cache": OTHER["v"], "k": draw(B, 3, H, D),
    "v": draw(B, 3, H, D), "rotary_cos": draw(50, 4), "rotary_sin": draw(50, 4),
    "cache_seqlens": torch.tensor([5, 9]), "cache_batch_idx": torch.tensor([1, 0]),
    "cache_leftpad": torch.tensor([2, 3]), "block_table": torch.tensor([[1], [0]]), "rotary_interleaved": False,
    "num_splits": 3, "return_softmax_lse": True,
}  # fmt: skip
of_hopper: dict[str, Any] = {
    **dict.fromkeys(("qv", "q_descale", "seqused_q"), NotImplementedError),
    "attention_chunk": 7, "num_splits": 3,
}  # fmt: skip
mla_packed = {"cu_seqlens_qo": ENDS, "cu_seqlens_kv": ENDS, "max_seqlen_qo": 50, "max_seqlen_kv": 50}
mla_packed_changes: dict[str, Any] = {
    "cu_seqlens_qo": OTHER_ENDS, "cu_seqlens_kv": OTHER_ENDS, "max_seqlen_qo": 60, "max_seqlen_kv": 60,
    "is_varlen": False,
}  # fmt: skip
mla_base: dict[str, Any] = {
    "q": draw(2, 2, 8, 24), "k_cache": draw(10, 8, 1, 24), "block_table": TABLE, "cache_seqlens": torch.tensor([9, 40]),
    "head_dim_v": 16,
}  # fmt: skip
half: dict[str, Any] = {
    "dropout_p": 0.0, "softmax_scale": 0.2, "causal": False, "window_size_left": -1, "window_size_right": -1,
    "softcap": 0.0, "alibi_slopes": None, "return_softmax": False,
}  # fmt: skip
half_changes = {"window_size_left": 3, "window_size_right": 3}
sent = {name: draw(B, S, H, D) for name in ("dout", "out", "dq", "dk", "dv")}
other_sent = {name: draw(B, S, H, D) for name in ("dout", "out")}
gradients_go = dict.fromkeys(("dq", "dk", "dv"), "test_flash_attn_halves.test_where_gradients_go")
parts = {"out_partial": draw(3, B, 5, H, D), "lse_partial": draw(3, B, 5, H)}

CALLS: dict[str, Call] = {
    "flash_attn_func": (attention.flash_attn_func, X, OTHER | dense_more | {"num_splits": 3}),
    "flash_attn_kvpacked_func": (
        attention.flash_attn_kvpacked_func,
        {"q": X["q"], "kv": torch.stack([X["k"], X["v"]], 2)},
        {"q": OTHER["q"], "kv": torch.stack([X["v"], X["k"]], 2), "num_splits": 3} | dense_more,
    ),
    "flash_attn_qkvpacked_func": (
        attention.flash_attn_qkvpacked_func, {"qkv": torch.stack(list(X.values()), 2)},
        {"qkv": torch.stack(list(OTHER.values()), 2), "num_splits": 3} | dense_more,
    ),
    "flash_attn_varlen_func": (
        attention.flash_attn_varlen_func, flat | packed, flat_other | varlen_changes | varlen_more,
    ),
    "flash_attn_varlen_kvpacked_func": (
        attention.flash_attn_varlen_kvpacked_func,
        {"q": flat["q"], "kv": torch.stack([flat["k"], flat["v"]], 1), **packed},
        {"q": flat_other["q"], "kv": torch.stack([flat["v"], flat["k"]], 1), **varlen_changes, **varlen_more},
    ),
    "flash_attn_varlen_qkvpacked_func": (
        attention.flash_attn_varlen_qkvpacked_func,
        {"qkv": torch.stack(list(flat.values()), 1), "cu_seqlens": ENDS, "max_seqlen": 50},
        {"qkv": torch.stack(list(flat_other.values()), 1), "cu_seqlens": OTHER_ENDS, "max_seqlen": 60, **varlen_more},
    ),
    "flash_attn_with_kvcache": (
        attention.flash_attn_with_kvcache, cache_base, cache_changes,
    ),
    "flash_attn_combine": (
        attention.flash_attn_combine, parts,
        {
            "out_partial": draw(3, B, 5, H, D), "lse_partial": draw(3, B, 5, H), "out": torch.zeros(B, 5, H, D).half(),
            "out_dtype": torch.bfloat16,
        },
    ),
    "flash_mla_with_kvcache": (
        attention.flash_mla_with_kvcache, mla_base,
        {
            "q": draw(2, 2, 8, 24), "k_cache": draw(10, 8, 1, 24), "block_table": TABLE.flip(0),
            "cache_seqlens": torch.tensor([3, 9]), "head_dim_v": 12,
            "tile_scheduler_metadata": attention.get_mla_metadata()[0], "num_splits": ValueError, "softmax_scale": 0.1,
            "is_fp8_kvcache": NotImplementedError, "indices": NotImplementedError, "attn_sink": torch.ones(8),
            "extra_k_cache": NotImplementedError, "extra_indices_in_kvcache": NotImplementedError,
            "topk_length": NotImplementedError, "extra_topk_length": NotImplementedError,
            "plan": {"splits": 3, "block_size": 32},
        },
    ),
    "flash_mla_with_kvcache, MLA's own shape": (
        attention.flash_mla_with_kvcache,
        {
            "q": draw(2, 2, 8, 576).bfloat16(), "k_cache": draw(10, 8, 1, 576).bfloat16(), "block_table": TABLE,
            "cache_seqlens": torch.tensor([9, 40]), "head_dim_v": 512,
        },
        {
            "q": draw(2, 2, 8, 576).bfloat16(), "k_cache": draw(10, 8, 1, 576).bfloat16(),
            "block_table": TABLE.flip(0), "cache_seqlens": torch.tensor([3, 9]),
            "tile_scheduler_metadata": attention.get_mla_metadata()[0],
            "softmax_scale": 0.1, "attn_sink": torch.ones(8),
            "plan": {"splits": 3},
            **dict.fromkeys(
                ("head_dim_v", "num_splits", "is_fp8_kvcache", "indices", "extra_k_cache", "extra_indices_in_kvcache",
                 "topk_length", "extra_topk_length"), "with other head dims",
            ),
        },
    ),
    "get_mla_metadata": (
        attention.get_mla_metadata,
        {"cache_seqlens": torch.tensor([5000, 80]), "num_q_tokens_per_head_k": 16, "num_heads_k": 1, "num_heads_q": 8},
        {
            "cache_seqlens": torch.tensor([80, 5000]), "num_q_tokens_per_head_k": 128, "num_heads_k": 2,
            "num_heads_q": 3,  # fits no count
            "is_fp8_kvcache": NotImplementedError, "topk": NotImplementedError,
        },
    ),
    "scaled_dot_product_attention": (
        attention.scaled_dot_product_attention, {"query": X["q"], "key": X["k"], "value": X["v"]},
        {
            "query": OTHER["q"], "key": OTHER["k"], "value": OTHER["v"], "attn_mask": NotImplementedError,
            "is_causal": True, "scale": 0.1, "enable_gqa": "test_gqa_must_be_enabled",
        },
    ),
    "_flash_attn_forward": (
        compat.flash_attn_2._flash_attn_forward, X | half, OTHER | half_changes | {"return_softmax": True},
    ),
    "_flash_attn_forward, dropped": (
        compat.flash_attn_2._flash_attn_forward, X | half | {"dropout_p": 0.3},
        OTHER | half_changes | {"dropout_p": 0.5, "return_softmax": True},
    ),
    "_flash_attn_backward": (
        written(compat.flash_attn_2._flash_attn_backward), X | half | sent | {"softmax_lse": draw(B, H, S)},
        OTHER | half_changes | other_sent | gradients_go | {
            "softmax_lse": draw(B, H, S), "dropout_p": ValueError, "rng_state": "test_flash_attn_halves.test_dropout",
        },
    ),
    "_flash_attn_varlen_forward": (
        compat.flash_attn_2._flash_attn_varlen_forward, flat | packed | half,
        flat_other | varlen_changes | varlen_more | half_changes | {"return_softmax": True, "num_splits": 3},
    ),
    "_flash_attn_varlen_backward": (
        written(compat.flash_attn_2._flash_attn_varlen_backward),
        flat | packed | half | {n: x.flatten(0, 1) for n, x in sent.items()} | {"softmax_lse": draw(H, B * S)},
        flat_other | varlen_changes | half_changes | gradients_go | {
            **{n: x.flatten(0, 1) for n, x in other_sent.items()}, "softmax_lse": draw(H, B * S),
            "dropout_p": ValueError, "rng_state": "test_flash_attn_halves.test_dropout",
        },
    ),
    "maybe_contiguous": (
        compat.flash_attn_2.maybe_contiguous, {"x": X["q"]}, {"x": OTHER["q"]},
    ),
    "round_multiple": (as_tensor(compat.flash_attn_2.round_multiple), {"x": 130, "m": 128}, {"x": 120, "m": 64}),
    "FlashAttention-3's flash_attn_func": (compat.flash_attn_3.flash_attn_func, X, OTHER | of_hopper),
    "FlashAttention-3's flash_attn_qkvpacked_func": (
        compat.flash_attn_3.flash_attn_qkvpacked_func, {"qkv": draw(B, S, 8, D), "num_heads_q": 4},
        of_hopper | {"qkv": draw(B, S, 8, D), "num_heads_q": 6},
    ),
    "FlashAttention-3's flash_attn_varlen_func": (
        compat.flash_attn_3.flash_attn_varlen_func, flat | packed,
        flat_other | varlen_changes | of_hopper | {"seqused_k": torch.tensor([30, 7])},
    ),
    "FlashAttention-3's flash_attn_with_kvcache": (
        compat.flash_attn_3.flash_attn_with_kvcache, cache_base,
        cache_changes | of_hopper | {
            "page_table": torch.tensor([[1], [0]]), "cu_seqlens_q": ValueError, "cu_seqlens_k_new": NotImplementedError,
            "max_seqlen_q": 2, "rotary_seqlens": NotImplementedError, "scheduler_metadata": torch.tensor([0, 0]),
        },
    ),
    "FlashAttention-3's flash_attn_with_kvcache, packed queries": (
        compat.flash_attn_3.flash_attn_with_kvcache,
        {
            "q": flat["q"][:4], "k_cache": X["k"], "v_cache": X["v"], "cache_seqlens": torch.tensor([20, 9]),
            "cu_seqlens_q": torch.tensor([0, 1, 4]), "max_seqlen_q": 3,
        },
        cache_changes | of_hopper | {
            "q": flat["k"][:4], "page_table": torch.tensor([[1], [0]]), "cu_seqlens_q": torch.tensor([0, 2, 4]),
            "cu_seqlens_k_new": NotImplementedError, "max_seqlen_q": "test_flash_attn_3.test_wrong",
            "rotary_seqlens": NotImplementedError, "scheduler_metadata": torch.tensor([0, 0]),
            "rotary_interleaved": "test_flash_attn_3.test_wrong", "num_splits": 3,
        },
    ),
    "FlashAttention-3's flash_attn_combine": (
        compat.flash_attn_3.flash_attn_combine, parts,
        {
            "out_partial": draw(3, B, 5, H, D), "lse_partial": draw(3, B, 5, H), "out": torch.zeros(B, 5, H, D).half(),
            "out_dtype": torch.bfloat16,
        },
    ),
    "get_scheduler_metadata": (
        compat.flash_attn_3.get_scheduler_metadata,
        {
            "batch_size": 2, "max_seqlen_q": 3, "max_seqlen_k": 40, "num_heads_q": 4, "num_heads_kv": 2, "headdim": 16,
            "cache_seqlens": torch.tensor([20, 9]),
        },
        # what is wrong raises; what is right changes no schedule but num_splits
        {
            "batch_size": 3, "max_seqlen_q": -1, "max_seqlen_k": -1, "num_heads_q": 3, "num_heads_kv": 3, "headdim": 0,
            "cache_seqlens": torch.tensor([1]), "qkv_dtype": torch.int8, "headdim_v": 0,
            "cu_seqlens_q": torch.tensor([0]), "cu_seqlens_k_new": NotImplementedError,
            "cache_leftpad": torch.tensor([0]), "page_size": 0, "max_seqlen_k_new": -1, "causal": "yes",
            "window_size": (3,), "attention_chunk": 7, "has_softcap": 2.0, "pack_gqa": 1,
            "num_splits": "test_flash_attn_3.test_a_schedule",
            "sm_margin": -1,
        },
    ),
    "FlashMLA's flash_attn_varlen_func": (
        compat.flash_mla.flash_attn_varlen_func, flat | mla_packed, flat_other | mla_packed_changes,
    ),
    "FlashMLA's flash_attn_varlen_kvpacked_func": (
        compat.flash_mla.flash_attn_varlen_kvpacked_func,
        {"q": flat["q"], "kv": draw(B * S, H, D + 8), "head_dim_qk": D, **mla_packed},
        {"q": flat_other["q"], "kv": draw(B * S, H, D + 8), "head_dim_qk": D + 8, **mla_packed_changes},
    ),
    "FlashMLA's flash_attn_varlen_qkvpacked_func": (
        compat.flash_mla.flash_attn_varlen_qkvpacked_func,
        {"qkv": draw(B * S, H, 2 * D + 8), "head_dim_qk": D, "cu_seqlens": ENDS, "max_seqlen": 50},
        {
            "qkv": draw(B * S, H, 2 * D + 8), "head_dim_qk": D + 2, "cu_seqlens": OTHER_ENDS, "max_seqlen": 60,
            "is_varlen": False,
        },
    ),
    "cross_entropy_loss": (
        compat.flash_attn_layers.cross_entropy_loss, {"logits": draw(7, 9), "labels": torch.arange(7)},
        {
            "logits": draw(7, 9), "labels": torch.arange(7).flip(0), "precomputed_lse": NotImplementedError,
            "label_smoothing": 0.1, "logit_scale": 0.5, "lse_square_scale": 0.1, "ignore_index": 3,
            "inplace_backward": "test_flash_attn_layers.test_in_place", "process_group": NotImplementedError,
        },
    ),
    "rms_norm": (
        compat.flash_attn_layers.rms_norm, {"x": X["q"], "weight": draw(D), "epsilon": 1e-6},
        {"x": OTHER["q"], "weight": draw(D), "epsilon": 0.1},
    ),
    "swiglu": (
        compat.flash_attn_layers.swiglu, {"x": X["q"], "y": X["k"]}, {"x": OTHER["q"], "y": OTHER["k"]},
    ),
    "FlashAttention": (constructed(attention.FlashAttention), {}, {}),
    "FlashAttention()": (attention.FlashAttention().forward, X, OTHER),
    "flash_attention_amd.FlashAttention": (constructed(compat.flash_attention_amd.FlashAttention), {}, {}),
    "flash_attention_amd.FlashAttention()": (
        compat.flash_attention_amd.FlashAttention().forward, X, OTHER | {"mask": NotImplementedError},
    ),
    "flash_attention_amd.flash_attn_func": (compat.flash_attention_amd.flash_attn_func, X, OTHER),
    "unpad_input": (
        compat.padding.unpad_input, {"hidden_states": X["q"], "attention_mask": torch.arange(S).expand(B, S) < 20},
        {
            "hidden_states": OTHER["q"], "attention_mask": torch.arange(S).expand(B, S) < 30,
            "unused_mask": torch.arange(S).expand(B, S) == 35,
        },
    ),
    "pad_input": (
        compat.padding.pad_input, {"hidden_states": draw(5, H), "indices": torch.arange(5), "batch": B, "seqlen": S},
        {"hidden_states": draw(5, H), "indices": torch.arange(5) + 1, "batch": 3, "seqlen": 50},
    ),
    "index_first_axis": (
        compat.padding.index_first_axis, {"x": draw(5, H), "indices": torch.tensor([1, 3])},
        {"x": draw(5, H), "indices": torch.tensor([1, 4])},
    ),
    "index_first_axis_residual": (
        compat.padding.index_first_axis_residual, {"x": draw(5, H), "indices": torch.tensor([1, 3])},
        {"x": draw(5, H), "indices": torch.tensor([1, 4])},
    ),
    "index_put_first_axis": (
        compat.padding.index_put_first_axis,
        {"values": draw(2, H), "indices": torch.tensor([1, 3]), "first_axis_dim": 5},
        {"values": draw(2, H), "indices": torch.tensor([1, 4]), "first_axis_dim": 6},
    ),
    "unpad_input_for_concatenated_sequences": (
        compat.padding.unpad_input_for_concatenated_sequences,
        {"hidden_states": X["q"], "attention_mask_in_length": torch.tensor([[3, 9] + [0] * 38, [40] + [0] * 39])},
        {
            "hidden_states": OTHER["q"],
            "attention_mask_in_length": torch.tensor([[12] + [0] * 39, [40] + [0] * 39]),
        },
    ),
    "apply_rotary_emb": (
        compat.rotary.apply_rotary_emb, {"x": X["q"], "cos": draw(50, 4), "sin": draw(50, 4)},
        {
            "x": OTHER["q"], "cos": draw(50, 4), "sin": draw(50, 4), "interleaved": True, "seqlen_offsets": 3,
            "inplace": "test_rotary.test_in_place", "cu_seqlens": ValueError, "max_seqlen": ValueError,
        },
    ),
    "apply_rotary_emb, packed": (
        compat.rotary.apply_rotary_emb,
        {"x": flat["q"], "cos": draw(60, 4), "sin": draw(60, 4), "cu_seqlens": ENDS, "max_seqlen": 50},
        {
            "x": flat_other["q"], "cos": draw(60, 4), "sin": draw(60, 4), "cu_seqlens": OTHER_ENDS, "interleaved": True,
            "seqlen_offsets": torch.tensor([0, 5]), "inplace": "test_rotary.test_in_place",
            "max_seqlen": "test_rotary.test_wrong",
        },
    ),
    "apply_rotary": (
        compat.rotary.apply_rotary, {"x": X["q"], "cos": draw(50, 4), "sin": draw(50, 4)},
        {
            "x": OTHER["q"], "cos": draw(50, 4), "sin": draw(50, 4), "interleaved": True, "seqlen_offsets": 3,
            "conjugate": True, "inplace": "test_rotary.test_in_place", "cu_seqlens": ValueError,
            "max_seqlen": ValueError,
        },
    ),
    "apply_rotary_emb_qkv_": (
        compat.rotary.apply_rotary_emb_qkv_, {"qkv": draw(B, S, 3, H, D), "cos": draw(50, 4), "sin": draw(50, 4)},
        {
            "qkv": draw(B, S, 3, H, D), "cos": draw(50, 4), "sin": draw(50, 4), "cos_k": draw(50, 4),
            "sin_k": draw(50, 4), "interleaved": True, "seqlen_offsets": 3, "num_heads_q": 3,
        },
    ),
    "apply_rotary_emb_qkv_, fewer key heads": (
        compat.rotary.apply_rotary_emb_qkv_,
        {"qkv": draw(B, S, 8, D), "cos": draw(50, 4), "sin": draw(50, 4), "num_heads_q": 4},
        {
            "qkv": draw(B, S, 8, D), "cos": draw(50, 4), "sin": draw(50, 4), "cos_k": draw(50, 4),
            "sin_k": draw(50, 4), "interleaved": True, "seqlen_offsets": torch.tensor([3, 0]), "num_heads_q": 6,
        },
    ),
    "apply_rotary_emb_kv_": (
        compat.rotary.apply_rotary_emb_kv_, {"kv": draw(B, S, 2, H, D), "cos": draw(50, 4), "sin": draw(50, 4)},
        {
            "kv": draw(B, S, 2, H, D), "cos": draw(50, 4), "sin": draw(50, 4), "interleaved": True,
            "seqlen_offsets": 3,
        },
    ),
    "apply_rotary_emb_torch": (
        compat.rotary.apply_rotary_emb_torch, {"x": X["q"], "cos": draw(S, 4), "sin": draw(S, 4)},
        {"x": OTHER["q"], "cos": draw(S, 4), "sin": draw(B, S, 4), "interleaved": True},
    ),
    "rotate_half": (compat.rotary.rotate_half, {"x": X["q"]}, {"x": OTHER["q"], "interleaved": True}),
    "RotaryEmbedding": (
        rotary_embedding, {"dim": 8}, {"dim": 4, "base": 100.0, "interleaved": True, "scale_base": 16.0},
    ),
    "RotaryEmbedding()": (
        compat.rotary.RotaryEmbedding(8).forward, {"qkv": draw(B, S, 3, H, D)},
        {
            "qkv": draw(B, S, 3, H, D), "kv": ValueError, "seqlen_offset": 3, "max_seqlen": 9, "num_heads_q": 3,
        },
    ),
    "transformers": (
        transformers_call,
        {
            "module": nn.Module(), "query": X["q"].transpose(1, 2), "key": X["k"].transpose(1, 2),
            "value": X["v"].transpose(1, 2), "attention_mask": None,
        },
        {
            "module": Uncausal(), "query": OTHER["q"].transpose(1, 2), "key": OTHER["k"].transpose(1, 2),
            "value": OTHER["v"].transpose(1, 2), "attention_mask": torch.arange(S).expand(B, S) > 5, "scaling": 0.1,
            "sliding_window": 7, "is_causal": False, "s_aux": torch.ones(H),
        },
    ),
}  # fmt: skip
RAISES = (ValueError, TypeError, NotImplementedError, RuntimeError)


def names_of(name: str) -> list[str]:
    kinds = inspect.signature(CALLS[name][0]).parameters.values()
    names = [p.name for p in kinds if p.kind is not p.VAR_KEYWORD]
    if name.startswith("flash_attn") and "packed_func" in name:  # which hand on the rest
        inner = inspect.signature(attention.flash_attn_varlen_func if "varlen" in name else attention.flash_attn_func)
        names += [p.name for p in inner.parameters.values() if p.kind is p.KEYWORD_ONLY]
    return names


class Handed(TorchDispatchMode):
    """The arguments of our ops' calls, except tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if op.namespace == "xlstm_hip":
            self.calls.append((str(op), *(x for x in args if not isinstance(x, Tensor))))
        return op(*args, **(kwargs or {}))


def run(
    function: Callable[..., Any], arguments: dict[str, Any], device: str
) -> tuple[list[Tensor], list[tuple[Any, ...]]]:
    """The tensors that it returns, and what it hands to ops. A CPU's schedules are cut for eight threads."""
    torch.set_num_threads(8)
    torch.manual_seed(0)
    fresh = {n: x.clone().to(device) if isinstance(x, Tensor) else copy.copy(x) for n, x in arguments.items()}
    with torch.device(device), Handed() as handed:
        outputs = function(**fresh)
    return [x for x in (outputs if isinstance(outputs, tuple) else (outputs,)) if isinstance(x, Tensor)], handed.calls


def the_same(a: list[Tensor], b: list[Tensor], exactly: bool = True) -> bool:
    if [x.shape for x in a] != [x.shape for x in b] or [x.dtype for x in a] != [x.dtype for x in b]:
        return False
    if exactly:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    return all(torch.allclose(x, y, atol=max(1e-5, near(x)), rtol=near(x)) for x, y in zip(a, b, strict=True))


def near(x: Tensor) -> float:
    return 4 * torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0


def walk(name: str, argument: str, device: str) -> None:
    function, base, changes = CALLS[name]
    before, calls_before = run(function, base, device)
    if argument in changes:
        change: Any = changes[argument]
    elif argument in IDLE:
        change = 3 if argument == "sm_margin" else True
    else:
        assert argument in COMMON, f"{argument}: no other value to try; add one to this file"
        change = COMMON[argument]
    if isinstance(change, str):
        return  # what tries it
    if isinstance(change, type):
        value: Any = True if argument.startswith("is_") else 5 if argument == "topk" else torch.zeros(2, 1).int()
        with pytest.raises(RAISES, match=argument):
            run(function, base | {argument: value}, device)
        return
    try:
        after, calls = run(function, base | {argument: change}, device)
    except RAISES as refusal:
        assert argument in str(refusal), f"{argument}: refused without its name: {refusal}"
        return
    if argument in SAME:
        assert the_same(before, after, exactly=False), f"{argument}: {SAME[argument]}"
        assert argument in IDLE or calls != calls_before, f"{argument}: comes to no op"
    else:
        assert not the_same(before, after), f"{argument}: accepted and ignored"


ARGUMENTS = [(name, argument) for name in CALLS for argument in names_of(name)]
NO_GPU = not torch.cuda.is_available()


@pytest.mark.parametrize("name, argument", ARGUMENTS)
def test_argument(name: str, argument: str) -> None:
    walk(name, argument, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(NO_GPU, reason="no GPU that torch can use")
@pytest.mark.parametrize("name, argument", ARGUMENTS[:1] if NO_GPU else ARGUMENTS)
def test_argument_on_a_gpu(name: str, argument: str) -> None:
    walk(name, argument, "cuda")


@pytest.mark.parametrize("function", [attention.flash_attn_varlen_func])
@pytest.mark.parametrize("argument", ["max_seqlen_q", "max_seqlen_k"])
def test_a_bound_that_is_too_low_raises(function: Callable[..., Any], argument: str) -> None:
    with pytest.raises(RuntimeError, match=f"cu_seqlens_{argument[-1]}: sequence 1 has 50 tokens"):
        function(**(flat | packed | {argument: 49}))


def test_gqa_must_be_enabled() -> None:
    q, k, v = (X[n].transpose(1, 2) for n in "qkv")
    with pytest.raises(ValueError, match="key: expected 4 heads as query has, or enable_gqa=True, got 2"):
        attention.scaled_dot_product_attention(q, k[:, :2], v[:, :2])
    assert attention.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True).shape == q.shape


def test_every_public_function_is_walked() -> None:
    public = {n for n in attention.__all__ if callable(getattr(attention, n))}
    assert public - set(CALLS) == {"register_with_transformers", "FlashMLASchedMeta"}
    walked = {inspect.unwrap(function) for function, *_ in CALLS.values()}
    for module, names in compat.attention_contents().items():
        functions = {
            n
            for n, x in names.items()
            if inspect.isfunction(x) and n != "__getattr__" and inspect.unwrap(x) not in walked
        }
        assert not functions, module


def test_signatures_begin_as_published() -> None:
    """FlashAttention-2's order of arguments and defaults."""
    tail = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
    lengths = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
    published = {
        "flash_attn_func": f"q k v {tail}",
        "flash_attn_kvpacked_func": f"q kv {tail}",
        "flash_attn_qkvpacked_func": f"qkv {tail}",
        "flash_attn_varlen_func": f"q k v {lengths} {tail} block_table",
        "flash_attn_varlen_kvpacked_func": f"q kv {lengths} {tail}",
        "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {tail}",
        "flash_attn_with_kvcache": (
            "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
            "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse"
        ),
        "flash_attn_combine": "out_partial lse_partial out out_dtype",
        "flash_mla_with_kvcache": (
            "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale causal "
            "is_fp8_kvcache indices attn_sink extra_k_cache extra_indices_in_kvcache topk_length extra_topk_length"
        ),
    }
    defaults = {
        "dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
        "alibi_slopes": None, "deterministic": False, "return_attn_probs": False, "rotary_interleaved": True,
        "num_splits": 0, "return_softmax_lse": False,
    }  # fmt: skip
    for name, names in published.items():
        parameters = inspect.signature(getattr(attention, name)).parameters
        positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [p.name for p in positional] == names.split(), name
        for p in positional:
            if p.name in defaults and not (name == "flash_mla_with_kvcache" and p.name == "num_splits"):
                assert p.default == defaults[p.name], (name, p.name)
