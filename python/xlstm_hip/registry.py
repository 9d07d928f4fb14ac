# SPDX-License-Identifier: Apache-2.0
"""Every mLSTM kernel by name, with what it can do.

The built-in names stand in names.py as a table of strings; the function behind a name is imported at its
first lookup, so `import xlstm_hip` stays cheap. Kernels registered by a user stand beside them and may take a
built-in's place.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import GATES, one_of

KINDS = ("chunkwise", "parallel", "sequence", "step")
LAYER_KINDS = ("chunkwise", "parallel")  # their names carry the kind: "chunkwise--fused"
GRADIENTS = ("exact", "no normaliser", "none", "unstated")


@dataclass(frozen=True)
class KernelInfo:
    """What a kernel is and what it can do.

    devices: torch device types, "*" for any. gradient: "exact", "no normaliser" (the peers' gradient, which
    holds the normaliser constant), "none", or "unstated" for a function whose author did not say. states:
    takes initial states and returns the last ones. options: the keywords it understands beyond the common
    contract. any_length: takes any S >= 1; otherwise S must be a multiple of chunk_size. gpu_dtypes: on a GPU
    ("cuda"), where those are fewer than dtypes; empty: the same.
    """

    name: str
    kind: str
    function: Callable
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    gradient: str
    gate: str = "exp"
    states: bool = True
    options: tuple[str, ...] = ()
    note: str = ""
    any_length: bool = True
    gpu_dtypes: tuple[torch.dtype, ...] = ()

    def dtypes_on(self, device_type: str) -> tuple[torch.dtype, ...]:
        return self.gpu_dtypes if device_type == "cuda" and self.gpu_dtypes else self.dtypes


_loaded: dict[tuple[str, str], KernelInfo] = {}  # what users registered, and the built-ins looked up so far


def register_mlstm_kernel(
    name: str,
    function: Callable,
    *,
    kind: str,
    devices: Sequence[str],
    dtypes: Sequence[torch.dtype],
    gradient: str,
    gate: str = "exp",
    states: bool = True,
    options: Sequence[str] = (),
    note: str = "",
    any_length: bool = True,
    gpu_dtypes: Sequence[torch.dtype] = (),
    overwrite: bool = False,
) -> KernelInfo:
    """Adds a kernel. Chunkwise and parallel names are "<kind>--<name>"; a taken name needs overwrite=True."""
    one_of("kind", kind, KINDS)
    one_of("gradient", gradient, GRADIENTS)
    one_of("gate", gate, GATES)
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: expected a non-empty string, got {name!r}")
    if kind in LAYER_KINDS and not (name.startswith(f"{kind}--") and len(name) > len(kind) + 2):
        raise ValueError(f"name: expected {kind}--<name> for a {kind} kernel, got {name!r}")
    if not callable(function):
        raise TypeError(f"function: expected a callable, got {type(function).__name__}")
    for what, values, member in (
        ("devices", devices, str),
        ("dtypes", dtypes, torch.dtype),
        ("gpu_dtypes", gpu_dtypes, torch.dtype),
        ("options", options, str),
    ):
        if isinstance(values, str) or not all(isinstance(x, member) for x in values):
            raise TypeError(f"{what}: expected a sequence of {member.__name__}, got {values!r}")
    if not devices or not dtypes:
        raise ValueError(f"{'devices' if not devices else 'dtypes'}: expected at least one, got none")
    if not overwrite and _has(kind, name):
        raise ValueError(f"name: a {kind} kernel {name!r} is registered already; pass overwrite=True to replace it")
    info = KernelInfo(
        name,
        kind,
        function,
        tuple(devices),
        tuple(dtypes),
        gradient,
        gate,
        states,
        tuple(options),
        note,
        any_length,
        tuple(gpu_dtypes),
    )
    _loaded[(kind, name)] = info
    return info


def unregister_mlstm_kernel(name: str, kind: str) -> None:
    """Takes a user's kernel out; a built-in it stood in for comes back. The built-ins themselves stay."""
    from .names import BUILTIN

    key = (kind, name)
    if _find(kind, name) is None:
        raise ValueError(unknown_name_text(name, (kind,)))
    if key not in _loaded or (key in BUILTIN and BUILTIN[key].load() == _loaded[key]):
        raise ValueError(f"name: {kind} kernel {name!r} is built in and stays")
    del _loaded[key]


def _find(kind: str, name: str) -> KernelInfo | None:
    from .names import ALIASES, BUILTIN

    if (kind, name) not in _loaded:
        name = ALIASES.get((kind, name), name)
    key = (kind, name)
    if key not in _loaded and key in BUILTIN:
        _loaded[key] = BUILTIN[key].load()
    return _loaded.get(key)


