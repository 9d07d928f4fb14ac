# SPDX-License-Identifier: Apache-2.0
"""Tensors of the CPU as arrays that device.py hands to kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def array(x: Tensor) -> np.ndarray:
    """The tensor's memory; NumPy has no bfloat16."""
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
