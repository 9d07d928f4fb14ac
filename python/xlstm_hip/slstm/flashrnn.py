# SPDX-License-Identifier: Apache-2.0
"""FlashRNN's function by its signature, on this package's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core import checks
from .interface import FUNCTIONS, cell_sequence

BACKENDS = ("cuda_fused", "cuda", "triton_fused")  # FlashRNN's names of kernels; there is one here
_DTYPES = checks.by_name((torch.bfloat16, torch.float16, torch.float32))


def flashrnn(
    Wx: Tensor,  # (B, T, 4, NH, D), gates i, f, z, o
    R: Tensor,  # (4, NH, D, D)
    b: Tensor,  # (4, NH, D)
    states: Tensor | None = None,  # (states, B, 1, NH, D): h, c, and of the sLSTM n, m
    function: str = "lstm",
    config: None = None,
    backend: str = "cuda_fused",
    dtype: str = "bfloat16",
) -> tuple[Tensor, Tensor]:
    """FlashRNN's `flashrnn`: the states of all tokens (states, B, T, NH, D), and the last (states, B, 1, NH, D).

    function   "lstm" or "slstm"
    config     None: there is nothing to configure
    backend    "cuda_fused", "cuda" or "triton_fused": this package's kernels by each of these names
    dtype      "bfloat16", "float16" or "float32", in which inputs are read and h is kept; c, n and m are computed in
               float32. All states are returned in Wx's dtype, as FlashRNN returns them
    """
    checks.one_of("function", function, FUNCTIONS)
    checks.one_of("backend", backend, BACKENDS)
    checks.one_of("dtype", dtype, tuple(_DTYPES))
    if config is not None:
        raise ValueError(f"config: expected None, got {type(config).__name__}; function and dtype are arguments here")
    checks.has_rank("Wx", Wx, 5, "(B, T, 4, NH, D)")
    size = 2 if function == "lstm" else 4
    if states is not None:
        batch, _, _, heads, units = Wx.shape
        checks.has_shape("states", states, (size, batch, 1, heads, units), "(states, B, 1, NH, D)")
        states = states[:, :, 0].unbind(0)  # type: ignore[assignment]
    tokens, last = cell_sequence(Wx.to(_DTYPES[dtype]), R, b, states, function, "sigmoid", None, True)
    return torch.stack([s.to(Wx.dtype) for s in tokens]), torch.stack([s.to(Wx.dtype) for s in last])[:, :, None]