def _has(kind: str, name: str) -> bool:
    from .names import ALIASES, BUILTIN

    key = (kind, name)
    return key in _loaded or key in BUILTIN or key in ALIASES


def kernel_names(kinds: Sequence[str], aliases: bool = False) -> list[str]:
    """Names of these kinds: the built-in ones in the table's order, then the users'."""
    from .names import ALIASES, BUILTIN

    keys = [*BUILTIN, *(ALIASES if aliases else ()), *_loaded]
    return list(dict.fromkeys(name for kind, name in keys if kind in kinds))


def unknown_name_text(name: object, kinds: Sequence[str]) -> str:
    valid = kernel_names(kinds)
    close = difflib.get_close_matches(str(name), kernel_names(kinds, aliases=True), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"Unknown mLSTM {' or '.join(kinds)} kernel {name!r}.{hint} Valid names: {', '.join(valid)}"


def kernel_info(name: str, kind: str | Sequence[str] | None = None) -> KernelInfo:
    """The kernel of that name. `kind` (one, or several) is needed only where kinds share a name, as step and
    sequence `fused` do."""
    kinds = KINDS if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
    for k in kinds:
        one_of("kind", k, KINDS)
    having = [k for k in kinds if _has(k, name)]
    if len(having) > 1:
        raise ValueError(f"name: {name!r} is a kernel of kinds {' and '.join(having)}; pass kind= to say which")
    info = _find(having[0], name) if having else None
    if info is None:
        raise ValueError(unknown_name_text(name, kinds))
    return info


def all_kernels(kinds: Sequence[str] = KINDS) -> list[KernelInfo]:
    """Every kernel there is, kind by kind."""
    return [kernel_info(name, kind) for kind in kinds for name in kernel_names((kind,))]


def info_of(function: Callable) -> KernelInfo | None:
    """What is registered for this very function; None for one nobody registered."""
    from .names import BUILTIN

    for builtin in BUILTIN.values():  # a function can only be at hand if its module has been imported
        if builtin.key not in _loaded and builtin.module in sys.modules:
            _loaded[builtin.key] = builtin.load()
    return next((info for info in _loaded.values() if info.function is function), None)


def with_gate(info: KernelInfo, gate: str) -> KernelInfo:
    """The kernel itself where it has this input gate, else its twin that has it."""
    from .names import SIGMOID_TWINS

    one_of("gate", gate, GATES)
    if info.gate == gate:
        return info
    twin = SIGMOID_TWINS.get((info.kind, info.name)) if gate == "sigmoid" else None
    if twin is None:
        raise ValueError(f"{info.kind} kernel {info.name!r} has the {info.gate} input gate, and no twin for {gate!r}")
    return kernel_info(twin, info.kind)


def get_available_mlstm_kernels() -> list[str]:
    """Names of the chunkwise and parallel kernels."""
    return kernel_names(LAYER_KINDS)


def get_mlstm_kernel(name: str) -> Callable:
    """The chunkwise or parallel kernel "<kind>--<name>"."""
    return kernel_info(name, LAYER_KINDS).function


def get_available_mlstm_sequence_kernels() -> list[str]:
    return kernel_names(("sequence",))


def get_mlstm_sequence_kernel(name: str) -> Callable:
    return kernel_info(name, "sequence").function


def get_available_mlstm_step_kernels() -> list[str]:
    return kernel_names(("step",))


def get_mlstm_step_kernel(name: str) -> Callable:
    return kernel_info(name, "step").function


def check_kernel_accepts(info: KernelInfo, q: Tensor, gradient_needed: bool) -> None:
    """Raises where the kernel has no support for q's device or dtype, or no gradient though one is needed."""
    what = f"{info.kind} kernel {info.name!r}"
    if "*" not in info.devices and q.device.type not in info.devices:
        raise ValueError(f"q: {what} runs on {', '.join(info.devices)}, got a tensor on {q.device}")
    dtypes = info.dtypes_on(q.device.type)
    if q.dtype not in dtypes:
        where = " on a GPU" if q.dtype in info.dtypes else ""
        raise TypeError(f"q: {what} takes {', '.join(map(str, dtypes))}{where}, got {q.dtype}")
    if gradient_needed and info.gradient == "none":
        raise ValueError(
            f"{what} has no gradient, but an input requires one; "
            "call it under torch.no_grad(), or choose another kernel"
        )
