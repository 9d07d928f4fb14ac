# SPDX-License-Identifier: Apache-2.0
"""mlstm_kernels' registry dicts as views of ours: what is written into one is a registered kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

from .._core.checks import IO_DTYPES
from ..mlstm.registry import kernel_info, kernel_names, register_mlstm_kernel, unregister_mlstm_kernel
from .mlstm_calls import peers_call


class RegistryView(MutableMapping[str, Callable]):
    """Kernel name, without the "chunkwise--" before it, to function.

    A function that is added here is only known to follow the peers' call: every device and dtype is accepted, its
    gradient counts as unstated, and the wrappers pass lengths that are multiples of chunk_size.
    """

    def __init__(self, kind: str, prefix: str = "") -> None:
        self._kind = kind
        self._prefix = prefix

    def __getitem__(self, name: str) -> Callable:
        if name not in list(self):
            raise KeyError(name)
        return peers_call(kernel_info(self._prefix + name, self._kind).function)

    def __setitem__(self, name: str, function: Callable) -> None:
        register_mlstm_kernel(
            self._prefix + name,
            function,
            kind=self._kind,
            devices=("*",),
            dtypes=IO_DTYPES,
            gradient="unstated",
            gate="sigmoid" if "siging" in name else "exp",
            note="registered through mlstm_kernels' dict",
            any_length=False,
            overwrite=True,
        )

    def __delitem__(self, name: str) -> None:
        if name not in list(self):
            raise KeyError(name)
        unregister_mlstm_kernel(self._prefix + name, self._kind)

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in kernel_names((self._kind,)))

    def __len__(self) -> int:
        return len(kernel_names((self._kind,)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"
