# SPDX-License-Identifier: Apache-2.0
"""What stands in for flash_attn, flash_attention_amd and flash_mla."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import attention
from .._version import __version__
from ..attention import checks
from ..attention.sdpa import top_left
from ..checks import is_tensor
from ..reference.attention import attention as reference_attention

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
# The generation of FlashAttention whose interface this is: code asks the module for a version before it calls.
FLASH_ATTN_VERSION = "2.8.3"


def unpad_input(
    hidden_states: Tensor,  # (B, S, ...)
    attention_mask: Tensor,  # (B, S), true for tokens in use
    unused_mask: Tensor | None = None,  # (B, S): tokens that are given room too
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens in use, their places in (B * S), cu_seqlens, the longest length, and the lengths in use."""
    is_tensor("hidden_states", hidden_states)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    places = kept.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[places], places, ends, int(lengths.max()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """unpad_input undone: (B, S, ...), zero where no token was."""
    whole = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return whole.index_put((indices,), hidden_states).unflatten(0, (batch, seqlen))


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    return x[indices]


class AmdFlashAttention(torch.nn.Module):
    """flash_attention_amd's module: dropout by either name, and a causal mask that begins at the top left."""

    def __init__(
        self, dropout: float | None = None, causal: bool = False, *, attention_dropout: float | None = None
    ) -> None:
        super().__init__()
        if dropout is not None and attention_dropout is not None:
            raise ValueError("attention_dropout: expected one of dropout and attention_dropout")
        name, given = ("dropout", dropout) if attention_dropout is None else ("attention_dropout", attention_dropout)
        self.dropout = checks.dropout(0.0 if given is None else given, name)
        self.causal = checks.flag("causal", causal)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool | None = None
    ) -> Tensor:
        if mask is not None:
            raise NotImplementedError("mask: expected None; of masks there is causal")
        begins_top_left = self.causal if causal is None else checks.flag("causal", causal)
        call = top_left if begins_top_left else attention.flash_attn_func
        return call(q, k, v, dropout_p=self.dropout if self.training else 0.0)


def amd_flash_attn_func(
    q: Tensor,  # (B, S_q, H, D)
    k: Tensor,  # (B, S_k, H, D)
    v: Tensor,  # (B, S_k, H, D)
    dropout_p: float = 0.0,
    causal: bool = False,
    return_attn_probs: bool = False,
    *,
    softmax_scale: float | None = None,
    block_size: int | None = None,
) -> Any:
    """flash_attention_amd's function: with return_attn_probs out and the softmax, before dropout."""
    options: dict[str, Any] = {"softmax_scale": softmax_scale, "block_size": block_size}
    call = top_left if checks.flag("causal", causal) else attention.flash_attn_func
    checks.flag("return_attn_probs", return_attn_probs)
    out = call(q, k, v, dropout_p=dropout_p, **options)
    if not return_attn_probs:
        return out
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError("return_attn_probs: expected as many keys as queries with causal")
    return out, reference_attention(q, k, v, softmax_scale=softmax_scale, causal=causal)[2]


def attention_contents() -> dict[str, Mapping[str, Any]]:
    """Module name to what it holds."""
    functions = {name: getattr(attention, name) for name in FLASH_ATTN}
    padding = {"pad_input": pad_input, "unpad_input": unpad_input, "index_first_axis": index_first_axis}
    mla = {name: getattr(attention, name) for name in FLASH_MLA}
    amd = {"FlashAttention": AmdFlashAttention, "flash_attn_func": amd_flash_attn_func, "__version__": __version__}
    return {
        "flash_attn": {**functions, "__version__": FLASH_ATTN_VERSION},
        "flash_attn.flash_attn_interface": functions,
        "flash_attn.bert_padding": padding,
        "flash_attention_amd": amd,
        "flash_mla": mla,
        "flash_mla.flash_mla_interface": mla,
    }
