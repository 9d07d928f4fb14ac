# SPDX-License-Identifier: Apache-2.0
"""Other projects' Triton kernels, which Triton compiles for gfx942 without a GPU (support/triton_peers.py), in the
interpreter against float64."""

from __future__ import annotations

import importlib.util
import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

from against_float64 import SCALE, check, check_attention, random
from support.reference import truth

pytestmark = pytest.mark.rows("ci")  # Triton is a download of hundreds of megabytes
# Threads that hold the same part of a tensor write it to LDS, each with the same bytes.
FOUND = {"lds-same-bytes"}


def plain_mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, eps: float) -> Tensor:
    """All pairs of tokens at once, products in the dtype of q."""
    sums = torch.nn.functional.logsigmoid(f).cumsum(-1)
    log_weights = sums[..., :, None] - sums[..., None, :] + i[..., None, :]
    seen = torch.ones(log_weights.shape[-2:], dtype=torch.bool).tril()
    log_weights = log_weights.masked_fill(~seen, -math.inf)
    top = log_weights.amax(-1, keepdim=True)
    weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) * (log_weights - top).exp().to(q.dtype)
    norm = weights.float().sum(-1, keepdim=True).abs().maximum((-top).exp()) + eps
    return (weights @ v) / norm.to(q.dtype)


@pytest.mark.parametrize("name", ["xl_chunk", "limit_chunk"])
def test_mlstm(peers: ModuleType, name: str) -> None:
    if importlib.util.find_spec("mlstm_kernels") is None:
        pytest.skip("mlstm_kernels is not installed")
    q, k, v = (random(1, 2, 256, dim, seed=s) for s, dim in ((1, 128), (2, 128), (3, 256)))
    i, f = random(1, 2, 256, seed=4).float(), 3 + random(1, 2, 256, seed=5).float()
    found = peers.call(name, {"q": q, "k": k, "v": v, "i": i, "f": f, "eps": 1e-6})
    exact, _ = truth(q, k, v, i, f, eps=1e-6)
    check({"h": found["h"]}, {"h": plain_mlstm(q, k, v, i, f, 1e-6)}, {"h": exact})
    assert found["checks"] <= FOUND


def test_attention(peers: ModuleType) -> None:
    """300 queries, and as many keys of half the heads."""
    q, k, v = (random(1, 300, heads, 128, seed=s) for s, heads in ((6, 4), (7, 2), (8, 2)))
    found = peers.call("attention", {"q": q, "k": k, "v": v, "scale": SCALE})
    check_attention([(q[0], k[0], v[0])], True, found["out"][0], found["lse"][0].T * math.log(2))
    assert found["checks"] <= FOUND


def plain_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """(H, S, D), the gates' logarithms (H, S): all pairs of tokens at once."""
    sums = g.cumsum(-1)
    seen = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool).tril()
    weights = (sums[..., :, None] - sums[..., None, :]).masked_fill(~seen, -math.inf).exp().to(q.dtype)
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 * weights) @ v


def test_simple_gla(peers: ModuleType) -> None:
    q, k, v = (random(1, 192, 2, 128, seed=s) for s in (9, 10, 11))
    g = torch.nn.functional.logsigmoid(3 + random(1, 192, 2, seed=12).float())
    found = peers.call("simple_gla", {"q": q, "k": k, "v": v, "g": g})
    heads = [x[0].transpose(0, 1) for x in (q, k, v)]
    plain, exact = plain_gla(*heads, g[0].T), plain_gla(*(x.double() for x in (*heads, g[0].T)))
    check({"out": found["out"][0].transpose(0, 1)}, {"out": plain}, {"out": exact})
    assert found["checks"] <= FOUND
