# SPDX-License-Identifier: Apache-2.0
"""autocast_kernel_dtype: inside an autocast region the inputs are cast to that dtype; states never are."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import IO_DTYPES, one_of


def inside_autocast(x: Tensor) -> bool:
    # Meta tensors have no autocast, and asking for it is an error. (torch.amp.is_autocast_available would say so, but
    # torch 2.11 cannot compile it.)
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def product_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast casts x for a matrix product; None outside, and for what it does not cast."""
    if not inside_autocast(x) or not x.is_floating_point() or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(x.device.type)


def in_kernel_dtype(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Casts the tensors, all on one device, to dtype if autocast is on for that device; else returns them unchanged.

    Arguments that are not tensors are returned unchanged: the checks that follow report them by name.
    """
    one_of("autocast_kernel_dtype", dtype, IO_DTYPES)
    first = tensors[0]
    if not isinstance(first, Tensor) or not inside_autocast(first):
        return tensors
    return tuple(x.to(dtype) if isinstance(x, Tensor) else x for x in tensors)
