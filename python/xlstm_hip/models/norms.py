# SPDX-License-Identifier: Apache-2.0
"""The norms of the official xlstm_large as modules. A block has RMSNorm and MultiHeadLayerNorm."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from .. import layers
from .._core.checks import has_rank, non_negative, one_of, positive_int
from ..distributed.divided import own_weights


class NormLayer(nn.Module, ABC):
    """Weight and bias of a norm over num_features. Each is optional.

    force_float32_reductions: reductions are in float32, or float64 for float64, so that False, which allows less,
    changes nothing.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-6,
        use_weight: bool = True,
        use_bias: bool = False,
        force_float32_reductions: bool = True,
    ) -> None:
        super().__init__()
        positive_int("num_features", num_features)
        non_negative("eps", eps)
        for name, flag in (
            ("use_weight", use_weight),
            ("use_bias", use_bias),
            ("force_float32_reductions", force_float32_reductions),
        ):
            one_of(name, flag, (True, False))
        self.num_features, self.eps, self.force_float32_reductions = num_features, eps, force_float32_reductions
        self.weight = nn.Parameter(torch.ones(num_features)) if use_weight else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if use_bias else None

    def _weight_and_bias(self) -> tuple[Tensor | None, Tensor | None]:
        """The kernels have no bias without a weight."""
        weight, bias = own_weights(self)
        return (torch.ones_like(bias) if weight is None and bias is not None else weight), bias

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, weight={self.weight is not None}, bias={self.bias is not None}"


class RMSNorm(NormLayer):
    """Divides the last dimension by its root mean square."""

    def forward(self, x: Tensor) -> Tensor:
        return layers.rms_norm(x, *self._weight_and_bias(), self.eps)


class LayerNorm(NormLayer):
    """Takes the mean of the last dimension away and divides by the standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        return layers.head_norm_gate(x.unsqueeze(-2), None, *self._weight_and_bias(), self.eps)


class _ByHeads(NormLayer):
    """A norm of each head by itself: (B, S, NH, DH) to (B, S, NH * DH)."""

    centred: bool  # whether the mean is taken away

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        eps: float = 1e-6,
        use_weight: bool = True,
        use_bias: bool = False,
        force_float32_reductions: bool = True,
    ) -> None:
        positive_int("num_heads", num_heads)
        positive_int("head_dim", head_dim)
        super().__init__(num_heads * head_dim, eps, use_weight, use_bias, force_float32_reductions)
        self.num_heads, self.head_dim = num_heads, head_dim

    def forward(self, x: Tensor) -> Tensor:
        has_rank("x", x, 4, "(B, S, NH, DH)")
        heads = (self.num_heads, self.head_dim)
        if tuple(x.shape[2:]) != heads:
            raise ValueError(f"x: expected shape (B, S, NH, DH) = (B, S, {heads[0]}, {heads[1]}), got {tuple(x.shape)}")
        return layers.head_norm_gate(x, None, *self._weight_and_bias(), self.eps, centred=self.centred)


class MultiHeadRMSNorm(_ByHeads, RMSNorm):
    """RMSNorm of each head by itself: (B, S, NH, DH) to (B, S, NH * DH)."""

    centred = False


class MultiHeadLayerNorm(_ByHeads, LayerNorm):
    """LayerNorm of each head by itself: (B, S, NH, DH) to (B, S, NH * DH)."""

    centred = True
