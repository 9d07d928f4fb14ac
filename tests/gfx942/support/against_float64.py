# SPDX-License-Identifier: Apache-2.0
"""Kernels of others against float64: an error may be twice that of plain torch in the same dtype, same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from support.attention.truth import Rules, attention
from support.reference import relative_error

BF16 = torch.bfloat16
DIM = 128
SCALE = DIM**-0.5


def complaints(device: ModuleType, accepted: Collection[str], call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """What the call gives where every check is a warning, and those that complain beside what is accepted."""
    with device.warn("all") as warnings:
        result = call()
    return result, {w.check for w in warnings} - set(accepted)


def allowed(plain: Tensor, exact: Tensor) -> float:
    """Twice plain torch's error; a float has two roundings in any case."""
    floor = 2 * torch.finfo(plain.dtype).eps if plain.dtype == torch.float32 else 0.0
    return max(2 * relative_error(plain, exact), floor)


def check(got: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    errors = {name: (relative_error(got[name], exact[name]), allowed(plain[name], exact[name])) for name in got}
    text = ", ".join(f"{name} {error:.2e} of {most:.2e}" for name, (error, most) in errors.items())
    print(text)
    assert all(error <= most for error, most in errors.values()), text


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


# ---- attention of head dim DIM


def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """(S, H, D): the output in the inputs' dtype; lse in float32, which it is stored in."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1] if causal else k.shape[1])
    scores = (SCALE * (q @ k.transpose(1, 2))).masked_fill(~seen, -math.inf)
    wide = (SCALE * (q.float() @ k.float().transpose(1, 2))).masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1), wide.logsumexp(-1)


def check_attention(
    sequences: Sequence[tuple[Tensor, Tensor, Tensor]], causal: bool, out: Tensor, lse: Tensor | None = None
) -> None:
    """out (tokens, H, D), lse (H, tokens), of all sequences one behind the other."""
    exact = attention([tuple(x.double() for x in s) for s in sequences], Rules(SCALE, causal))
    plain = [plain_attention(*s, causal) for s in sequences]
    check(
        {"out": out} | ({} if lse is None else {"lse": lse}),
        {"out": torch.cat([x[0] for x in plain]), "lse": torch.cat([x[1] for x in plain], -1)},
        {"out": torch.cat([x[0] for x in exact]), "lse": torch.cat([x[1] for x in exact], -1)},
    )
