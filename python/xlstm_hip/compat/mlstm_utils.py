# SPDX-License-Identifier: Apache-2.0
"""mlstm_kernels.torch.utils: dtypes by other names, tensors made contiguous on their way in, numpy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..mlstm.describe import DTYPE_NAMES

NAMES = (
    "contiguous", "contiguous_noctx", "dtype2str", "int_or_none", "tensor_or_none", "to_numpy", "torch2triton_dtype",
)  # fmt: skip


def dtype2str(dtype: torch.dtype) -> str:
    """fp32, bf16, fp16 or fp64."""
    if dtype not in DTYPE_NAMES:
        raise ValueError(f"dtype: expected one of {', '.join(map(str, DTYPE_NAMES))}, got {dtype}")
    return DTYPE_NAMES[dtype]


def torch2triton_dtype(dtype: torch.dtype) -> Any:
    """Triton's dtype of that name; needs triton."""
    import triton.language as tl

    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]


def _with_contiguous(x: Any) -> Any:
    return x.contiguous() if isinstance(x, Tensor) else x


def contiguous_noctx(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: fn gets every tensor contiguous."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*map(_with_contiguous, args), **{name: _with_contiguous(x) for name, x in kwargs.items()})

    return call


def contiguous(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same for forward and backward of an autograd function, whose first argument is ctx."""
    return contiguous_noctx(fn)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """As float64, on the CPU, without its gradient."""
    return tensor.detach().cpu().to(torch.float64).numpy()


def tensor_or_none(x: Any) -> Tensor | None:
    return None if x is None else torch.tensor(x)


def int_or_none(x: Any) -> int | None:
    return None if x is None else int(x)
