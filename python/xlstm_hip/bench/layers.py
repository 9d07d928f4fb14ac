# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM: shapes, inputs, float64 truth, ours and plain torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .. import layers
from ..reference import layers as plain
from .registry import DTYPES, PLAIN, XLSTM_HIP, Call, Implementation, Point, Prepare, Scale, Tensors, relative_error

EPS, CAP = 1e-6, 30.0
WORKS = ("forward", "forward+backward")


@dataclass(frozen=True)
class Layer:
    name: str
    fused: Callable[..., Any]
    plain: Callable[..., Any]
    shapes: Callable[[int, int], list[tuple[int, ...]]]  # of the arguments, for so many tokens and features

    def sizes(self, tokens: int, width: int) -> list[tuple[int, ...]]:
        return self.shapes(tokens, width)


def _head(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda h, o, w: function(h, o, w, None, EPS, True)


@functools.lru_cache(maxsize=8)
def _targets(rows: int, classes: int, device: torch.device) -> Tensor:
    return torch.arange(rows, device=device) % classes


def _loss(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda logits: function(logits, _targets(*logits.shape, logits.device), CAP, -100, "mean")


LAYERS = (
    Layer(
        "RMSNorm",
        lambda x, w: layers.rms_norm(x, w, None, EPS),
        lambda x, w: plain.rms_norm(x, w, None, EPS),
        lambda n, d: [(n, d), (d,)],
    ),
    Layer(
        "add + RMSNorm",
        lambda x, y, w: layers.add_rms_norm(x, y, w, None, EPS),
        lambda x, y, w: plain.add_rms_norm(x, y, w, None, EPS),
        lambda n, d: [(n, d), (n, d), (d,)],
    ),
    Layer(
        "head norm + gate",
        _head(layers.head_norm_gate),
        _head(plain.head_norm_gate),
        lambda n, d: [(n, 8, d // 8), (n, d), (d,)],
    ),
    Layer("soft cap", lambda x: layers.soft_cap(x, CAP), lambda x: plain.soft_cap(x, CAP), lambda n, d: [(n, d)]),
    Layer("SwiGLU", layers.swiglu, plain.swiglu, lambda n, d: [(n, d), (n, d)]),
    Layer(
        "cross entropy", _loss(layers.capped_cross_entropy), _loss(plain.capped_cross_entropy), lambda n, d: [(n, d)]
    ),
)


@dataclass(frozen=True)
class Cell:
    layer: str
    work: str  # forward, forward+backward
    dtype: str
    tokens: int
    width: int

    @property
    def title(self) -> str:
        return f"{self.layer}, {self.work}, {self.dtype}, {self.tokens} x {self.width}"

    @property
    def flops(self) -> float:
        """None in matrix products: memory binds them."""
        return 0.0

    @property
    def bytes(self) -> int:
        """By the shapes alone, on torch's device without memory."""
        inputs = [
            torch.empty(shape, device="meta", dtype=DTYPES[self.dtype], requires_grad=True)
            for shape in layer_of(self).sizes(self.tokens, self.width)
        ]
        return bytes_of(self, inputs, results_of(self, layer_of(self).plain, inputs))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "size": f"{self.layer} {self.tokens} x {self.width}"}


def layer_of(cell: Cell) -> Layer:
    return next(layer for layer in LAYERS if layer.name == cell.layer)


def _outputs(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    out = function(*inputs)
    return list(out) if isinstance(out, tuple) else [out]


def call_of(cell: Cell, function: Callable[..., Any], inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Forward, then gradients where the cell asks for them. The gradient that enters backward is made here, once."""
    with torch.no_grad():
        outputs = _outputs(function, inputs)
    # A mean's gradients as those of the sum, as loss scaling makes them: half precision has no room for less.
    cotangents = [torch.full_like(x, cell.tokens if x.dim() == 0 else 1) for x in outputs]

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return _outputs(function, inputs)

    def both() -> list[Tensor]:
        outputs = _outputs(function, inputs)
        return outputs + list(torch.autograd.grad(outputs, inputs, cotangents))

    return forward if cell.work == "forward" else both


def results_of(cell: Cell, function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    return call_of(cell, function, inputs)()


def bytes_of(cell: Cell, inputs: list[Tensor], results: list[Tensor]) -> int:
    """Inputs and cotangents read once by each pass that needs them, results written once."""

    def size(tensors: list[Tensor]) -> int:
        return sum(x.numel() * x.element_size() for x in tensors)

    if cell.work == "forward":
        return size(inputs) + size(results)
    outputs = results[: len(results) - len(inputs)]
    return 2 * size(inputs) + 2 * size(outputs) + size(results[len(outputs) :])


def inputs_of(cell: Cell, device: torch.device | str) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    tensors = (torch.randn(shape, generator=rng) for shape in layer_of(cell).sizes(cell.tokens, cell.width))
    return [x.to(device, DTYPES[cell.dtype]).requires_grad_() for x in tensors]


# ---- for the registry


def points(scale: Scale, work: str) -> list[Point]:
    tokens, width = (64, 256) if scale.quick else (8192, 4096) if scale.gpu else (2048, 1024)
    return [Point("layer", x.name, Cell(x.name, work, dtype, tokens, width)) for dtype in scale.dtypes for x in LAYERS]


def named_inputs(cell: Cell, device: torch.device) -> Tensors:
    return {str(number): x for number, x in enumerate(inputs_of(cell, device))}


def _prepared(which: Callable[[Layer], Callable[..., Any]]) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        call = call_of(cell, which(layer_of(cell)), list(inputs.values()))
        return lambda: {str(number): x for number, x in enumerate(call())}

    return prepare


def truth(cell: Cell, inputs: Tensors) -> Tensors:
    return _prepared(lambda layer: layer.plain)(
        cell, {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    )()


def errors(cell: Cell, results: Tensors, true: Tensors) -> dict[str, float]:
    """Results first, then gradients, each by its place."""
    return {name: relative_error(x.detach(), true[name]) for name, x in results.items()}


IMPLEMENTATIONS = (
    Implementation("ours", XLSTM_HIP, _prepared(lambda layer: layer.fused)),
    Implementation("plain torch", PLAIN, _prepared(lambda layer: layer.plain)),
)
