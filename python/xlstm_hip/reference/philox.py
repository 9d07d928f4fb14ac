# SPDX-License-Identifier: Apache-2.0
"""Random numbers from a seed and a counter in plain torch: Philox 4x32-10, as csrc/base/philox.h has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOW = 0xFFFFFFFF


def philox(counter: Sequence[Tensor], seed: int | Tensor) -> list[Tensor]:
    """Four words of 32 bits, in int64, for each counter of four; the seed has 64."""
    words = list(counter)
    key = [seed & LOW, seed >> 32 & LOW]
    for _ in range(10):
        a, b = _multiply(0xD2511F53, words[0]), _multiply(0xCD9E8D57, words[2])
        words = [b[0] ^ words[1] ^ key[0], b[1], a[0] ^ words[3] ^ key[1], a[1]]
        key = [(key[0] + 0x9E3779B9) & LOW, (key[1] + 0xBB67AE85) & LOW]
    return words


def _multiply(constant: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of constant * x, x below 2**32, in int64 that must not overflow."""
    low = (x & 0xFFFF) * constant
    high = (x >> 16) * constant + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def uniform(seeds: Tensor, numbers: Tensor) -> Tensor:
    """Seeds and numbers of draws, int64 of one shape -> float64 in [0, 1), the first 53 bits of Philox.

    csrc/engine/sampling/sampling.h defines the same number.
    """
    zero = torch.zeros_like(numbers)
    first, second, _, _ = philox([numbers & LOW, numbers >> 32 & LOW, zero, zero], seeds)
    return (second * 2**21 + (first >> 11)).double() * 2.0**-53
