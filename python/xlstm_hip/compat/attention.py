# SPDX-License-Identifier: Apache-2.0
"""The modules that stand in for those of FlashAttention 2 and 3, flash_attention_amd and FlashMLA."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .. import attention
from .._version import __version__
from . import flash_attention_amd, flash_attn_2, flash_attn_3, flash_attn_layers, flash_mla, padding, rotary

FLASH_ATTN = (
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
)
FLASH_MLA = ("flash_mla_with_kvcache", "get_mla_metadata", "FlashMLASchedMeta")
FLASH_MLA_PREFILL = (
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "__getattr__",
)
# The generation of FlashAttention whose interface this is: code asks the module for a version before it calls.
FLASH_ATTN_VERSION = "2.8.3"
PADDING = (
    "IndexFirstAxis",
    "IndexFirstAxisResidual",
    "IndexPutFirstAxis",
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
)
ROTARY = (
    "ApplyRotaryEmb",
    "ApplyRotaryEmbKV_",
    "ApplyRotaryEmbQKV_",
    "RotaryEmbedding",
    "apply_rotary",
    "apply_rotary_emb",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
)


def _take(module: ModuleType, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def attention_contents() -> dict[str, Mapping[str, Any]]:
    """Module name to what it holds."""
    functions = _take(attention, FLASH_ATTN)
    mla = {**_take(attention, FLASH_MLA), **_take(flash_mla, FLASH_MLA_PREFILL)}
    return {
        "flash_attn": {**functions, "__version__": FLASH_ATTN_VERSION},
        "flash_attn.flash_attn_interface": {**functions, **flash_attn_2.CONTENTS},
        "flash_attn.bert_padding": _take(padding, PADDING),
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {**_take(rotary, ROTARY), "apply_rotary_emb_func": rotary.apply_rotary_emb},
        "flash_attn.losses": {},
        "flash_attn.losses.cross_entropy": _take(flash_attn_layers, ("CrossEntropyLoss", "cross_entropy_loss")),
        "flash_attn.ops": {},
        "flash_attn.ops.activations": _take(flash_attn_layers, ("swiglu",)),
        "flash_attn.ops.rms_norm": _take(flash_attn_layers, ("RMSNorm", "rms_norm")),
        "flash_attn.ops.triton": {},
        "flash_attn.ops.triton.cross_entropy": _take(flash_attn_layers, ("cross_entropy_loss",)),
        "flash_attn.ops.triton.rotary": _take(rotary, ("apply_rotary",)),
        "flash_attention_amd": {
            **_take(flash_attention_amd, ("FlashAttention", "flash_attn_func")),
            "__version__": __version__,
        },
        "flash_attn_interface": flash_attn_3.CONTENTS,
        "flash_attn_3": {"__version__": flash_attn_3.VERSION},
        "flash_attn_3.flash_attn_interface": flash_attn_3.CONTENTS,
        "flash_mla": {**mla, "__version__": flash_mla.VERSION},
        "flash_mla.flash_mla_interface": mla,
    }
