# SPDX-License-Identifier: Apache-2.0
"""Loads the op library. A kernel for Hugging Face's hub has another file of this name (scripts/hub_kernel.py)."""

from __future__ import annotations

from pathlib import Path

import torch

LIBRARY = Path(__file__).with_name("_xlstm_hip_ops.so")
if not LIBRARY.exists():
    raise ImportError(
        f"{LIBRARY.name} is missing beside {__file__}: build the package with `pip install .` in its source tree"
    )
torch.ops.load_library(str(LIBRARY))
ops = torch.ops.xlstm_hip


def add_op_namespace_prefix(name: str) -> str:
    return f"xlstm_hip::{name}"
