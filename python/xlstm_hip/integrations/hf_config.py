# SPDX-License-Identifier: Apache-2.0
"""transformers' xLSTMConfig for any registered kernel's name.

Without the xlstm package, transformers accepts only its own kernel names, which no released config.json has. This
imports no model of transformers, so that a plug-in can ask for it.
"""

from __future__ import annotations

import functools

from ..mlstm.registry import LAYER_KINDS, kernel_info

KERNEL_KINDS: dict[str, tuple[str, ...]] = {
    "chunkwise_kernel": LAYER_KINDS, "sequence_kernel": ("sequence",), "step_kernel": ("step",),
}  # fmt: skip


def accept_registered_kernels() -> None:
    from transformers import xLSTMConfig

    config: type = xLSTMConfig
    for field, kinds in KERNEL_KINDS.items():
        config.__validators__[field] = [functools.partial(check_kernel, field, kinds)]  # type: ignore[attr-defined]


def check_kernel(field: str, kinds: tuple[str, ...], name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{field}: expected a kernel name, got {name!r}")
    kernel_info(name, kinds)
