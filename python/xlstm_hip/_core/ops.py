# SPDX-License-Identifier: Apache-2.0
"""The op library in torch: its ops, which devices have kernels for them, and the base of their autograd functions.

_ops.py loads the library. The schemas are in csrc/torch/register.cpp. Shapes for the compiler and gradients are with
the functions that call the ops: mlstm/ops.py, attention/ops.py, layers/ops.py, models/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _ops
from . import logging

OPS = logging.watched(_ops.ops)

_DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA"}


def devices_with_kernels(op: str = "mlstm_chunkwise") -> tuple[str, ...]:
    """The device types that the loaded library has a kernel for."""
    name = _ops.add_op_namespace_prefix(op)
    return tuple(d for d, key in _DISPATCH_KEYS.items() if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """torch's once_differentiable, with its cost paid only if a graph of the backward pass is recorded."""
    recorded = once_differentiable(backward)

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor | None) -> Any:
        return (recorded if torch.is_grad_enabled() else backward)(ctx, *gradients)

    return run


class OpFunction(torch.autograd.Function):
    """Base of every autograd function of this package.

    A small call costs the host more than the GPU. A quarter of torch's `apply` serves functorch transforms and
    setup_context. If nothing is being transformed or traced, this class calls the level below.
    """

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)
        return super(torch.autograd.Function, cls).apply(*arguments)  # type: ignore[misc]
