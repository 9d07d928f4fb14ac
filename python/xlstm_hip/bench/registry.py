# SPDX-License-Identifier: Apache-2.0
"""The tables of a benchmark: operators, their providers, and the points at which they are measured.

An operator knows its shapes, makes inputs, and says how far results are from the truth; an implementation is one
provider's way to do it. `operators.py` has the table of all.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..mlstm.triton_peers import stands_in

Tensors = dict[str, Tensor]
Call = Callable[[], Tensors]
Prepare = Callable[[Any, Tensors], Call]
Errors = Callable[[Any, Tensors, Tensors], dict[str, float]]  # of results against a truth, by name
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EVERYWHERE = ("cpu", "cuda")
XLSTM_HIP, PLAIN, OFFICIAL, FLA = "xlstm_hip", "reference", "mlstm_kernels", "FLA"
SDPA, FLASH, HUGGING_FACE, LARGE = "SDPA", "flash_attn", "transformers", "xlstm_large"


@dataclass(frozen=True)
class Provider:
    name: str
    text: str
    module: str | None = None  # what must be installed; None: it is here anyway

    def missing(self) -> str | None:
        if self.module is None:
            return None
        if stands_in(sys.modules.get(self.module)):
            return f"{self.module} is xlstm_hip.compat's here"
        return None if importlib.util.find_spec(self.module) is not None else f"{self.module} is not installed"


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(XLSTM_HIP, "the kernels of this package"),
        Provider(PLAIN, "the same formulas in plain torch, as this package has them"),
        Provider(OFFICIAL, "mlstm_kernels: Triton on a GPU, plain torch on the CPU", "mlstm_kernels"),
        Provider(FLA, "flash-linear-attention's simple_gla: no normaliser, no input gate", "fla"),
        Provider(SDPA, "torch's scaled_dot_product_attention"),
        Provider(FLASH, "the flash_attn package", "flash_attn"),
        Provider(HUGGING_FACE, "transformers' own xLSTM", "transformers"),
        Provider(LARGE, "the official xlstm_large model", "xlstm"),
    )
}


class Cell(Protocol):
    """A work at a shape and a dtype. bytes: that must be read and written; flops: that the definition needs."""

    @property
    def dtype(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def flops(self) -> float: ...
    @property
    def bytes(self) -> float: ...
    def as_json(self) -> dict[str, Any]: ...


def why_missing(provider: str, devices: tuple[str, ...], device: torch.device) -> str | None:
    """devices: those that the contender runs on; device: the one at hand. None: nothing is missing."""
    absent = PROVIDERS[provider].missing()
    if absent is None and device.type not in devices:
        return f"does not run on {'a GPU' if device.type == 'cuda' else 'the CPU'}"
    return absent


@dataclass(frozen=True)
class Implementation:
    name: str
    provider: str
    prepare: Prepare  # the work on these inputs: a call that gives its results by name
    devices: tuple[str, ...] = EVERYWHERE
    triton: bool = False
    llvm_opt: bool = True  # False: Triton 3.6 ends the process on an assertion with LLVM's optimiser on
    exact: bool = True  # False: another function than the operator's, timed for its arithmetic
    errors: Errors | None = None  # in the place of the operator's: of rounded weights, which have a truth of their own
    needs: Callable[[Any], float] = lambda cell: 0.0  # bytes that make it pointless to begin where they are not free
    beyond: Callable[[Any], str] = lambda cell: ""  # why it would end the process at this shape

    def missing(self, device: torch.device) -> str | None:
        return why_missing(self.provider, self.devices, device)


@dataclass(frozen=True)
class Scale:
    """The range of an operator's points."""

    gpu: bool
    quick: bool
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One line of the result. series: what varies, and with it the picture; x: its value here."""

    series: str
    x: int | str
    cell: Any


@dataclass(frozen=True)
class Operator:
    name: str
    text: str
    points: Callable[[Scale], list[Point]]
    inputs: Callable[[Any, torch.device], Tensors]
    truth: Callable[[Any, Tensors], Tensors]
    errors: Errors
    implementations: tuple[Implementation, ...]
    exact: Mapping[str, float]  # by dtype: a result further from the truth is wrong
    trial: Callable[[Any], Any] | None = None  # of a cell: a small one for which the same kernels are compiled
    cold: bool = True  # on a GPU: timed with an empty L2, so without what the host adds
    # Called with an implementation's name, a cell and a device: makes once the things needed at all points, such as a
    # model.
    ready: Callable[[str, Any, torch.device], None] | None = None


def relative_error(x: Tensor, truth: Tensor) -> float:
    x, truth = x.detach().double(), truth.detach().double()
    return float((x - truth).norm() / truth.norm())


def named(kind: str, known: Mapping[str, Any], name: str) -> str:
    """The name as it is written here; upper and lower case do not count."""
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    raise ValueError(f"{kind}: expected one of {', '.join(known)}, got {name!r}")


def work_of(operator: Operator, cell: Any) -> str:
    """The name of this cell's trial."""
    return operator.name if operator.trial is None else f"{operator.name} {operator.trial(cell).title}"
