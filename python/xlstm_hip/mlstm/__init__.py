# SPDX-License-Identifier: Apache-2.0
"""The mLSTM: its functions, its module, and the registry of its kernels. `xlstm_hip` has the same names."""

from . import builtin_kernels  # noqa: F401  (it fills the registry)
from .backend import mLSTMBackend, mLSTMBackendConfig
from .interface import mlstm_interface, mlstm_step_interface
from .registry import (
    KernelInfo,
    get_available_mlstm_kernels,
    get_available_mlstm_sequence_kernels,
    get_available_mlstm_step_kernels,
    get_mlstm_kernel,
    get_mlstm_sequence_kernel,
    get_mlstm_step_kernel,
    kernel_info,
    register_mlstm_kernel,
)
from .select import get_optimal_kernel_config, get_optimized_kernel_config
from .wrappers import wrap_chunkwise__arbitrary_sequence_length, wrap_chunkwise__pad_zeros

__all__ = [
    "KernelInfo",
    "get_available_mlstm_kernels",
    "get_available_mlstm_sequence_kernels",
    "get_available_mlstm_step_kernels",
    "get_mlstm_kernel",
    "get_mlstm_sequence_kernel",
    "get_mlstm_step_kernel",
    "get_optimal_kernel_config",
    "get_optimized_kernel_config",
    "kernel_info",
    "mLSTMBackend",
    "mLSTMBackendConfig",
    "mlstm_interface",
    "mlstm_step_interface",
    "register_mlstm_kernel",
    "wrap_chunkwise__arbitrary_sequence_length",
    "wrap_chunkwise__pad_zeros",
]


def __dir__() -> list[str]:
    return __all__
