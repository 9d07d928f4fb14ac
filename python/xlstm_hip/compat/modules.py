# SPDX-License-Identifier: Apache-2.0
"""The modules that stand in for other packages, and their contents."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .. import reference
from ..mlstm import backend, interface, registry, triton_peers, wrappers
from . import xlstm_large
from .attention import attention_contents
from .registries import RegistryView

GETTERS = (
    "get_available_mlstm_kernels",
    "get_mlstm_kernel",
    "get_available_mlstm_sequence_kernels",
    "get_mlstm_sequence_kernel",
    "get_available_mlstm_step_kernels",
    "get_mlstm_step_kernel",
)
NATIVE_CHUNKWISE = ("mlstm_chunkwise__native_autograd", "mlstm_chunkwise__native_custbw")
NATIVE_PARALLEL = ("mlstm_parallel__native_autograd", "mlstm_parallel__native_custbw")
NATIVE_STABLEF = ("mlstm_parallel__native_stablef_autograd", "mlstm_parallel__native_stablef_custbw")
NATIVE_SIGING = ("mlstm_siging_parallel__native_autograd", "mlstm_siging_parallel__native_custbw")
WRAPPERS = (
    "wrap_chunkwise__pad_zeros",
    "wrap_chunkwise__arbitrary_sequence_length",
    "wrap_chunkwise__arbitrary_sequence_length_with_padding",
)
BACKEND = ("mLSTMBackend", "mLSTMBackendConfig")
LIMIT_CHUNK = {"mlstm_chunkwise__limit_chunk": triton_peers.limit_chunk}
XL_CHUNK = {"mlstm_chunkwise__xl_chunk": triton_peers.xl_chunk}
XL_CHUNK_SIGING = {"mlstm_siging_chunkwise__xl_chunk": triton_peers.xl_chunk_siging}
LIMIT_HEADDIM = {"mlstm_parallel__limit_headdim": triton_peers.limit_headdim}


def _take(module: ModuleType, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def contents() -> dict[str, Mapping[str, Any]]:
    """Module name to what it holds."""
    getters = _take(registry, GETTERS)
    chunkwise, parallel = _take(reference, NATIVE_CHUNKWISE), _take(reference, NATIVE_PARALLEL)
    stablef, siging = _take(reference, NATIVE_STABLEF), _take(reference, NATIVE_SIGING)
    native_sequence = _take(reference, ("mlstm_recurrent_sequence__native_fw",))
    native_step = _take(reference, ("mlstm_recurrent_step__native",))
    triton_step = {"mlstm_recurrent_step__triton": triton_peers.step}
    triton_sequence = {"mlstm_recurrent_sequence__triton_step_fused_fw": triton_peers.sequence}
    public_backend = _take(backend, BACKEND)
    torch = "mlstm_kernels.torch"
    return {
        "mlstm_kernels": {},
        "mlstm_kernels.mlstm": {
            **_take(interface, ("mlstm_interface", "mlstm_step_interface")), **getters, **public_backend,
        },
        torch: getters,
        f"{torch}.backend_module": {**public_backend, **xlstm_large.TYPES},
        f"{torch}.kernel_wrappers": _take(wrappers, WRAPPERS),
        f"{torch}.chunkwise": {
            "registry": RegistryView("chunkwise", "chunkwise--"),
            **chunkwise, **LIMIT_CHUNK, **XL_CHUNK, **XL_CHUNK_SIGING,
        },
        f"{torch}.chunkwise.native": chunkwise,
        f"{torch}.chunkwise.native.fwbw": chunkwise,
        f"{torch}.chunkwise.triton_limit_chunk": LIMIT_CHUNK,
        f"{torch}.chunkwise.triton_xl_chunk": XL_CHUNK,
        f"{torch}.chunkwise.triton_xl_chunk_siging": XL_CHUNK_SIGING,
        f"{torch}.parallel": {
            "registry": RegistryView("parallel", "parallel--"),
            **parallel, **stablef, **siging, **LIMIT_HEADDIM,
        },
        f"{torch}.parallel.native": parallel,
        f"{torch}.parallel.native.fwbw": parallel,
        f"{torch}.parallel.native_stablef": stablef,
        f"{torch}.parallel.native_stablef.fwbw": stablef,
        f"{torch}.parallel.native_siging": siging,
        f"{torch}.parallel.native_siging.fwbw": siging,
        f"{torch}.parallel.triton_limit_headdim": LIMIT_HEADDIM,
        f"{torch}.recurrent": {
            "registry_step": RegistryView("step"), "registry_sequence": RegistryView("sequence"),
            **native_sequence, **native_step, **triton_step, **triton_sequence,
        },
        f"{torch}.recurrent.native_sequence": {**native_sequence, **triton_sequence},
        f"{torch}.recurrent.native_step": native_step,
        f"{torch}.recurrent.triton_step": triton_step,
    }  # fmt: skip


class Offered(MetaPathFinder, Loader):
    """Makes modules when they are imported: below a real package too, which then knows them as its own."""

    def __init__(self, held: Mapping[str, Mapping[str, Any]]) -> None:
        self._held = held

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, loader=self, is_package=True) if fullname in self._held else None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"xlstm_hip in the place of {module.__name__}."
        module.__dict__.update(self._held[module.__name__], __xlstm_hip__=True)


def install() -> None:
    held = {**contents(), **attention_contents()}
    large = {"xlstm.xlstm_large" + name: attributes for name, attributes in xlstm_large.contents().items()}
    for package in (*sorted({name.partition(".")[0] for name in held}), "xlstm.xlstm_large"):
        loaded = sys.modules.get(package)
        if loaded is not None and not triton_peers.stands_in(loaded):
            raise ImportError(
                f"xlstm_hip.compat: the real {package} is imported already and cannot be replaced any more; "
                "import xlstm_hip.compat before it, or do without one of the two"
            )
    sys.meta_path.insert(0, Offered(large if importlib.util.find_spec("xlstm") else {"xlstm": {}, **large}))
    for name, attributes in held.items():
        module = ModuleType(name, f"xlstm_hip in the place of {name}.")
        module.__dict__.update(attributes)
        module.__dict__["__xlstm_hip__"] = True
        # As packages with nowhere to look, they answer what is not offered with a plain "No module named".
        module.__path__ = []
        module.__package__ = name
        module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
        sys.modules[name] = module
    for name in held:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
