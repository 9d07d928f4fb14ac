# SPDX-License-Identifier: Apache-2.0
"""The layers as cases: inputs, ours, and plain torch, which in float64 is the truth.

A layer may be twice as far from the truth as plain torch of the same dtype is on the same inputs, by norm and by
largest difference, for outputs and gradients; a floor of two roundings of the result covers plain torch that is exact
by luck. In float64 plain torch is the truth, and its roundings are as large as ours: sixteen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from xlstm_hip import layers
from xlstm_hip.reference import layers as plain

EPS = 1e-6
FLOOR, FLOOR_OF_FLOAT64 = 2, 16  # units of eps of the dtype
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    name: str
    fused: Callable[..., Any]
    plain: Callable[..., Any]
    shapes: tuple[Shape, ...]  # of the arguments that have gradients
    options: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0  # of the first argument
    wide: tuple[int, ...] = ()  # arguments that are float32 whatever the dtype
    gaps: tuple[int, ...] = ()  # arguments that are slices of something wider
    gap: tuple[int, int] = (8, 16)  # of it, before and after

    def __str__(self) -> str:
        return self.name

    def arguments(self, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
        rng = torch.Generator().manual_seed(len(self.name))
        tensors = []
        for index, shape in enumerate(self.shapes):
            x = torch.randn(shape, generator=rng, dtype=torch.float64) * (self.scale if index == 0 else 1)
            dtype_of_argument = torch.promote_types(dtype, torch.float32) if index in self.wide else dtype
            x = x.to(dtype_of_argument).to(device)
            if index in self.gaps:
                x = torch.nn.functional.pad(x, self.gap)[..., self.gap[0] : -self.gap[1]]
            tensors.append(x)
        return tensors


def _rms(shape: Shape, weight: bool = True, bias: bool = False, narrow: bool = False, **more: Any) -> Case:
    shapes = (shape, *((shape[-1],),) * (weight + bias))
    name = f"rms_norm {'x'.join(map(str, shape))}{', no weight' * (not weight)}{', bias' * bias}{more.pop('also', '')}"

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w=None, b=None: function(x, w, b, EPS, x.dtype if narrow else None)

    return Case(name, call(layers.rms_norm), call(plain.rms_norm), shapes, **more)


def _add(shape: Shape, bias: bool = False, narrow: bool = False, **more: Any) -> Case:
    name = f"add_rms_norm {'x'.join(map(str, shape))}{', bias' * bias}{more.pop('also', '')}"

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, w, b=None: function(x, y, w, b, EPS, y.dtype if narrow else None)

    return Case(
        name, call(layers.add_rms_norm), call(plain.add_rms_norm), (shape, shape, *((shape[-1],),) * (1 + bias)), **more
    )


def _head(
    shape: Shape, bias: bool = False, centred: bool = True, gate: bool = True, narrow: bool = False, **more: Any
) -> Case:
    *lead, heads, features = shape
    width = heads * features
    variant = f"{', bias' * bias}{', not centred' * (not centred)}{', no gate' * (not gate)}{more.pop('also', '')}"
    shapes = (shape, *((*lead, width),) * gate, (width,), *((width,),) * bias)

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(h: Tensor, *parameters: Tensor) -> Tensor:
            o, w, b = (*((None,) * (not gate)), *parameters, None)[:3]
            return function(h, o, w, b, EPS, centred, h.dtype if narrow else None)

        return run

    name = f"head_norm_gate {'x'.join(map(str, shape))}{variant}"
    return Case(name, call(layers.head_norm_gate), call(plain.head_norm_gate), shapes, **more)


def _cap(shape: Shape, cap: float, **more: Any) -> Case:
    name = f"soft_cap {'x'.join(map(str, shape))} at {cap:g}{more.pop('also', '')}"
    return Case(name, lambda x: layers.soft_cap(x, cap), lambda x: plain.soft_cap(x, cap), (shape,), **more)


def _swiglu(shape: Shape, fused: bool = False, **more: Any) -> Case:
    name = f"swiglu {'x'.join(map(str, shape))}{', fused' * fused}{more.pop('also', '')}"
    if fused:
        return Case(name, layers.swiglu_fused, plain.swiglu_fused, ((*shape[:-1], 2 * shape[-1]),), **more)
    return Case(name, layers.swiglu, plain.swiglu, (shape, shape), **more)


def targets_of(rows: int, classes: int, ignored: str) -> Tensor:
    targets = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(rows))
    if ignored == "some":
        targets[::3] = -100
    return targets


def _loss(
    rows: int, classes: int, cap: float | None = 30.0, reduction: str = "mean", ignored: str = "none", **more: Any
) -> Case:
    variant = f"{', cap ' + format(cap, 'g') if cap else ''}, {reduction}, {ignored} ignored{more.pop('also', '')}"
    in_place = more.pop("in_place", False)
    chosen = targets_of(rows, classes, ignored)

    def fused(logits: Tensor) -> Tensor:
        logits = logits * 1 if in_place else logits  # of its own, to be overwritten
        return layers.capped_cross_entropy(logits, chosen.to(logits.device), cap, -100, reduction, in_place)

    def reference(logits: Tensor) -> Tensor:
        return plain.capped_cross_entropy(logits, chosen.to(logits.device), cap, -100, reduction)

    name = f"cross_entropy {rows}x{classes}{variant}{', in place' * in_place}"
    return Case(name, fused, reference, ((rows, classes),), **{"scale": 8.0} | more)


CASES = (
    _rms((1, 3)),
    _rms((3, 7)),
    _rms((2, 5, 24), bias=True),
    _rms((1, 130), weight=False),
    _rms((33, 512)),
    _rms((4, 513), bias=True),
    _rms((70, 96), scale=300.0, also=", large"),
    _rms((3, 16, 64), gaps=(0,), also=", strided"),
    _rms((18, 40), wide=(1,), also=", float32 weight"),
    _rms((5, 4096)),
    _rms((9, 72), wide=(1,), narrow=True, also=", float32 weight, narrow"),
    _rms((2, 17001)),
    _add((2, 9, 64)),
    _add((3, 33), bias=True),
    _add((19, 1030)),
    _add((2, 8200)),
    _add((8, 48), wide=(0,), gaps=(1,), also=", float32 stream"),
    _add((7, 88), wide=(0, 2), narrow=True, also=", float32 stream, narrow"),
    _add((33, 1024), wide=(0, 2), narrow=True, also=", float32 stream, narrow"),
    _head((2, 3, 4, 32)),
    _head((1, 1, 1, 7), bias=True),
    _head((5, 2, 512)),
    _head((4, 3, 520), bias=True),
    _head((2, 1, 8712), bias=True),
    _head((2, 20, 3, 24), centred=False),
    _head((6, 4, 16), gate=False),
    _head((2, 5, 2, 40), gaps=(1,), wide=(2,), also=", mixed"),
    _head((40, 8, 64), scale=0.01, also=", small"),
    _head((3, 4, 2, 48), bias=True, wide=(2, 3), narrow=True, also=", float32 weight, narrow"),
    _head((5, 9, 4, 256), wide=(2,), narrow=True, also=", float32 weight, narrow"),
    _head((2, 3, 4, 56), centred=False, wide=(2,), narrow=True, also=", float32 weight, narrow"),
    _cap((3, 5), 15.0, scale=40.0),
    _cap((1, 7, 4), 0.5),
    _cap((2, 40, 8), 15.0, scale=15.0, gaps=(0,), also=", strided"),
    _cap((9, 5000), 30.0, scale=20.0),
    _cap((11, 24), 3.0, gaps=(0,), gap=(3, 2), also=", unaligned"),
    _swiglu((1, 1)),
    _swiglu((2, 9, 24), scale=6.0),
    _swiglu((7, 1003)),
    _swiglu((5, 64), fused=True),
    _swiglu((3, 2, 341), fused=True, scale=4.0),
    _swiglu((6, 40), gaps=(1,), gap=(1, 1), also=", unaligned"),
    _swiglu((4, 48), gaps=(0, 1), wide=(1,), also=", mixed"),
    _loss(1, 1),
    _loss(5, 7, cap=None),
    _loss(9, 256),
    _loss(17, 1000, ignored="some"),
    _loss(6, 515, reduction="sum", cap=2.0),
    _loss(7, 2050, reduction="none", ignored="some"),
    _loss(12, 640, in_place=True),
    _loss(5, 640, cap=100.0, scale=2.0),
    _loss(3, 9016),
)  # fmt: skip


def _random_like(outputs: list[Tensor]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=rng, dtype=torch.float64).to(x.device, x.dtype) for x in outputs]


def results(
    function: Callable[..., Any],
    inputs: list[Tensor],
    cotangents: Callable[[list[Tensor]], list[Tensor]] = _random_like,
) -> list[Tensor]:
    """Outputs, then gradients for these cotangents."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    outputs = list(out) if isinstance(out, tuple) else [out]
    return [x.detach() for x in outputs] + list(torch.autograd.grad(outputs, inputs, cotangents(outputs)))


