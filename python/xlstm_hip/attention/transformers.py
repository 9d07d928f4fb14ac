# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models on these kernels: attn_implementation="xlstm_hip"."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isfunction
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from .._core.extras import optional_module
from .._core.index_tensors import offsets_of_starts
from .functions import flash_attn_func, flash_attn_varlen_func

NAME = "xlstm_hip"
# Keywords that models pass on and that do not change attention's result here.
_IDLE = {
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "cache_position",
    "position_embeddings",
    "output_router_logits",
    "deterministic",  # passed on
}
_IDLE |= {"position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "num_items_in_batch"}
_IDLE |= {"seq_idx"}  # of state space layers; attention is told of packed rows by position_ids or cu_seq_lens
# The keywords of a model's call also arrive here in **kwargs. A keyword is let through if one of its words names an
# input or output of a model and none names a part of attention: an unknown one may change attention's result.
_OF_MODELS = {
    "audio", "embeds", "ids", "image", "images", "input", "inputs", "labels", "logits", "loss", "output", "outputs",
    "pixel", "return", "spatial", "speaker", "text", "token", "video", "videos", "vision", "visual",
}  # fmt: skip
_OF_ATTENTION = {
    "attention", "attentions", "attn", "bias", "block", "blocks", "cache", "cap", "causal", "chunk", "document",
    "dropout", "head", "heads", "index", "indices", "key", "keys", "kv", "length", "lengths", "mask", "masked",
    "masks", "packed", "position", "positions", "queries", "query", "rope", "rotary", "scale", "scaling", "segment",
    "seq", "sequence", "sink", "sinks", "slopes", "softcap", "sparse", "topk", "window",
}  # fmt: skip


def _is_a_models(keyword: str) -> bool:
    words = set(keyword.split("_"))
    return bool(words & _OF_MODELS) and not words & _OF_ATTENTION


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,  # (B, H_q, S_q, D)
    key: Tensor,  # (B, H_k, S_k, D)
    value: Tensor,  # (B, H_k, S_k, D_v)
    attention_mask: Tensor | None,  # (B, S_k), true for keys in use
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention call. Returns out (B, S_q, H_q, D_v) and no weights."""
    if kwargs.get("output_attentions"):
        raise ValueError(
            'output_attentions: expected False with attn_implementation="xlstm_hip", which keeps no weights'
        )
    unknown = [name for name, x in kwargs.items() if x is not None and name not in _IDLE and not _is_a_models(name)]
    if unknown:
        raise NotImplementedError(f"{', '.join(unknown)}: unknown to attn_implementation={NAME!r}")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, -1 if causal else sliding_window - 1)
    options: dict[str, Any] = {
        "dropout_p": dropout, "softmax_scale": scaling, "causal": causal, "window_size": window,
        "softcap": softcap or 0.0, "sink": s_aux, "deterministic": bool(kwargs.get("deterministic")),
    }  # fmt: skip
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if kwargs.get("cu_seq_lens_q") is not None:
        if q.shape[0] != 1 or attention_mask is not None:
            raise ValueError("cu_seq_lens_q: expected one packed row, without attention_mask")
        names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
        return flash_attn_varlen_func(q[0], k[0], v[0], *(kwargs[name] for name in names), **options)[None], None
    if attention_mask is not None:
        k, v = k[:, : attention_mask.shape[1]], v[:, : attention_mask.shape[1]]  # of a static cache, what is in use
        return _padded(q, k, v, attention_mask, options), None
    ends = _packed_ends(kwargs.get("position_ids"), q.shape[0], q.shape[1])
    if ends is None:
        return flash_attn_func(q, k, v, **options), None
    if k.shape[1] != q.shape[1]:
        raise NotImplementedError("position_ids: expected positions that follow each other beside a cache")
    return flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, q.shape[1], k.shape[1], **options)[None], None


def _packed_ends(position_ids: Tensor | None, batch: int, queries: int) -> Tensor | None:
    """cu_seqlens of a row in which positions restart; None if they do not."""
    if position_ids is None or batch != 1 or queries == 1 or position_ids.dim() > 2:
        return None
    positions = position_ids.reshape(1, -1)
    return offsets_of_starts(positions.diff(dim=1) != 1) if positions.shape[1] == queries else None


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """Attention with padded keys: the other keys are packed. For causal attention or a window, the queries are the last
    tokens of a row; they are packed according to the end of its mask, and padding gives zero. In encoders and cross
    attention the mask does not apply to queries.
    """
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if mask.dim() != 2 or mask.shape[0] != batch:
        raise ValueError(f"attention_mask: expected (B, S) = ({batch}, S), got {tuple(mask.shape)}")
    used = mask[:, -keys:].bool()
    used_q = torch.ones(batch, queries, dtype=torch.bool, device=q.device)
    window = max(options["window_size"])
    if options["causal"] or window >= 0:
        if queries > used.shape[1]:
            raise ValueError(f"attention_mask: expected the {queries} queries' tokens in it, got {tuple(mask.shape)}")
        used_q = used[:, -queries:]
    if 0 <= window < keys and bool((used.int().diff(dim=1) == 1).sum(1).add(used[:, 0]).gt(1).any()):
        raise NotImplementedError("attention_mask: expected no padding between tokens with sliding_window")

    def packed(x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.nn.functional.pad(of.sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
        return x[of], ends

    (q_tokens, ends_q), (k_tokens, ends_k), (v_tokens, _) = packed(q, used_q), packed(k, used), packed(v, used)
    tokens = flash_attn_varlen_func(q_tokens, k_tokens, v_tokens, ends_q, ends_k, queries, keys, **options)
    out = tokens.new_zeros(*q.shape[:-1], v.shape[-1])
    out[used_q] = tokens
    return out


# transformers' mask functions that the attention call is told of in other words, by is_causal, sliding_window and
# position_ids.
_CAUSAL = "causal_mask_function"
_PACKED = "packed_sequence_mask_function"
_CHUNKED = "chunked_overlay"
_KNOWN_PARTS = {
    _CAUSAL, _PACKED, "and_masks", "bidirectional_mask_function", "sliding_window_overlay",
    "sliding_window_bidirectional_overlay", "remap_positions_for_packed_sequence",
}  # fmt: skip


def _name_of(function: Any) -> str:
    return function.__qualname__.partition(".")[0]


def _mask_parts(mask_function: Any) -> set[str]:
    """The names of the functions that a mask function is composed of."""
    if not isfunction(mask_function):
        return {type(mask_function).__name__}
    names = {_name_of(mask_function)}
    for cell in mask_function.__closure__ or ():
        parts = cell.cell_contents if isinstance(cell.cell_contents, tuple) else (cell.cell_contents,)
        names.update(*(_mask_parts(part) for part in parts if callable(part)))
    return names


# Name by the first line of transformers' functions and of the functions inside them. While torch 2.10 traces, a
# function that was made in the graph has no other name that tells.
_NAMES_BY_LINE: dict[tuple[str, int], str] = {}


def _code_points(code: CodeType) -> Iterator[tuple[str, int]]:
    yield code.co_filename, code.co_firstlineno
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _code_points(inner)


def _traced_mask_parts(mask_function: Any, mask_arguments: dict[str, Any]) -> set[str]:
    """_mask_parts where closures cannot be read, as far as the other arguments tell."""
    code = mask_function.__code__
    names = {_NAMES_BY_LINE.get((code.co_filename, code.co_firstlineno), "its own")}
    if "allow_is_bidirectional_skip" not in mask_arguments:
        names.add(_CAUSAL)
    chunk = getattr(mask_arguments.get("config"), "attention_chunk_size", None)
    if chunk is not None and mask_arguments.get("local_size") == chunk:
        names.add(_CHUNKED)
    return names


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """transformers' mask call: (B, keys in use), False for padding, or None if there is none."""
    if mask_function is None:
        parts = {_CAUSAL}
    else:
        parts = (
            _traced_mask_parts(mask_function, kwargs) if torch.compiler.is_compiling() else _mask_parts(mask_function)
        )
    if _CHUNKED in parts and kv_length + int(kv_offset) <= kwargs["local_size"]:
        parts.remove(_CHUNKED)  # all keys are of one chunk
    if use_vmap or not parts <= _KNOWN_PARTS:
        raise NotImplementedError(
            f"mask_function: a mask of {', '.join(sorted(parts - _KNOWN_PARTS)) or 'its own'} is unknown to "
            f"attn_implementation={NAME!r}"
        )
    if _PACKED in parts and batch_size > 1 and not torch.jit.is_tracing():  # where transformers says it of every call
        raise NotImplementedError(
            f"position_ids: positions that start over are known to attn_implementation={NAME!r} in a batch of 1, got "
            f"{batch_size} rows"
        )
    in_use = kv_length  # of a static cache, what a causal model has filled
    if _CAUSAL in parts:
        in_use = min(kv_length, int(q_offset) + q_length - int(kv_offset))
    if attention_mask is None:
        return None if in_use == kv_length else torch.ones(batch_size, in_use, dtype=torch.bool, device=device)
    attention_mask = attention_mask[:, -kv_length:][:, :in_use]
    return None if attention_mask.shape[1] == kv_length and attention_mask.all() else attention_mask


def register_with_transformers() -> None:
    """Makes `from_pretrained(..., attn_implementation="xlstm_hip")` run a model's attention on these kernels."""
    optional_module("transformers", "register_with_transformers")
    from transformers import AttentionInterface, masking_utils
    from transformers.masking_utils import AttentionMaskInterface

    for function in filter(isfunction, vars(masking_utils).values()):
        _NAMES_BY_LINE.update(dict.fromkeys(_code_points(function.__code__), function.__name__))

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
