# SPDX-License-Identifier: Apache-2.0
"""xlstm_hip: the mLSTM and the layers of xLSTM as native kernels for AMD GPUs, NVIDIA GPUs and CPUs.

dir(xlstm_hip) is the public interface: functions and classes, and the modules of PUBLIC_MODULES. Everything else in the
package is private.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._core import logging
from ._core.device import device_facts, is_amd_gpu, is_mi300x
from ._version import __version__
from .mlstm import (
    KernelInfo,
    get_available_mlstm_kernels,
    get_available_mlstm_sequence_kernels,
    get_available_mlstm_step_kernels,
    get_mlstm_kernel,
    get_mlstm_sequence_kernel,
    get_mlstm_step_kernel,
    get_optimal_kernel_config,
    get_optimized_kernel_config,
    kernel_info,
    mlstm_interface,
    mlstm_step_interface,
    mLSTMBackend,
    mLSTMBackendConfig,
    register_mlstm_kernel,
    wrap_chunkwise__arbitrary_sequence_length,
    wrap_chunkwise__pad_zeros,
)
from .mlstm.describe import describe

if TYPE_CHECKING:
    from . import (  # noqa: F401
        attention,
        bench,
        distributed,
        hf,
        layers,
        mlstm,
        models,
        plans,
        quantize,
        ray_serve,
        reference,
        serving,
        slstm,
        tune,
    )

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
    "get_optimized_kernel_config",
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

# Each is imported when it is first asked for. xlstm_hip.compat is public too. Importing it changes what other imports
# find, so nothing but an import statement does it.
PUBLIC_MODULES = {
    "attention": "flash attention and MLA, with the names of FlashAttention-2 and FlashMLA",
    "bench": "measuring, for benchmarks/ and `xlstm-hip bench`",
    "distributed": "one sequence over several GPUs or processes",
    "hf": "xLSTM models of Hugging Face transformers on these kernels",
    "layers": "the layers around the mLSTM",
    "mlstm": "the mLSTM: what xlstm_hip itself has, without the facts of devices",
    "models": "xLSTM-7B's architecture, checkpoints, generation",
    "plans": "tables of tuned launch plans",
    "quantize": "weights of 8 and 4 bits",
    "ray_serve": "the server on many machines, by Ray Serve",
    "reference": "the mLSTM in plain torch",
    "serving": "many requests at a time on one model",
    "slstm": "the sLSTM and the LSTM with heads, FlashRNN's function",
    "tune": "searching for launch plans",
}


def __getattr__(name: str) -> Any:
    if name in PUBLIC_MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *PUBLIC_MODULES})


if logging.BUILD:
    logging.say_built()