def errors(actual: list[Tensor], truth: list[Tensor]) -> list[float]:
    """By norm, then by largest difference, of each quantity, relative to the truth's."""
    found = []
    for x, y in zip(actual, truth, strict=True):
        assert x.shape == y.shape, (x.shape, y.shape)
        x = x.to(y.device).double()
        for measure in (torch.linalg.vector_norm, lambda d: d.abs().max()):
            size = float(measure(y))
            found.append(float(measure(x - y)) / (size or 1.0))
    return found


def judge(case: Case, dtype: torch.dtype, actual: list[Tensor], device: str = "cpu") -> list[str]:
    """The faults, in words; the truth and plain torch are made on `device`."""
    inputs = case.arguments(dtype, device)
    reference = results(case.plain, inputs)
    truth = results(case.plain, [x.double() for x in inputs])
    problems = []
    for index, (x, y) in enumerate(zip(actual, reference, strict=True)):
        if x.dtype != y.dtype:
            problems.append(f"result {index}: {x.dtype}, plain torch {y.dtype}")
    allowed = errors(reference, truth)
    floor = torch.finfo(dtype).eps * (FLOOR_OF_FLOAT64 if dtype == torch.float64 else FLOOR)
    for number, (error, plain_error) in enumerate(zip(errors(actual, truth), allowed, strict=True)):
        tolerance = max(2 * plain_error, floor)
        if not error <= tolerance:
            problems.append(
                f"result {number // 2}, {('norm', 'max')[number % 2]}: error {error:.3g}, allowed {tolerance:.3g}"
            )
    return problems


