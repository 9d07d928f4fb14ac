# SPDX-License-Identifier: Apache-2.0
"""The op of quantised linear layers beside the same weights in float64, on each device that there is; which calls the
layers give it; what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from xlstm_hip._core.ops import OPS
from xlstm_hip.models import quantize as quantize_module
from xlstm_hip.models.quantize import MOST_CPU_ROWS, QuantizedLinear, Scheme

SCHEMES = {
    "int8": Scheme(8),
    "int8, offsets": Scheme(8, symmetric=False),
    "int4": Scheme(4, symmetric=False),
    "int4, no offsets": Scheme(4),
    "int4, groups of 128, bfloat16 scales": Scheme(4, 128, False, "bfloat16"),
    "float8_e4m3fn": Scheme(8, format="float8_e4m3fn"),
    "float8_e4m3fnuz": Scheme(8, format="float8_e4m3fnuz"),
}
HAS_HOPPER = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0)
ON_GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_HOPPER, reason="no Hopper GPU that torch can use")]
)
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}


def layer_of(scheme: Scheme, columns: int, features: int, bias: bool, dtype: torch.dtype) -> QuantizedLinear:
    generator = torch.Generator().manual_seed(columns)
    layer = QuantizedLinear(columns, features, bias, scheme, dtype)
    layer.take(torch.randn(features, columns, generator=generator))
    if layer.bias is not None:
        layer.bias.data = torch.randn(features, generator=generator).to(dtype)
    return layer


def call(layer: QuantizedLinear, x: Tensor) -> Tensor:
    return OPS.quantized_linear(x, *layer.stored(), layer.bias)


@torch.no_grad()
def check(layer: QuantizedLinear, x: Tensor, y: Tensor) -> None:
    """y is off by its own rounding and by float sums of the products, 2^-21 of all their sizes, at most."""
    weight, exact = layer.widened(torch.float64).cpu(), x.double().cpu()
    bias = None if layer.bias is None else layer.bias.double().cpu()
    true = F.linear(exact, weight, bias)
    sizes = F.linear(exact.abs(), weight.abs(), None if bias is None else bias.abs())
    allowed = ROUNDING[x.dtype] * true.abs() + 2**-21 * sizes
    assert y.shape == true.shape and y.dtype == x.dtype
    assert bool(((y.double().cpu() - true).abs() <= allowed).all())


@torch.no_grad()
def check_beside_widened(layer: QuantizedLinear, x: Tensor, y: Tensor) -> None:
    """y is off by twice what the product of dequantised weights in x's dtype is off by, at most."""
    bias = None if layer.bias is None else layer.bias.double()
    true = F.linear(x.double(), layer.widened(torch.float64), bias)
    plain = F.linear(x, layer.widened(x.dtype), layer.bias)
    assert y.shape == true.shape and y.dtype == x.dtype
    assert float((y - true).norm()) <= 2 * float((plain - true).norm())
    assert float((y - true).abs().max()) <= 2 * float((plain - true).abs().max())


@pytest.mark.parametrize("rows", [1, 2, 9, 16, 31, 64, 100, 200, 256])
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_error(device: str, scheme: Scheme, rows: int) -> None:
    for columns, features, bias in ((1088, 270, False), (136, 33, True)):
        layer = layer_of(scheme, columns, features, bias, torch.bfloat16).to(device)
        x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).bfloat16().to(device)
        assert OPS.quantized_linear_takes(x, *layer.stored(), layer.bias)
        rounds_weights = device == "cuda" and rows > 32  # csrc/engine/linear/linear_hopper.h
        (check_beside_widened if rounds_weights else check)(layer, x, call(layer, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_error_of_other_calls_on_a_cpu(group_size: int, dtype: torch.dtype) -> None:
    layer = layer_of(Scheme(4, group_size, False, "float32"), 200, 37, True, dtype)
    x = torch.randn(3, 2, 400, generator=torch.Generator().manual_seed(5)).to(dtype)[..., :200]  # rows with gaps
    check(layer, x, call(layer, x))


def test_which_calls_the_op_has(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(Scheme(8), 128, 32, True, torch.float32)
    calls: list[int] = []
    monkeypatch.setattr(QuantizedLinear, "widened", lambda self, dtype: calls.append(0) or torch.zeros(32, 128))

    def widens(x: Tensor) -> bool:
        calls.clear()
        layer(x)
        return bool(calls)

    x = torch.randn(MOST_CPU_ROWS + 1, 128)
    assert widens(x) and widens(x[:0]) and widens(x[:4])  # too many rows; none; the bias wants a gradient
    with torch.no_grad():
        assert not widens(x[:MOST_CPU_ROWS]) and not widens(x[:4].view(2, 2, 128))
        monkeypatch.setattr(quantize_module, "plain_torch_forced", lambda: True)
        assert widens(x[:4])


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_HOPPER, reason="no Hopper GPU that torch can use")
def test_what_a_gpu_takes() -> None:
    def takes(scheme: Scheme, rows: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return layer_of(scheme, 256, 64, False, dtype).cuda().takes(rows, dtype)

    assert takes(Scheme(8), 256) and not takes(Scheme(8), 257)
    assert not takes(Scheme(8, 32), 16) and not takes(Scheme(8, scale_dtype="float32"), 16)
    assert not takes(Scheme(8), 16, torch.float16)


def test_errors() -> None:
    layer = layer_of(Scheme(4, symmetric=False), 128, 32, False, torch.bfloat16)
    x = torch.zeros(2, 128, dtype=torch.bfloat16)
    q, scales, offsets = layer.stored()
    assert offsets is not None
    for arguments, message in (
        ((x[:, :64], q, scales, offsets), "weight: expected the groups of 64 columns"),
        ((x, q, scales[:3], offsets), "expected shape"),
        ((x, q, scales, offsets.float()), "weight: expected offsets of scales' dtype"),
        ((x, q.short(), scales, offsets), "weight: expected int8, uint8, float8_e4m3fn or float8_e4m3fnuz"),
        ((x, q, scales, offsets, torch.zeros(3)), "expected shape"),
        ((x[:0], q, scales, offsets), "rows: expected >= 1, got 0"),
        ((x.double(), q, scales, offsets), "x: expected float32, bfloat16 or float16"),
    ):
        with pytest.raises(RuntimeError, match=message):
            OPS.quantized_linear(*arguments)


def test_schema() -> None:
    layer = layer_of(Scheme(8), 128, 32, True, torch.bfloat16)
    x = torch.randn(4, 128).bfloat16()
    arguments = (x, *layer.stored(), None)
    torch.library.opcheck(OPS.quantized_linear, arguments, test_utils=("test_schema", "test_faketensor"))
