# SPDX-License-Identifier: Apache-2.0
"""One sequence over several GPUs or processes: context parallelism.

Each rank of a process group has a part of the tokens, in the order of ranks. `mlstm_interface(..., cp_group=group)`
gives each its part of h. ContextParallel is such a split made once, for calls that share it.
"""

from .attention import context_parallel_attention
from .context import ContextParallel

__all__ = ["ContextParallel", "context_parallel_attention"]


def __dir__() -> list[str]:
    return __all__
