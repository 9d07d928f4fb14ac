# SPDX-License-Identifier: Apache-2.0
"""One model over several GPUs or processes.

A sequence over ranks, context parallelism: each rank of a process group has a part of the tokens, in the order of
ranks. `mlstm_interface(..., cp_group=group)` gives each its part of h. ContextParallel is such a split made once, for
calls that share it.

A model over ranks, tensor parallelism: tensor_parallel gives each some of the heads and features, by
tensor_parallel_plan.
"""

from typing import TYPE_CHECKING, Any

from .attention import context_parallel_attention
from .context import ContextParallel

if TYPE_CHECKING:
    from .tensor_plan import tensor_parallel, tensor_parallel_plan

__all__ = ["ContextParallel", "context_parallel_attention", "tensor_parallel", "tensor_parallel_plan"]


def __getattr__(name: str) -> Any:
    if name not in ("tensor_parallel", "tensor_parallel_plan"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import tensor_plan  # it imports torch.distributed.tensor, which takes a second

    return getattr(tensor_plan, name)


def __dir__() -> list[str]:
    return __all__
