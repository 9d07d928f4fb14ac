# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's prefill functions, which return out and softmax_lse (T_q, H_q). Its decoding is xlstm_hip.attention's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import attention
from .._core.checks import has_rank, shape_text
from ..attention import checks

VERSION = "1.0.0"  # the release whose interface this is


def flash_attn_varlen_func(
    q: Tensor,  # (T_q, H_q, D)
    k: Tensor,  # (T_k, H_k, D)
    v: Tensor,  # (T_k, H_k, D_v)
    cu_seqlens_qo: Tensor,  # (B + 1)
    cu_seqlens_kv: Tensor,  # (B + 1)
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[Tensor, Tensor]:
    """is_varlen: whether lengths differ; they are read from the offsets, said or not."""
    checks.flag("is_varlen", is_varlen)
    ends_q, ends_k = (
        checks.offsets("cu_seqlens_qo", cu_seqlens_qo, q),
        checks.offsets("cu_seqlens_kv", cu_seqlens_kv, q),
    )
    longest = checks.length("max_seqlen_qo", max_seqlen_qo), checks.length("max_seqlen_kv", max_seqlen_kv)
    out, lse, _ = attention.flash_attn_varlen_func(
        q, k, v, ends_q, ends_k, *longest, dropout_p, softmax_scale, causal, deterministic=deterministic,
        return_attn_probs=True,
    )  # fmt: skip
    return out, lse.transpose(0, 1)


def _split(name: str, x: Tensor, head_dim_qk: Any, count: int) -> tuple[Tensor, ...]:
    """Keys before values in the features, behind queries where there are three."""
    has_rank(name, x, 3, "(T, H, features)")
    least = (count - 1) * head_dim_qk if isinstance(head_dim_qk, int) and not isinstance(head_dim_qk, bool) else 0
    if not 0 < least < x.shape[-1]:
        raise ValueError(
            f"head_dim_qk: expected an integer >= 1 that leaves features of {name} to v, got {head_dim_qk!r} of "
            f"{shape_text(x)}"
        )
    return x.split([*[head_dim_qk] * (count - 1), x.shape[-1] - least], dim=-1)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,  # (T, H, 2 D + D_v)
    cu_seqlens: Tensor,  # (B + 1)
    max_seqlen: int,
    head_dim_qk: int,  # D
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[Tensor, Tensor]:
    q, k, v = _split("qkv", qkv, head_dim_qk, 3)
    ends, longest = checks.offsets("cu_seqlens", cu_seqlens, q), checks.length("max_seqlen", max_seqlen)
    return flash_attn_varlen_func(
        q, k, v, ends, ends, longest, longest, dropout_p, softmax_scale, causal, deterministic, is_varlen
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,  # (T_q, H_q, D)
    kv: Tensor,  # (T_k, H_k, D + D_v)
    cu_seqlens_qo: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,  # D
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[Tensor, Tensor]:
    k, v = _split("kv", kv, head_dim_qk, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, dropout_p, softmax_scale, causal,
        deterministic, is_varlen,
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    """For the modules that stand in for FlashMLA's."""
    why = ": there is no kernel for sparse attention" if "sparse" in name else ""
    raise AttributeError(f"flash_mla.{name}: not offered by xlstm_hip.compat{why}")
