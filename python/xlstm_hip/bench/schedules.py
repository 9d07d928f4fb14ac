# SPDX-License-Identifier: Apache-2.0
"""The schedule of the GPU's kernels: the one of the GPU at hand, or the one that every GPU has, AMD's too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SCHEDULE = "XLSTM_HIP_GPU_SCHEDULE"


@contextmanager
def common_schedule() -> Iterator[None]:
    """Calls inside run the kernels that every GPU has, also where the one at hand has kernels of its own."""
    before = os.environ.get(SCHEDULE)
    os.environ[SCHEDULE] = "common"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SCHEDULE]
        else:
            os.environ[SCHEDULE] = before
