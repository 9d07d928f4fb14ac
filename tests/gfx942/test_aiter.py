# SPDX-License-Identifier: Apache-2.0
"""AMD's own kernels (AITER's code objects, unchanged) in the interpreter, against float64: that it executes what nobody
of this project wrote, and what its checks say of it. An error may be twice that of plain torch in the same dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

import wheels
from against_float64 import BF16, DIM, SCALE, check, check_attention, complaints, random
from support.representative import marked

ROUNDINGS = ("rtne", "rtna", "rtz")  # to bfloat16: to nearest even, to nearest and away from zero, towards zero


@pytest.fixture(scope="module")
def aiter(device: ModuleType) -> ModuleType:
    import aiter

    try:
        aiter.ensure_code()
    except wheels.NotDownloaded as error:
        pytest.skip(f"AITER's wheel cannot be downloaded: {error}")
    return aiter


# ---- attention forward


@dataclass(frozen=True)
class Shape:
    """Of attention: sequences, heads of queries and of keys, tokens of queries and of keys."""

    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    queries: int = 512
    keys: int = 512

    def __str__(self) -> str:
        return f"{self.batch}x{self.queries}x{self.keys}-{self.heads}:{self.heads_kv}"


SHAPES = [
    Shape(queries=64, keys=64),
    Shape(queries=300, keys=300),
    Shape(queries=512, keys=512),
    Shape(queries=1000, keys=1000),
    Shape(2, 8, 2, 300, 300),
    Shape(1, 2, 1, 1024, 1024),
    Shape(queries=300, keys=600),
]
FORWARD = [
    (rounding, causal, shape)
    for rounding in ROUNDINGS
    for causal in (False, True)
    for shape in SHAPES
    if not (causal and shape.queries != shape.keys)
]


def named(rounding: str, causal: bool) -> str:
    return "_".join(x for x in ("causal" if causal else "", rounding) if x)


@pytest.mark.parametrize(
    "rounding, causal, shape",
    marked(
        FORWARD,
        lambda row: {"kernel": row[:2], "shape": row[2]},
        lambda row: f"{named(*row[:2])}-{row[2]}",
        pairs_of=(),
    ),
)
def test_forward(device: ModuleType, aiter: ModuleType, rounding: str, causal: bool, shape: Shape) -> None:
    q = random(shape.batch, shape.queries, shape.heads, DIM, seed=1)
    k, v = (random(shape.batch, shape.keys, shape.heads_kv, DIM, seed=s) for s in (2, 3))
    call = lambda: aiter.forward(named(rounding, causal), q, k, v, SCALE)  # noqa: E731
    (out, lse), found = complaints(device, aiter.BY_HAND, call)
    check_attention(list(zip(q, k, v, strict=True)), causal, out.flatten(0, 1), torch.cat(list(lse), -1))
    assert not found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_forward_of_a_group(device: ModuleType, aiter: ModuleType, rounding: str, causal: bool) -> None:
    """Sequences of several lengths in one launch."""
    lengths = (300, 40, 512)
    starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    q, k, v = (random(starts[-1], heads, DIM, seed=s) for s, heads in ((4, 2), (5, 1), (6, 1)))
    call = lambda: aiter.forward_of_group(named(rounding, causal), q, k, v, starts, SCALE)  # noqa: E731
    (out, lse), found = complaints(device, aiter.BY_HAND, call)
    check_attention([tuple(x.split(lengths)[n] for x in (q, k, v)) for n in range(len(lengths))], causal, out, lse)
    assert not found


def test_a_wrong_result_fails(device: ModuleType, aiter: ModuleType) -> None:
    q, k, v = (random(1, 64, 1, DIM, seed=s) for s in (1, 2, 3))
    for scale in (SCALE, 1.02 * SCALE):
        (out, lse), _ = complaints(device, aiter.BY_HAND, lambda s=scale: aiter.forward("rtne", q, k, v, s))
        compare = lambda: check_attention([(q[0], k[0], v[0])], False, out[0], lse[0])  # noqa: B023, E731
        if scale == SCALE:
            compare()
        else:
            with pytest.raises(AssertionError, match="out .* of .*, lse"):
                compare()


def test_by_default_it_stops(device: ModuleType, aiter: ModuleType) -> None:
    q, k, v = (random(1, 64, 1, DIM, seed=s) for s in (1, 2, 3))
    with pytest.raises(device.HipError, match="check ieee-mode"):
        aiter.forward("rtne", q, k, v, SCALE)
    with device.warn("ieee-mode", "buffer-offset"), pytest.raises(device.Fault, match="check divergent-barrier"):
        aiter.forward("rtne", q, k, v, SCALE)


# ---- attention backward


def gradients(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, causal: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(B, S, H, D), as many heads of keys as of queries: out, lse (B, H, S), and the gradients, by plain torch."""
    q, k, v = (x.to(dtype).transpose(1, 2).requires_grad_() for x in (q, k, v))
    scores = SCALE * (q @ k.transpose(2, 3))
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    out = scores.softmax(-1) @ v
    found = torch.autograd.grad(out, (q, k, v), d_out.to(dtype).transpose(1, 2))
    named = {name: x.transpose(1, 2) for name, x in zip(("dq", "dk", "dv"), found, strict=True)}
    return out.detach().transpose(1, 2), scores.detach().logsumexp(-1), named


