# SPDX-License-Identifier: Apache-2.0
"""The index tensors of attention's calls, which the library's ops and their plain-torch twins take alike."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Places(NamedTuple):
    """Which tokens are whose: int32 tensors, or None."""

    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_k: Tensor | None = None
    leftpad_k: Tensor | None = None


class Pages(NamedTuple):
    block_table: Tensor | None = None
    cache_batch_idx: Tensor | None = None
