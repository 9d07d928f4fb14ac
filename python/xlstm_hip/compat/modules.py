# SPDX-License-Identifier: Apache-2.0
"""The modules that stand in for other packages, and their contents."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..mlstm import backend, interface, triton_peers, wrappers
from . import mlstm_passes, mlstm_utils, xlstm_large
from .attention import attention_contents
from .mlstm_calls import GETTERS, KERNELS, OTHER_CALLS, mLSTMBackend
from .registries import RegistryView

MLSTM_KERNELS_VERSION = "2.0.6"  # whose interface this is
NATIVE_CHUNKWISE = ("mlstm_chunkwise__native_autograd", "mlstm_chunkwise__native_custbw")
LIMIT_CHUNK, XL_CHUNK = ("mlstm_chunkwise__limit_chunk",), ("mlstm_chunkwise__xl_chunk",)
XL_CHUNK_SIGING = ("mlstm_siging_chunkwise__xl_chunk",)
NATIVE_PARALLEL = ("mlstm_parallel__native_autograd", "mlstm_parallel__native_custbw")
NATIVE_STABLEF = ("mlstm_parallel__native_stablef_autograd", "mlstm_parallel__native_stablef_custbw")
NATIVE_SIGING = ("mlstm_siging_parallel__native_autograd", "mlstm_siging_parallel__native_custbw")
LIMIT_HEADDIM = ("mlstm_parallel__limit_headdim",)
SEQUENCE = (
    "mlstm_recurrent_sequence__native_fw",
    "mlstm_recurrent_sequence__triton_step_fused_fw",
    "mlstm_recurrent_sequence__triton_alternate_step_fw",
)
NATIVE_STEP, TRITON_STEP = ("mlstm_recurrent_step__native",), ("mlstm_recurrent_step__triton",)
ALTERNATE_STEP = ("mlstm_recurrent_step__triton_alternate",)
PAD_ZEROS = ("wrap_chunkwise__pad_zeros",)
WITH_PADDING = ("wrap_chunkwise__arbitrary_sequence_length_with_padding",)
WRAPPERS = (*PAD_ZEROS, "wrap_chunkwise__arbitrary_sequence_length", *WITH_PADDING)
KERNEL_GETTERS = ("get_mlstm_kernel", "get_mlstm_sequence_kernel", "get_mlstm_step_kernel")


def _take(module: ModuleType, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def _calls(*names: str) -> dict[str, Any]:
    return {name: (KERNELS | OTHER_CALLS)[name] for name in names}


def _fwbw(module: str, *names: str) -> dict[str, Mapping[str, Any]]:
    """The functions of a kernel, in its module and in the one below that holds forward and backward pass."""
    return {module: _calls(*names), f"{module}.fwbw": _calls(*names)}


def contents() -> dict[str, Mapping[str, Any]]:
    """Module name to what it holds."""
    public_backend = {"mLSTMBackend": mLSTMBackend, "mLSTMBackendConfig": backend.mLSTMBackendConfig}
    torch = "mlstm_kernels.torch"
    return {
        "mlstm_kernels": {"__version__": MLSTM_KERNELS_VERSION},
        "mlstm_kernels.mlstm": {
            **_take(interface, ("mlstm_interface", "mlstm_step_interface")), **GETTERS, **public_backend,
        },
        torch: GETTERS,
        f"{torch}.backend_module": {
            **public_backend, **xlstm_large.TYPES, **{name: GETTERS[name] for name in KERNEL_GETTERS},
            **_take(wrappers, PAD_ZEROS + WITH_PADDING),
        },
        f"{torch}.kernel_wrappers": _take(wrappers, WRAPPERS),
        f"{torch}.utils": _take(mlstm_utils, mlstm_utils.NAMES),
        f"{torch}.chunkwise": {
            "registry": RegistryView("chunkwise", "chunkwise--"),
            **_calls(*NATIVE_CHUNKWISE, *LIMIT_CHUNK, *XL_CHUNK, *XL_CHUNK_SIGING),
        },
        **_fwbw(f"{torch}.chunkwise.native", *NATIVE_CHUNKWISE),
        f"{torch}.chunkwise.native.fw": mlstm_passes.CHUNKWISE_FW,
        f"{torch}.chunkwise.native.bw": mlstm_passes.CHUNKWISE_BW,
        **_fwbw(f"{torch}.chunkwise.triton_limit_chunk", *LIMIT_CHUNK),
        **_fwbw(f"{torch}.chunkwise.triton_xl_chunk", *XL_CHUNK),
        **_fwbw(f"{torch}.chunkwise.triton_xl_chunk_siging", *XL_CHUNK_SIGING),
        f"{torch}.parallel": {
            "registry": RegistryView("parallel", "parallel--"),
            **_calls(*NATIVE_PARALLEL, *NATIVE_STABLEF, *NATIVE_SIGING, *LIMIT_HEADDIM),
        },
        **_fwbw(f"{torch}.parallel.native", *NATIVE_PARALLEL),
        **_fwbw(f"{torch}.parallel.native_stablef", *NATIVE_STABLEF),
        **_fwbw(f"{torch}.parallel.native_siging", *NATIVE_SIGING),
        **_fwbw(f"{torch}.parallel.triton_limit_headdim", *LIMIT_HEADDIM),
        **{f"{torch}.parallel.{name}.fw": fw for name, (fw, _) in mlstm_passes.PARALLEL.items()},
        **{f"{torch}.parallel.{name}.bw": bw for name, (_, bw) in mlstm_passes.PARALLEL.items()},
        f"{torch}.recurrent": {
            "registry_step": RegistryView("step"), "registry_sequence": RegistryView("sequence"),
            **_calls(*SEQUENCE, *NATIVE_STEP, *TRITON_STEP, *ALTERNATE_STEP),
        },
        f"{torch}.recurrent.native_sequence": _calls(*SEQUENCE, *(f"{name}_fw" for name in NATIVE_STEP)),
        f"{torch}.recurrent.native_step": _calls(*NATIVE_STEP, *(f"{name}_fw" for name in NATIVE_STEP)),
        f"{torch}.recurrent.triton_step": _calls(*TRITON_STEP, *(f"{name}_fw" for name in TRITON_STEP)),
        f"{torch}.recurrent.triton_step_alternate": _calls(
            *ALTERNATE_STEP, *(f"{name}_fw" for name in ALTERNATE_STEP)
        ),
    }  # fmt: skip


class Offered(MetaPathFinder, Loader):
    """Makes modules when they are imported: below a real package too, which then knows them as its own."""

    def __init__(self, modules: Mapping[str, Mapping[str, Any]], refused: Sequence[str] = ()) -> None:
        self._modules = modules
        self._refused = refused

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in self._refused:
            raise xlstm_large.not_offered(fullname)
        return ModuleSpec(fullname, loader=self, is_package=True) if fullname in self._modules else None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"xlstm_hip in the place of {module.__name__}."
        module.__dict__.update(self._modules[module.__name__], __xlstm_hip__=True)


def install() -> None:
    modules = {**contents(), **attention_contents()}
    large = {"xlstm.xlstm_large" + name: attributes for name, attributes in xlstm_large.contents().items()}
    for package in (*sorted({name.partition(".")[0] for name in modules}), "xlstm.xlstm_large"):
        loaded = sys.modules.get(package)
        if loaded is not None and not triton_peers.stands_in(loaded):
            raise ImportError(
                f"xlstm_hip.compat: the real {package} is imported already and cannot be replaced any more; "
                "import xlstm_hip.compat before it, or do without one of the two"
            )
    if importlib.util.find_spec("xlstm"):
        sys.meta_path.insert(0, Offered(large))
    else:
        refused = tuple(f"xlstm.{name}" for name in xlstm_large.NOT_OFFERED_MODULES)
        sys.meta_path.insert(0, Offered({"xlstm": xlstm_large.package(), **large}, refused))
    for name, attributes in modules.items():
        module = ModuleType(name, f"xlstm_hip in the place of {name}.")
        module.__dict__.update(attributes)
        module.__dict__["__xlstm_hip__"] = True
        # As packages with nowhere to look, they answer what is not offered with a plain "No module named".
        module.__path__ = []
        module.__package__ = name
        module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
        sys.modules[name] = module
    for name in modules:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
