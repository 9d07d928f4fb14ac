# SPDX-License-Identifier: Apache-2.0
"""`import xlstm_hip.compat` lets code that imports mlstm_kernels run on xlstm_hip, unchanged.

It puts modules under mlstm_kernels' names into sys.modules. They take precedence over an installed
mlstm_kernels that has not been imported yet, for the rest of the process: its Triton kernels are then out of
reach, and the Triton names mean the fused kernels. If the real one is imported already, importing this is an
ImportError. What is not offered (its Triton sources, benchmarks, JAX) stays an ImportError, so nothing is
half there.
"""

from __future__ import annotations

from .modules import install

install()