def measure(case: Case, dtype: torch.dtype, device: str, truth_on: str) -> list[str]:
    """The same, and that a second run gives the same bits."""
    inputs = case.arguments(dtype, device)
    actual, again = (results(case.fused, inputs) for _ in range(2))
    problems = judge(case, dtype, actual, truth_on)
    return problems + [
        f"result {n}: other bits" for n, (x, y) in enumerate(zip(actual, again, strict=True)) if not x.equal(y)
    ]


INF, NAN = float("inf"), float("nan")
ROWS = ([0.0, -0.0, 1.0], [INF, 1.0, -1.0], [-INF, 1.0, 2.0], [NAN, 1.0, 2.0], [0.0, 0.0, 0.0], [-INF, -INF, -INF])


def not_finite(dtype: torch.dtype, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Ours of rows with zeros of both signs, infinities and NaN, and plain torch's on the CPU."""
    x = torch.tensor(ROWS, dtype=dtype)
    w, y = torch.tensor([1.0, -2.0, 0.5], dtype=dtype), torch.ones(len(ROWS), 3, dtype=dtype)
    heads, targets = x.unsqueeze(1), torch.arange(len(ROWS)) % 3
    to_x, to_w, to_y, to_heads, to_targets = (t.to(device) for t in (x, w, y, heads, targets))
    yield layers.rms_norm(to_x, to_w), plain.rms_norm(x, w, None, EPS)
    yield from zip(layers.add_rms_norm(to_x, to_y, to_w), plain.add_rms_norm(x, y, w, None, EPS), strict=True)
    for o in (x, y):
        want = plain.head_norm_gate(heads, o, w, None, EPS, True)
        yield layers.head_norm_gate(to_heads, o.to(device), to_w), want
    yield layers.soft_cap(to_x, 2.0), plain.soft_cap(x, 2.0)
    yield layers.swiglu(to_x, to_y), plain.swiglu(x, y)
    for cap in (None, 2.0):
        actual = layers.capped_cross_entropy(to_x, to_targets, cap, reduction="none")
        yield actual, plain.capped_cross_entropy(x, targets, cap, -100, "none")


MANY_ROWS = 320_000  # more than the largest GPU has groups at once, of so few features


def of_many_rows(dtype: torch.dtype, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Ours of the last of many rows, which groups of threads walk, and of these rows alone: the same bits."""
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(MANY_ROWS, 16, generator=rng).to(dtype).to(device) for _ in range(2))
    w, b = (torch.randn(16, generator=rng).to(dtype).to(device) for _ in range(2))
    targets = (torch.arange(MANY_ROWS) % 16).to(device)
    calls: tuple[Callable[[slice], Any], ...] = (
        lambda rows: layers.rms_norm(x[rows], w, b, EPS),
        lambda rows: layers.add_rms_norm(x[rows], y[rows], w, None, EPS),
        lambda rows: layers.head_norm_gate(x[rows].unflatten(-1, (2, 8)), y[rows], w, None, EPS, True),
        lambda rows: layers.capped_cross_entropy(x[rows], targets[rows], 2.0, reduction="none"),
    )
    last = 999
    for call in calls:
        many, few = call(slice(None)), call(slice(-last, None))
        pairs = zip(many, few, strict=True) if isinstance(many, tuple) else ((many, few),)
        yield from ((long[-last:], short) for long, short in pairs)
