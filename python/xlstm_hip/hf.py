# SPDX-License-Identifier: Apache-2.0
"""xLSTM models of Hugging Face transformers on this package's kernels."""

from .integrations.hf import accelerate, restore, status

__all__ = ["accelerate", "restore", "status"]


def __dir__() -> list[str]:
    return __all__
