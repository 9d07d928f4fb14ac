# SPDX-License-Identifier: Apache-2.0
"""xLSTM-7B's architecture, on this package's kernels."""

from .config import xLSTMLargeConfig
from .xlstm_large import xLSTMLarge

__all__ = ["xLSTMLarge", "xLSTMLargeConfig"]
