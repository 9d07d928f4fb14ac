# SPDX-License-Identifier: Apache-2.0
"""Tensors of the CPU: as arrays that device.py hands to kernels, and large ones of random numbers."""

from __future__ import annotations

import math
from math import prod

import numpy as np
import torch
from torch import Tensor

DRAWN = 1 << 20  # numbers that are drawn; larger tensors repeat them


def array(x: Tensor) -> np.ndarray:
    """The tensor's memory; NumPy has no bfloat16."""
    if x.dtype == torch.bfloat16:
        x = x.view(torch.int16)
    return (x.view(torch.uint8) if x.dtype.is_floating_point and x.element_size() == 1 else x).numpy()


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers; of integers each bit pattern."""
    count = prod(shape)
    rng = torch.Generator().manual_seed(seed)
    some = torch.empty(min(count, DRAWN), dtype=dtype if not dtype.is_floating_point else torch.float32)
    if dtype.is_floating_point:
        some = some.normal_(generator=rng).to(dtype)
    else:
        some.view(torch.uint8).random_(0, 256, generator=rng)
    return some.repeat(math.ceil(count / some.numel()))[:count].reshape(shape)
