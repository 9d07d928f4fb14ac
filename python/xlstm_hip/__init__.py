# SPDX-License-Identifier: Apache-2.0
"""xlstm_hip: the mLSTM and the layers of xLSTM as native kernels for AMD GPUs, with CPU kernels beside them."""

from . import (
    names,  # noqa: F401  (it fills the registry)
    observe,
)
from ._version import __version__
from .backend import mLSTMBackend, mLSTMBackendConfig
from .describe import describe
from .device import device_facts, is_amd_gpu, is_mi300x
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
from .select import get_optimal_kernel_config
from .wrappers import wrap_chunkwise__arbitrary_sequence_length, wrap_chunkwise__pad_zeros

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

if observe.BUILD:
    observe.say_built()
