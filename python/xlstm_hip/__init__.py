# SPDX-License-Identifier: Apache-2.0
"""xlstm_hip: the mLSTM and the layers of xLSTM as native kernels for AMD GPUs, with CPU kernels beside them."""

from ._core import logging
from ._core.device import device_facts, is_amd_gpu, is_mi300x
from ._version import __version__
from .mlstm import builtin_kernels  # noqa: F401  (it fills the registry)
from .mlstm.backend import mLSTMBackend, mLSTMBackendConfig
from .mlstm.describe import describe
from .mlstm.interface import mlstm_interface, mlstm_step_interface
from .mlstm.registry import (
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
from .mlstm.select import get_optimal_kernel_config
from .mlstm.wrappers import wrap_chunkwise__arbitrary_sequence_length, wrap_chunkwise__pad_zeros

__all__ = [
    "KernelInfo",
    "__version__",
    "describe",
    "device_facts",
    "get_available_mlstm_kernels",
    "get_available_mlstm_sequence_kernels",
    "get_available_mlstm_step_kernels",
    "get_mlstm_kernel",
    "get_mlstm_sequence_kernel",
    "get_mlstm_step_kernel",
    "get_optimal_kernel_config",
    "is_amd_gpu",
    "is_mi300x",
    "kernel_info",
    "mLSTMBackend",
    "mLSTMBackendConfig",
    "mlstm_interface",
    "mlstm_step_interface",
    "register_mlstm_kernel",
    "wrap_chunkwise__arbitrary_sequence_length",
    "wrap_chunkwise__pad_zeros",
]

if logging.BUILD:
    logging.say_built()
