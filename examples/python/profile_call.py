# SPDX-License-Identifier: Apache-2.0
"""A call to profile: the mLSTM forward and backward, on the GPU where there is one. docs/profiling.md runs it under
profilers.

    python examples/python/profile_call.py [CALLS] [LENGTH]
"""

from __future__ import annotations

import sys

import torch

from xlstm_hip import mlstm_interface


def main(calls: int = 10, length: int = 1024) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads, dqk, dhv = 8, 128, 256
    q, k = (torch.randn(1, heads, length, dqk, dtype=torch.bfloat16, device=device) for _ in range(2))
    v = torch.randn(1, heads, length, dhv, dtype=torch.bfloat16, device=device)
    i, f = (torch.randn(1, heads, length, device=device) for _ in range(2))
    inputs = [x.requires_grad_() for x in (q, k, v, i, f + 3)]
    for _ in range(calls):
        h = mlstm_interface(*inputs)
        torch.autograd.grad(h.sum(), inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"{calls} calls of {length} tokens on {device}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
