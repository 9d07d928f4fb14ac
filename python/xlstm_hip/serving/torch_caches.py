# SPDX-License-Identifier: Apache-2.0
"""torch's own memory on a CPU, in a process that answers prompts of all lengths."""

from __future__ import annotations

import os

MOST = "128"
CAPACITIES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")


def bound_torch_caches() -> None:
    """torch's products in two-byte types keep a kernel for each number of rows and each weight: 1024 of them in two
    places, a gigabyte after some hundred prompts. To be called before the first product; what the environment says
    already, stays.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, MOST)
