# SPDX-License-Identifier: Apache-2.0
"""Kernels that torch.compile builds on their first call. Importing them compiles nothing."""

from .chunkwise import mlstm_chunkwise__native_compiled_autograd
from .metal import mlstm_recurrent_sequence__metal, mlstm_recurrent_step__metal
from .queued import mlstm_chunkwise__queued_compiled_steps
from .ray_actors import mlstm_chunkwise__ray_compiled_steps, shutdown_ray_pool

__all__ = [
    "mlstm_chunkwise__native_compiled_autograd",
    "mlstm_chunkwise__queued_compiled_steps",
    "mlstm_chunkwise__ray_compiled_steps",
    "mlstm_recurrent_sequence__metal",
    "mlstm_recurrent_step__metal",
    "shutdown_ray_pool",
]
