# SPDX-License-Identifier: Apache-2.0
"""What stands in for flash_attn, flash_attention_amd and flash_mla."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import attention
from .._core.checks import has_rank, is_tensor, shape_text
from .._core.index_tensors import in_range, offsets_fit
from .._version import __version__
from ..attention import checks
from ..attention.sdpa import top_left
from ..reference.attention import attention as reference_attention
from ..reference.attention_ops import rotated

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


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor,  # (B, S, ...)
    attention_mask_in_length: Tensor,  # (B, S): lengths of the sequences that lie one behind the other in a row, then 0
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The tokens of the sequences, their places in (B * S), cu_seqlens, and the longest length."""
    is_tensor("hidden_states", hidden_states)
    mask = is_tensor("attention_mask_in_length", attention_mask_in_length)
    used = torch.arange(mask.shape[1], device=mask.device) < mask.sum(-1, keepdim=True)
    places = used.flatten().nonzero().flatten()
    lengths = mask.flatten()[mask.flatten() > 0]
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[places], places, ends, int(lengths.max())


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """(first_axis_dim, ...) with the values at their places, zero elsewhere."""
    whole = values.new_zeros(first_axis_dim, *values.shape[1:])
    return whole.index_put((indices,), values)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """unpad_input undone: (B, S, ...), zero where no token was."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    return x[indices]


def apply_rotary_emb(
    x: Tensor,  # (B, S, H, D), or with cu_seqlens (T, H, D)
    cos: Tensor,  # (S_rotary, rotary_dim / 2)
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,  # (B): the first token's position
    cu_seqlens: Tensor | None = None,  # (B + 1)
    max_seqlen: int | None = None,
) -> Tensor:
    """flash_attn's rotary embedding of any tokens, with a gradient for x. Plain torch, on any device."""
    packed = cu_seqlens is not None
    rank, meaning = (3, "(T, H, D) with cu_seqlens") if packed else (4, "(B, S, H, D)")
    has_rank("x", x, rank, meaning)
    for name, table in (("cos", cos), ("sin", sin)):
        is_tensor(name, table)
        if table.dim() != 2 or table.shape != cos.shape or not 2 <= 2 * table.shape[1] <= x.shape[-1]:
            raise ValueError(
                f"{name}: expected shape (S, rotary_dim / 2), rotary_dim from 2 to {x.shape[-1]}, "
                f"got {shape_text(table)}"
            )
        checks.on_device(name, table, x)
    checks.flag("interleaved", interleaved)
    if packed and max_seqlen is None:
        raise ValueError("max_seqlen: expected with cu_seqlens")
    if cu_seqlens is None:
        if max_seqlen is not None:
            raise ValueError("max_seqlen: expected None without cu_seqlens")
        batch, steps = x.shape[0], torch.arange(x.shape[1], device=x.device)
        sequence = torch.arange(batch, device=x.device)[:, None]
    else:
        ends = checks.offsets("cu_seqlens", cu_seqlens, x)
        if checks.readable(ends):
            offsets_fit("cu_seqlens", ends, checks.length("max_seqlen", max_seqlen), x.shape[0])
        batch, tokens = ends.shape[0] - 1, torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
        sequence = torch.searchsorted(ends[1:].contiguous(), tokens, right=True).clamp(max=batch - 1)
        steps = tokens - ends[sequence]
    if isinstance(seqlen_offsets, int) and not isinstance(seqlen_offsets, bool):
        seqlen_offsets = torch.full((batch,), seqlen_offsets, device=x.device)
    first = checks.indices("seqlen_offsets", seqlen_offsets, x, (batch,), f"(B) = ({batch},)")
    if first is None:
        raise TypeError("seqlen_offsets: expected an integer or a tensor (B), got None")
    places = first[sequence] + steps
    if checks.readable(places):
        for place in (int(places.min()), int(places.max())):
            in_range("seqlen_offsets: a rotary position", place, 0, cos.shape[0] - 1)
    places = places.long().clamp(0, cos.shape[0] - 1)
    y = rotated(x, cos[places].unsqueeze(-2), sin[places].unsqueeze(-2), interleaved)
    return x.copy_(y) if checks.flag("inplace", inplace) else y


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


PADDING = (
    unpad_input, unpad_input_for_concatenated_sequences, pad_input, index_first_axis, index_put_first_axis,
)  # fmt: skip


def attention_contents() -> dict[str, Mapping[str, Any]]:
    """Module name to what it holds."""
    functions = {name: getattr(attention, name) for name in FLASH_ATTN}
    padding = {function.__name__: function for function in PADDING}
    rotary = {"apply_rotary_emb": apply_rotary_emb, "apply_rotary_emb_func": apply_rotary_emb}
    mla = {name: getattr(attention, name) for name in FLASH_MLA}
    amd = {"FlashAttention": AmdFlashAttention, "flash_attn_func": amd_flash_attn_func, "__version__": __version__}
    return {
        "flash_attn": {**functions, "__version__": FLASH_ATTN_VERSION},
        "flash_attn.flash_attn_interface": functions,
        "flash_attn.bert_padding": padding,
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": rotary,
        "flash_attention_amd": amd,
        "flash_mla": mla,
        "flash_mla.flash_mla_interface": mla,
    }
