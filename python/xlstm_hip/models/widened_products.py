# SPDX-License-Identifier: Apache-2.0
"""Products of two-byte weights on a CPU for which torch has no fast ones.

Without AVX-512 torch multiplies bfloat16 and float16 element by element. From 16 rows of x on it takes less time to
widen the weights block by block, in pieces that stay in the CPU's cache, and to multiply them in float32: half of the
time for 32 rows, a quarter for 128.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..distributed.divided import is_divided, own_with_gradient
from .hooks import all_watched, watched

LEAST_ROWS = 16
BLOCK_FLOATS = 1 << 18


def product(layer: Any, x: Tensor) -> Tensor:
    """layer(x); where that is faster, for a linear layer in inference, by widened weights. Of a layer that ranks have
    divided, by this rank's weights, and without a bias where the outputs are still to be summed over ranks.
    """
    if is_divided(getattr(layer, "weight", None)) and not watched(layer):
        is_part_of_sum = layer.weight.placements[0].is_shard(1)
        bias = None if is_part_of_sum else own_with_gradient(layer.bias)
        return nn.functional.linear(x, own_with_gradient(layer.weight), bias)
    if x.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float16) or not _may_widen(layer, x):
        return layer(x)
    weight, rows = layer.weight, x.reshape(-1, x.shape[-1]).float()
    y = x.new_empty(len(rows), len(weight))
    each = max(64, BLOCK_FLOATS // weight.shape[1])
    bias = None if layer.bias is None else layer.bias.float()
    for first in range(0, len(weight), each):
        part = slice(first, first + each)
        y[:, part] = nn.functional.linear(rows, weight[part].float(), None if bias is None else bias[part])
    return y.view(*x.shape[:-1], -1)


def _may_widen(layer: Any, x: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or type(layer) is not nn.Linear:
        return False
    if x.numel() < LEAST_ROWS * x.shape[-1] or has_fast_products(x.dtype) or watched(layer) or all_watched():
        return False
    parts = [p for p in (layer.weight, layer.bias) if p is not None]
    if torch.is_grad_enabled() and any(p.requires_grad for p in (x, *parts)):
        return False
    return all(type(p) is nn.Parameter and p.device == x.device and p.dtype == x.dtype for p in parts)


@functools.cache
def has_fast_products(dtype: torch.dtype) -> bool:
    """Whether torch multiplies this dtype by oneDNN on this machine."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