# dq is added up in bfloat16 (a16) or in float32 (a32); "any" has float32, too, and sequences of any length.
BACKWARD = [
    (accumulator, rounding, causal, Shape(1, heads, heads, tokens, tokens))
    for accumulator, tokens_and_heads in (
        ("a16", ((384, 1), (768, 2))),
        ("a32", ((384, 1), (768, 2))),
        ("any", ((300, 2),)),
    )
    for rounding in ROUNDINGS
    for causal in (False, True)
    for tokens, heads in tokens_and_heads
]


@pytest.mark.parametrize(
    "accumulator, rounding, causal, shape",
    marked(
        BACKWARD,
        lambda row: {"accumulator": row[0], "rounding": row[1], "causal": row[2]},
        lambda row: f"{row[0]}-{named(row[1], row[2])}-{row[3]}",
        pairs_of=("accumulator", "causal"),
        slow=lambda row: row[3].queries > 384,
    ),
)
def test_backward(
    device: ModuleType, aiter: ModuleType, accumulator: str, rounding: str, causal: bool, shape: Shape
) -> None:
    q, k, v, d_out = (random(shape.batch, shape.queries, shape.heads, DIM, seed=s) for s in (7, 8, 9, 10))
    out, lse, exact = gradients(q, k, v, d_out, causal, torch.float64)
    _, _, plain = gradients(q, k, v, d_out, causal, BF16)
    delta = (out * d_out.double()).sum(-1).transpose(1, 2).float().contiguous()
    call = lambda: aiter.backward(accumulator, rounding, causal, q, k, v, d_out, lse.float(), delta, SCALE)  # noqa: E731
    found, complained = complaints(device, aiter.BY_HAND, call)
    check(dict(zip(exact, found, strict=True)), plain, exact)
    assert complained == ({"lds-same-bytes"} if accumulator == "any" else {"lds-wait", "lds-same-bytes"})


# ---- decoding of MLA


FP8 = torch.float8_e4m3fnuz


