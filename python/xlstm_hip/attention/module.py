# SPDX-License-Identifier: Apache-2.0
"""Attention as an nn.Module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor, nn

from .._core.checks import is_tensor
from . import checks
from .functions import WithProbs, flash_attn_func


class FlashAttention(nn.Module):
    """Called as (q, k, v, causal=...) with tensors (B, S, H, D). Dropout is applied in training mode only.

    Constructor arguments apply to every call; causal can be set per call.
    """

    alibi_slopes: Tensor | None

    def __init__(
        self,
        attention_dropout: float = 0.0,
        causal: bool = False,
        *,
        softmax_scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        block_size: int | None = None,
    ) -> None:
        super().__init__()
        self.attention_dropout = checks.dropout(attention_dropout, "attention_dropout")
        self.causal = checks.flag("causal", causal)
        self.options: dict[str, Any] = {
            "softmax_scale": None if softmax_scale is None else checks.finite("softmax_scale", softmax_scale),
            "window_size": window_size,
            "softcap": checks.cap(softcap),
            "deterministic": checks.flag("deterministic", deterministic),
            "block_size": checks.block(block_size) or None,
        }
        checks.window(window_size, False)
        slopes = None if alibi_slopes is None else is_tensor("alibi_slopes", alibi_slopes)
        self.register_buffer("alibi_slopes", slopes, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FlashAttention:
        """Slopes go where the module goes, and stay float32, as every call expects them."""
        slopes = self.alibi_slopes

        def moved(x: Tensor) -> Tensor:
            converted = fn(x)
            return x.to(converted.device) if x is slopes and converted.dtype != x.dtype else converted

        return super()._apply(moved, recurse)

    @overload
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool | None = ..., *, return_attn_probs: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool | None = ..., *, return_attn_probs: Literal[True],
    ) -> WithProbs: ...  # fmt: skip
    @overload
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool | None = ..., return_attn_probs: bool = ...,
    ) -> Tensor | WithProbs: ...  # fmt: skip
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool | None = None, return_attn_probs: bool = False
    ) -> Tensor | WithProbs:
        return flash_attn_func(
            q,
            k,
            v,
            dropout_p=self.attention_dropout if self.training else 0.0,
            causal=self.causal if causal is None else causal,
            alibi_slopes=self.alibi_slopes,
            return_attn_probs=return_attn_probs,
            **self.options,
        )

    if TYPE_CHECKING:  # nn.Module's own returns Any
        __call__ = forward

    def extra_repr(self) -> str:
        return f"attention_dropout={self.attention_dropout}, causal={self.causal}"
