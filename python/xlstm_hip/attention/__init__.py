# SPDX-License-Identifier: Apache-2.0
"""Flash attention and MLA decode with FlashAttention-2's and FlashMLA's names. Unsupported arguments raise an error."""

from .functions import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from .kvcache import flash_attn_combine, flash_attn_with_kvcache
from .mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata
from .module import FlashAttention
from .sdpa import scaled_dot_product_attention
from .transformers import register_with_transformers

__all__ = [
    "FlashAttention",
    "FlashMLASchedMeta",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
    "register_with_transformers",
    "scaled_dot_product_attention",
]


def __dir__() -> list[str]:
    return __all__