def plain_mla(q: Tensor, kv: Tensor, scale: float, weights: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """q (H, 576), the latents of one sequence (keys, 576) -> out (H, 512), lse (H). weights: the dtype that
    e^(score - the largest) is rounded to before the product with values."""
    scores = scale * (q @ kv.T)
    lse = scores.logsumexp(-1)
    if weights is None:
        return scores.softmax(-1) @ kv[:, :512], lse
    largest = scores.amax(-1, keepdim=True)
    rounded = (scores - largest).exp().to(weights).to(q.dtype)
    return rounded @ kv[:, :512] * (largest - lse[:, None]).exp(), lse


MLA = [
    (heads, dtype, lengths, splits)
    for heads, dtype in ((16, BF16), (128, BF16), (128, FP8))
    for lengths, splits in (((64,), 1), ((200,), 1), ((1000, 777), 3))
]
MLA_COMPLAINTS = {(16, BF16): {"lds-wait"}, (128, BF16): {"wait"}, (128, FP8): {"wait", "lds-wait"}}


@pytest.mark.parametrize(
    "heads, dtype, lengths, splits",
    marked(
        MLA,
        lambda row: {"kernel": row[:2], "lengths": row[2]},
        lambda row: f"{row[0]}-{str(row[1])[6:]}-{'-'.join(map(str, row[2]))}-{row[3]}",
        pairs_of=(),
    ),
)
def test_mla(
    device: ModuleType, aiter: ModuleType, heads: int, dtype: torch.dtype, lengths: tuple[int, ...], splits: int
) -> None:
    scale, total = 192**-0.5, sum(lengths)
    q = random(len(lengths), heads, 576, seed=11).to(dtype)
    kv = random(total + 5, 1, 1, 576, seed=12).to(dtype)
    pages = torch.randperm(total + 5, generator=torch.Generator().manual_seed(13))[:total].int()
    call = lambda: aiter.mla_decode(q, kv, pages, lengths, splits, scale)  # noqa: E731
    (parts, lse), complained = complaints(device, aiter.BY_HAND, call)
    latents = kv[pages.long(), 0, 0].split(lengths)

    def plain(wide: torch.dtype, weights: torch.dtype | None = None) -> list[tuple[Tensor, Tensor]]:
        return [plain_mla(q[n].to(wide), x.to(wide), scale, weights) for n, x in enumerate(latents)]

    exact, wide = plain(torch.float64), plain(torch.float32)
    same = plain(BF16) if dtype == BF16 else plain(torch.float32, FP8)
    got = {"out": parts[:, 0]}
    if lse is not None:
        got = {"out": (lse.double().softmax(1)[..., None] * parts).sum(1), "lse": lse.double().logsumexp(1)}
    check(
        got,
        {"out": torch.stack([x[0] for x in same]), "lse": torch.stack([x[1] for x in wide])},
        {"out": torch.stack([x[0] for x in exact]), "lse": torch.stack([x[1] for x in exact])},
    )
    assert complained == MLA_COMPLAINTS[heads, dtype]


# ---- others

GEMM = [(rows, *size) for rows in (32, 48, 64, 96) for size in ((64, 128, 512, 1), (100, 192, 1024, 2))]


@pytest.mark.parametrize(
    "rows, m, n, k, splits",
    marked(GEMM, lambda row: {"rows": row[0], "size": row[1:]}, lambda row: "-".join(map(str, row)), pairs_of=()),
)
def test_gemm(device: ModuleType, aiter: ModuleType, rows: int, m: int, n: int, k: int, splits: int) -> None:
    a, b = random(m, k, seed=14), random(n, k, seed=15)
    got, complained = complaints(device, aiter.BY_HAND, lambda: aiter.gemm(rows, a, b, splits))
    check({"out": got}, {"out": a.float() @ b.float().T}, {"out": a.double() @ b.double().T})
    assert not complained


def truncated(x: Tensor) -> Tensor:
    """To bfloat16, towards zero."""
    return (x.float().view(torch.int32) & -65536).view(torch.float32).to(BF16)


def test_layer_norm(device: ModuleType, aiter: ModuleType) -> None:
    """Two rows share LDS, with a barrier too few: the first one of each two depends on the order of the waves. Where
    both are equal it does not."""
    norm = torch.nn.functional.layer_norm
    weight, bias = random(8192, seed=18), random(8192, seed=19)
    for equal in (False, True):
        x, residual = (random(2, 2, 8192, seed=s) for s in (16, 17))
        if equal:
            x[:, 0], residual[:, 0] = x[:, 1], residual[:, 1]
        x, residual = x.flatten(0, 1), residual.flatten(0, 1)
        call = lambda x=x, y=residual: aiter.layer_norm(x, y, weight, bias, 1e-5)  # noqa: E731
        (out, total), complained = complaints(device, aiter.BY_HAND, call)
        assert complained == ({"lds-race", "lds-same-bytes"} if equal else {"lds-race"})
        assert torch.equal(total, truncated(x.float() + residual.float()))
        exact, plain = (
            norm(y.to(t), (8192,), weight.to(t), bias.to(t), 1e-5)
            for y, t in ((x.double() + residual.double(), torch.float64), (total, torch.float32))
        )
        rows = slice(None) if equal else slice(1, None, 2)
        check({"out": out[rows]}, {"out": truncated(plain)[rows]}, {"out": exact[rows]})
