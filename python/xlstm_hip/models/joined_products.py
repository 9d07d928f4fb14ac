# SPDX-License-Identifier: Apache-2.0
"""Linear layers of one input as one matrix product, for training.

By themselves they cast the input once each under autocast, and their gradients of the input are as many products, each
written, widened and added to the others. Joined, the weights are concatenated, which is small beside the activations,
and the gradient of the input is one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..distributed.divided import is_divided, own_with_gradient
from .hooks import all_watched, watched, watches_gradients


def may_join(*products: Any) -> bool:
    """Whether the modules are linear layers that differ in nothing but their weights, in a pass with gradients."""
    if not torch.is_grad_enabled() or all_watched():
        return False
    first = products[0]
    return all(_plain(x) and _alike(x, first) for x in products)


def joined(x: Tensor, *products: nn.Linear) -> Tensor:
    """(..., D) -> (..., sum of the products' features), where they may join."""
    weights: list[Tensor] = [own_with_gradient(p.weight) for p in products]
    biases: list[Tensor] = [own_with_gradient(p.bias) for p in products if p.bias is not None]
    return nn.functional.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)


def _plain(product: Any) -> bool:
    if type(product) is not nn.Linear or watched(product) or watches_gradients(product):
        return False
    weights = [x for x in (product.weight, product.bias) if x is not None]
    return all(type(x) is nn.Parameter for x in weights) or all(map(is_divided, weights))


def _alike(product: nn.Linear, other: nn.Linear) -> bool:
    a, b = product.weight, other.weight
    biases = (product.bias is None) == (other.bias is None)
    return biases and (a.dtype, a.device, a.shape[1]) == (b.dtype, b.device, b.shape[1])
