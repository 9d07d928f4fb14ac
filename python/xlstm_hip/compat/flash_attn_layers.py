# SPDX-License-Identifier: Apache-2.0
"""The replacement of flash_attn.losses and flash_attn.ops: the layers that xlstm_hip.layers has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import layers
from .._core.checks import has_rank, has_shape, one_of
from ..attention import checks


def cross_entropy_loss(
    logits: Tensor,  # (N, V)
    labels: Tensor,  # (N)
    precomputed_lse: None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: None = None,
) -> tuple[Tensor, Tensor]:
    """The losses (N) of the scaled logits, and the z-losses (N), which are 0 without lse_square_scale.

    inplace_backward: the backward pass writes the gradient over the logits.
    """
    checks.no_kernel(precomputed_lse=precomputed_lse, process_group=process_group)
    for name, x in (("label_smoothing", label_smoothing), ("lse_square_scale", lse_square_scale)):
        if checks.finite(name, x) != 0:
            raise NotImplementedError(f"{name}: expected 0; there is no kernel for it, got {x!r}")
    if checks.finite("logit_scale", logit_scale) <= 0:
        raise ValueError(f"logit_scale: expected a number > 0, got {logit_scale!r}")
    rows = has_rank("logits", logits, 2, "(N, V)").shape[0]
    has_shape("labels", labels, (rows,), "(N)")
    scaled = logits if logit_scale == 1 else logits * logit_scale
    in_place = checks.flag("inplace_backward", inplace_backward)
    losses = layers.capped_cross_entropy(scaled, labels, None, ignore_index, "none", in_place)
    return losses, torch.zeros_like(losses, requires_grad=False)


class CrossEntropyLoss(torch.nn.Module):
    """cross_entropy_loss of logits (N, V) and labels (N), reduced."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: None = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        one_of("reduction", reduction, ("mean", "none", "sum"))
        self.reduction, self.return_z_loss = reduction, checks.flag("return_z_loss", return_z_loss)
        self.ignore_index, self.label_smoothing, self.logit_scale = ignore_index, label_smoothing, logit_scale
        self.lse_square_scale, self.inplace_backward = lse_square_scale, inplace_backward
        self.process_group = process_group

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: None = None) -> Any:
        """Returns the loss, with return_z_loss also the z-loss."""
        losses = cross_entropy_loss(
            input, target, precomputed_lse, self.label_smoothing, self.logit_scale, self.lse_square_scale,
            self.ignore_index, self.inplace_backward, self.process_group,
        )  # fmt: skip
        if self.reduction != "none":
            count = (target != self.ignore_index).sum() if self.reduction == "mean" else 1
            losses = losses[0].sum() / count, losses[1].sum() / count
        return losses if self.return_z_loss else losses[0]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last dimension, rounded to x's dtype before the weight is applied."""
    return layers.rms_norm(x, weight, None, epsilon)


class RMSNorm(torch.nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) * y."""
    return layers.swiglu(x, y)
