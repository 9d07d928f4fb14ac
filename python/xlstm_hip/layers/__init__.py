# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM, one function each."""

from .functional import (
    add_rms_norm,
    capped_cross_entropy,
    head_norm_gate,
    rms_norm,
    soft_cap,
    swiglu,
    swiglu_fused,
)

__all__ = [
    "add_rms_norm",
    "capped_cross_entropy",
    "head_norm_gate",
    "rms_norm",
    "soft_cap",
    "swiglu",
    "swiglu_fused",
]


def __dir__() -> list[str]:
    return __all__
