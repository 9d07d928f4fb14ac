# SPDX-License-Identifier: Apache-2.0
"""`import xlstm_hip.compat` lets code that imports mlstm_kernels, xlstm.xlstm_large, flash_attn, flash_attn_interface,
flash_attn_3, flash_attention_amd or flash_mla run on xlstm_hip, unchanged.

It puts modules under their names into sys.modules. They take precedence over installed packages that have not
been imported yet, for the rest of the process: mlstm_kernels' Triton kernels are then out of reach, and the
Triton names mean the fused kernels. Only xlstm_large of an installed xlstm is replaced. If a real one is
imported already, importing this is an ImportError. Parts that are not offered (Triton sources, benchmarks, JAX, sLSTM,
flash_attn's modules and models) remain an ImportError, so no module is incomplete.
"""

from __future__ import annotations

from .modules import install

__all__: list[str] = []  # importing it is all

install()
