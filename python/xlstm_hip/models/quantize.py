# SPDX-License-Identifier: Apache-2.0
"""8-bit and 4-bit weights of linear layers, in groups of features along a row, with a scale and optionally an offset.

A group's weights are scale * q + offset, where q is an integer or, with 8 bits and no offset, a float. Scale and offset
are chosen from a few candidates by least squared error, after rounding to the dtype in which they are stored.
csrc/include/xlstm_hip.h documents the layout (xlstm_linear). The decode engine reads these weights directly. So does a
layer, where there is a kernel for the rows of its input; otherwise its weights are dequantised and multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core.checks import gradient_needed, one_of
from .._core.environment import plain_torch_forced
from .._core.ops import OPS, devices_with_kernels
from .._core.progress import Progress

Model = TypeVar("Model", bound=nn.Module)  # xLSTMLarge, which imports this module

BITS, GROUP_SIZES = (8, 4), (32, 64, 128)
FLOAT8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e4m3fnuz": torch.float8_e4m3fnuz}
FORMATS = ("int", *FLOAT8)  # of q
SCALE_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BLOCK = 32  # nibbles that are packed together
SHRINKING = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76)  # of a group's range: what it cuts off, it makes the rest finer
PHASES = 8  # of an octave: scales of floats, whose levels repeat with each octave
SINGLE_NAMES = (
    "q", "k", "v", "ogate_preact", "igate_preact", "fgate_preact", "out_proj", "proj_up_gate", "proj_up", "proj_down",
    "lm_head",
)  # fmt: skip
GATES = ("igate_preact", "fgate_preact")  # a thousandth of the weights, and their results are exponents
STORED = ("qweight", "scales", "offsets")
MOST_CPU_ROWS = 64  # of x, which a CPU multiplies by quantised weights; a GPU's plan says for itself what it takes
_DEVICES = devices_with_kernels("quantized_linear")
FUSED_PARTS = {
    "qkv_opreact": ("q", "k", "v", "ogate_preact"),
    "ifgate_preact": GATES,
    "proj_up_gate_z": ("proj_up_gate", "proj_up"),
}


@torch.library.register_fake("xlstm_hip::quantized_linear")
def _(x, weight, scales, offsets=None, bias=None):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@dataclass(frozen=True)
class Scheme:
    """How a model's weights are stored. skip: layers that stay unquantised, by their names as single weights."""

    bits: int = 8
    group_size: int = 64
    symmetric: bool = True
    scale_dtype: str = "float16"
    skip: tuple[str, ...] = GATES
    format: str = "int"

    def __post_init__(self) -> None:
        for name in ("bits", "group_size"):
            if type(getattr(self, name)) is not int:
                raise TypeError(f"{name}: expected an int, got {getattr(self, name)!r}")
        one_of("bits", self.bits, BITS)
        one_of("group_size", self.group_size, GROUP_SIZES)
        one_of("symmetric", self.symmetric, (True, False))
        one_of("scale_dtype", self.scale_dtype, tuple(SCALE_DTYPES))
        for name in self.skip:
            one_of("skip", name, SINGLE_NAMES)
        one_of("format", self.format, FORMATS)
        if self.format in FLOAT8 and self.bits != 8:
            raise ValueError(f"bits: expected 8 with {self.format}, got {self.bits}")
        if self.format in FLOAT8 and not self.symmetric:
            raise ValueError(f"symmetric: expected True with {self.format}, which has no offsets, got False")

    @property
    def q_dtype(self) -> torch.dtype:
        """Of q in memory; nibbles are packed into bytes."""
        return FLOAT8.get(self.format, torch.int8 if self.bits == 8 else torch.uint8)

    @property
    def q_name(self) -> str:
        return self.format if self.format in FLOAT8 else f"int{self.bits}"

    @property
    def levels(self) -> tuple[int, int]:
        """The smallest and the largest q."""
        return (-128, 127) if self.bits == 8 else (0, 15)

    @property
    def zero(self) -> int:
        """The q that represents zero without offsets."""
        return 0 if self.bits == 8 else 8

    @property
    def fits_fused(self) -> bool:
        """Whether fused weights can use this scheme: each is either fully quantised or not at all."""
        return all(len({part in self.skip for part in parts}) == 1 for parts in FUSED_PARTS.values())

    def takes(self, name: str) -> bool:
        """Whether a layer of this name, single or fused, is quantised."""
        skipped = [part in self.skip for part in FUSED_PARTS.get(name, (name,))]
        if any(skipped) != all(skipped):
            raise ValueError(f"skip: expected all of {', '.join(FUSED_PARTS[name])} or none for fused weights")
        return not skipped[0]


class TensorError(NamedTuple):
    """The quantisation error of a weight."""

    name: str
    shape: tuple[int, int]
    relative: float  # the norm of the difference by that of the weight
    largest: float  # difference of any element
    bytes_before: int
    bytes_after: int


