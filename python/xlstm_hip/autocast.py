# SPDX-License-Identifier: Apache-2.0
"""What autocast_kernel_dtype means: inside an autocast region inputs are cast to it, states never."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import IO_DTYPES, one_of


def inside_autocast(x: Tensor) -> bool:
    kind = x.device.type  # a device such as meta has no autocast, and asking for it would be an error
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def in_kernel_dtype(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Casts the tensors to dtype inside an autocast region of their device, leaves them alone elsewhere."""
    one_of("autocast_kernel_dtype", dtype, IO_DTYPES)
    return tuple(x.to(dtype) if isinstance(x, Tensor) and inside_autocast(x) else x for x in tensors)
