# SPDX-License-Identifier: Apache-2.0
"""Memory that nobody wrote is NaN: what torch allocates for results and workspace, while `poisoned` lasts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch allocates is NaN, and bytes of workspace are 255, which is NaN in every dtype."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plain operations that are not deterministic
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            deterministic.fill_uninitialized_memory = fill