def count_weights(model: nn.Module) -> int:
    """The numbers that the model stands for: a quantised weight counts as if it were not."""
    packed = sum(part.in_features * part.out_features for part in model.modules() if isinstance(part, QuantizedLinear))
    return packed + sum(parameter.numel() for parameter in model.parameters())


class QuantizedLinear(nn.Module):
    """nn.Linear with a weight of a Scheme: qweight (rows, bytes), scales and offsets (rows, groups)."""

    qweight: Tensor
    scales: Tensor
    offsets: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        scheme: Scheme,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scheme = in_features, out_features, scheme
        groups = -(-in_features // scheme.group_size)
        packed = groups * scheme.group_size * scheme.bits // 8
        scale_dtype = SCALE_DTYPES[scheme.scale_dtype]
        self.register_buffer("qweight", torch.empty(out_features, packed, dtype=scheme.q_dtype, device=device))
        self.register_buffer("scales", torch.empty(out_features, groups, dtype=scale_dtype, device=device))
        offsets = None if scheme.symmetric else torch.empty(out_features, groups, dtype=scale_dtype, device=device)
        self.register_buffer("offsets", offsets)
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device)) if bias else None

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedLinear:
        """What moves or casts a module's tensors moves q, and never casts it: to _apply it is bytes."""
        self.qweight = self.qweight.view(torch.uint8)
        super()._apply(fn, recurse)
        self.qweight = self.qweight.view(self.scheme.q_dtype)
        return self

    @torch.no_grad()
    def take(self, weight: Tensor) -> None:
        """Quantises and stores a weight (rows, columns)."""
        for target, value in zip(
            (self.qweight, self.scales, self.offsets), _quantised(weight, self.scheme), strict=True
        ):
            if target is not None and value is not None:
                target.copy_(value)

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The dequantised weight (rows, columns): computed in float32 and rounded once, without a copy in float32."""
        rows, groups = self.scales.shape
        q = self.qweight if self.scheme.bits == 8 else unpacked(self.qweight)
        if q.is_floating_point():
            q = q.bfloat16()  # exact; torch multiplies no floats of 8 bits
        elif self.scheme.zero and self.offsets is None:
            q = q.view(torch.int8) - self.scheme.zero
        q, scales = q.view(rows, groups, -1), self.scales.float().unsqueeze(-1)
        weight = torch.empty(q.shape, dtype=dtype, device=q.device)
        if self.offsets is None:
            torch.mul(q, scales, out=weight)
        else:
            torch.addcmul(self.offsets.float().unsqueeze(-1), q, scales, out=weight)
        return weight.view(rows, -1)[:, : self.in_features]

    def has_kernel(self, x: Tensor) -> bool:
        """Whether x, of as many rows as it has, is multiplied by the weights as they lie in memory."""
        kind, rows = x.device.type, x.numel() // self.in_features
        if kind not in _DEVICES or rows == 0 or x.dtype == torch.float64 or plain_torch_forced():
            return False
        if kind == "cpu":
            return rows <= MOST_CPU_ROWS
        return x.dtype == torch.bfloat16 and OPS.quantized_linear_takes(x, *self.stored(), self.bias)

    def takes(self, rows: int, dtype: torch.dtype) -> bool:
        """has_kernel for so many rows."""
        return self.has_kernel(self.scales.new_empty((rows, self.in_features), dtype=dtype))

    def stored(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.qweight, self.scales, self.offsets

    def forward(self, x: Tensor) -> Tensor:
        traced = torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)
        if not traced and not gradient_needed(x, self.bias) and self.has_kernel(x):
            return OPS.quantized_linear(x, *self.stored(), self.bias)
        return F.linear(x, self.widened(x.dtype), self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.scheme}"


def packed(q: Tensor) -> Tensor:
    """Packs q (rows, columns), 0 to 15, into (rows, columns / 2) bytes: 32 columns in 16 bytes."""
    low, high = q.view(q.shape[0], -1, 2, BLOCK // 2).unbind(2)
    return (low | high << 4).reshape(q.shape[0], -1)


def unpacked(bytes_: Tensor) -> Tensor:
    blocks = bytes_.view(bytes_.shape[0], -1, BLOCK // 2)
    return torch.stack((blocks & 15, blocks >> 4), 2).reshape(bytes_.shape[0], -1)


def _quantised(weight: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor, Tensor | None]:
    """qweight, scales and offsets of a weight (rows, columns)."""
    rows, columns = weight.shape
    filled = F.pad(weight.float(), (0, -columns % scheme.group_size))
    groups = filled.view(rows, -1, scheme.group_size)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    least = torch.full(groups.shape[:2], torch.inf, device=weight.device)
    for scale, offset in _candidates(groups, scheme):
        q = _levels_of(groups, scale, offset, scheme)
        error = (q * scale.unsqueeze(-1) + offset.unsqueeze(-1) - groups).square().sum(-1)
        better = error < least
        least = torch.where(better, error, least)
        candidate = (q, scale, offset)
        best = candidate if best is None else tuple(_chosen(better, a, b) for a, b in zip(candidate, best, strict=True))  # type: ignore[assignment]
    assert best is not None
    q, scale, offset = best
    dtype = SCALE_DTYPES[scheme.scale_dtype]
    q = q.view(rows, -1)
    qweight = packed(q.to(torch.uint8)) if scheme.bits == 4 else q.to(scheme.q_dtype)
    return qweight, scale.to(dtype), None if scheme.symmetric else offset.to(dtype)


def _chosen(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better if new.dim() == better.dim() else better.unsqueeze(-1), new, old)


def _levels_of(groups: Tensor, scale: Tensor, offset: Tensor, scheme: Scheme) -> Tensor:
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    scaled = (groups - offset.unsqueeze(-1)) / safe.unsqueeze(-1)
    if scheme.format in FLOAT8:
        largest = torch.finfo(scheme.q_dtype).max
        return scaled.clamp(-largest, largest).to(scheme.q_dtype).float()
    return scaled.round().clamp(*scheme.levels)


def _candidates(groups: Tensor, scheme: Scheme) -> list[tuple[Tensor, Tensor]]:
    """Candidate scales and offsets, rounded to the dtype in which they are stored."""
    dtype = SCALE_DTYPES[scheme.scale_dtype]

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).float()

    least, greatest = scheme.levels
    found = []
    if scheme.format in FLOAT8:
        furthest = groups.abs().amax(-1)
        for phase in range(PHASES):
            scale = rounded(2 ** (phase / PHASES) * furthest / torch.finfo(scheme.q_dtype).max)
            found.append((scale, torch.zeros_like(scale)))
    elif scheme.symmetric:
        # The level furthest from zero is on one side: the weight furthest from zero is put there, by the scale's sign.
        at = groups.abs().argmax(-1, keepdim=True)
        furthest = groups.gather(-1, at).squeeze(-1)
        for share in SHRINKING:
            scale = rounded(share * furthest / (least - scheme.zero))
            found.append((scale, rounded(-scheme.zero * scale)))
    else:
        low, high = groups.amin(-1), groups.amax(-1)
        for share in SHRINKING:
            scale = rounded((high - low) * share / (greatest - least))
            middle = (low + high) / 2
            found.append((scale, rounded(middle - scale * (greatest + least) / 2)))
    return found


# ---- models


def quantizable(model: nn.Module, scheme: Scheme) -> list[tuple[str, nn.Linear]]:
    found = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
    return [(name, layer) for name, layer in found if scheme.takes(name.rpartition(".")[2])]


def replaced(model: nn.Module, name: str, layer: nn.Linear, scheme: Scheme) -> QuantizedLinear:
    """Replaces a layer by an empty QuantizedLinear."""
    weight = layer.weight
    quantized = QuantizedLinear(
        layer.in_features, layer.out_features, layer.bias is not None, scheme, weight.dtype, weight.device
    )
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, quantized)
    return quantized


def quantize(
    model: Model,
    bits: int = 8,
    group_size: int = 64,
    *,
    symmetric: bool | None = None,
    scale_dtype: str = "float16",
    skip: tuple[str, ...] = GATES,
    format: str = "int",
    progress: bool = True,
) -> tuple[Model, list[TensorError]]:
    """Quantises the linear layers of an xLSTMLarge in place, one at a time. Returns the model and each weight's error.

    bits, group_size    8 or 4 bits per weight; 32, 64 or 128 weights of a row share a scale
    symmetric           without offsets; default: True for 8 bits, False for 4 bits
    scale_dtype         of scales and offsets
    skip                layers that stay unquantised, by their names as single weights
    format              int; of 8 bits also float8_e4m3fn (OCP) or float8_e4m3fnuz, which an MI300X converts
    """
    if model.quantization is not None:
        raise ValueError(f"model: expected one that is not quantised, got one of {model.quantization}")
    scheme = Scheme(bits, group_size, bits == 8 if symmetric is None else symmetric, scale_dtype, tuple(skip), format)
    layers = quantizable(model, scheme)
    for name, layer in layers:  # before any is replaced
        if not bool(layer.weight.isfinite().all()):
            raise ValueError(f"{name}.weight: expected finite numbers, got NaN or infinity")
    errors = []
    with Progress("quantising", len(layers), "weights", enabled=progress) as bar:
        for name, layer in layers:
            weight = layer.weight.detach()
            quantized = replaced(model, name, layer, scheme)
            quantized.take(weight)
            if layer.bias is not None:
                quantized.bias = layer.bias
            errors.append(_error_of(name, weight, quantized))
            bar.advance()
    model.quantization = scheme
    return model, errors


def _error_of(name: str, weight: Tensor, quantized: QuantizedLinear) -> TensorError:
    difference = quantized.widened(torch.float32) - weight.float()
    stored = [x for x in (quantized.qweight, quantized.scales, quantized.offsets) if x is not None]
    norm = float(weight.float().norm())
    return TensorError(
        name,
        (weight.shape[0], weight.shape[1]),
        float(difference.norm()) / (norm or 1.0),
        float(difference.abs().max()),
        weight.numel() * weight.element_size(),
        sum(x.numel() * x.element_size() for x in stored),
    )
