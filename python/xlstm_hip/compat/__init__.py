# SPDX-License-Identifier: Apache-2.0
"""`import xlstm_hip.compat` lets code that imports mlstm_kernels, flash_attn, flash_attention_amd or flash_mla run on
xlstm_hip, unchanged.

It puts modules under their names into sys.modules. They take precedence over an installed package that has not
been imported yet, for the rest of the process: the Triton kernels of mlstm_kernels are then out of reach, and the
Triton names mean the fused kernels. If the real one is imported already, importing this is an ImportError. What is
not offered (Triton sources, benchmarks, JAX, flash_attn's layers) stays an ImportError, so nothing is half there.
"""

from __future__ import annotations

from .modules import install

install()
