# SPDX-License-Identifier: Apache-2.0
"""Every mLSTM kernel by name, with what it can do.

builtin_kernels.py registers the built-in ones when the package is imported. A user's own kernels join them, and may
replace one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._core.checks import GATES, one_of

KINDS = ("chunkwise", "parallel", "sequence", "step")
LAYER_KINDS = ("chunkwise", "parallel")  # their names carry the kind: "chunkwise--fused"
GRADIENTS = ("exact", "no normaliser", "none", "unstated")


@dataclass(frozen=True)
class KernelInfo:
    """A kernel's facts and abilities.

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


Key = tuple[str, str]  # kind, name
_registered: dict[Key, KernelInfo] = {}  # by users
_builtins: dict[Key, Callable[[], KernelInfo]] = {}
_aliases: dict[Key, str] = {}
_sigmoid_twins: dict[Key, str] = {}


def add_builtins(
    kernels: Mapping[Key, Callable[[], KernelInfo]], aliases: Mapping[Key, str], sigmoid_twins: Mapping[Key, str]
) -> None:
    """Registers kernels that cannot be unregistered. Facts are computed at every look-up, because those of a Triton
    name depend on the process. aliases: other name to name. sigmoid_twins: exp kernel to sigmoid kernel.
    """
    _builtins.update(kernels)
    _aliases.update(aliases)
    _sigmoid_twins.update(sigmoid_twins)


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
    for argument, values, member in (
        ("devices", devices, str),
        ("dtypes", dtypes, torch.dtype),
        ("gpu_dtypes", gpu_dtypes, torch.dtype),
        ("options", options, str),
    ):
        if isinstance(values, str) or not all(isinstance(x, member) for x in values):
            raise TypeError(f"{argument}: expected a sequence of {member.__name__}, got {values!r}")
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
    _registered[(kind, name)] = info
    return info


def unregister_mlstm_kernel(name: str, kind: str) -> None:
    """Removes a user's kernel. A built-in kernel that it replaced comes back. Built-in kernels cannot be removed."""
    if not _has(kind, name):
        raise ValueError(unknown_name_text(name, (kind,)))
    if (kind, name) not in _registered:
        raise ValueError(f"name: {kind} kernel {name!r} is built in and stays")
    del _registered[(kind, name)]


def _find(kind: str, name: str) -> KernelInfo:
    if (kind, name) not in _registered:
        name = _aliases.get((kind, name), name)
    key = (kind, name)
    return _registered[key] if key in _registered else _builtins[key]()


def _has(kind: str, name: str) -> bool:
    key = (kind, name)
    return key in _registered or key in _builtins or key in _aliases


def kernel_names(kinds: Sequence[str], aliases: bool = False) -> list[str]:
    """Names of these kinds: the built-in ones in the table's order, then the users'."""
    keys = [*_builtins, *(_aliases if aliases else ()), *_registered]
    return list(dict.fromkeys(name for kind, name in keys if kind in kinds))


def unknown_name_text(name: object, kinds: Sequence[str]) -> str:
    valid = kernel_names(kinds)
    close = difflib.get_close_matches(str(name), kernel_names(kinds, aliases=True), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"Unknown mLSTM {' or '.join(kinds)} kernel {name!r}.{hint} Valid names: {', '.join(valid)}"


def kernel_info(name: str, kind: str | Sequence[str] | None = None) -> KernelInfo:
    """The kernel with that name. `kind` (one or several) is needed only if kinds share a name, as step and sequence do
    with `fused`.
    """
    kinds = KINDS if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
    for k in kinds:
        one_of("kind", k, KINDS)
    having = [k for k in kinds if _has(k, name)]
    if len(having) > 1:
        raise ValueError(f"name: {name!r} is a kernel of kinds {' and '.join(having)}; pass kind= to say which")
    if not having:
        raise ValueError(unknown_name_text(name, kinds))
    return _find(having[0], name)


def all_kernels(kinds: Sequence[str] = KINDS) -> list[KernelInfo]:
    """Every kernel there is, kind by kind."""
    return [kernel_info(name, kind) for kind in kinds for name in kernel_names((kind,))]


def info_of(function: Callable) -> KernelInfo | None:
    """The registry entry of this function, or None if it is not registered."""
    infos = (_find(*key) for key in {**_builtins, **_registered})
    return next((info for info in infos if info.function is function), None)


def with_gate(info: KernelInfo, gate: str) -> KernelInfo:
    """The kernel itself if it has this input gate, else its counterpart with that gate."""
    one_of("gate", gate, GATES)
    if info.gate == gate:
        return info
    twin = _sigmoid_twins.get((info.kind, info.name)) if gate == "sigmoid" else None
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
    """Names of the kernels that go token by token."""
    return kernel_names(("sequence",))


def get_mlstm_sequence_kernel(name: str) -> Callable:
    """The sequence kernel of that name."""
    return kernel_info(name, "sequence").function


def get_available_mlstm_step_kernels() -> list[str]:
    """Names of the kernels of one token."""
    return kernel_names(("step",))


def get_mlstm_step_kernel(name: str) -> Callable:
    """The step kernel of that name."""
    return kernel_info(name, "step").function


def check_kernel_accepts(info: KernelInfo, q: Tensor, gradient_needed: bool) -> None:
    """Raises if the kernel does not support q's device or dtype, or has no gradient although one is needed."""
    kernel = f"{info.kind} kernel {info.name!r}"
    if "*" not in info.devices and q.device.type not in info.devices:
        where = ", ".join(info.devices)
        raise ValueError(
            f"q: {kernel} runs on {where}, got a tensor on {q.device}; "
            "get_optimal_kernel_config names kernels that run there"
        )
    dtypes = info.dtypes_on(q.device.type)
    if q.dtype not in dtypes:
        where = " on a GPU" if q.dtype in info.dtypes else ""
        raise TypeError(f"q: {kernel} takes {', '.join(map(str, dtypes))}{where}, got {q.dtype}")
    if gradient_needed and info.gradient == "none":
        raise ValueError(
            f"{kernel} has no gradient, but an input requires one; "
            "call it under torch.no_grad(), or choose another kernel"
        )
