# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 and 4 bits."""

from .models.quantize import QuantizedLinear, quantize

__all__ = ["QuantizedLinear", "quantize"]


def __dir__() -> list[str]:
    return __all__
