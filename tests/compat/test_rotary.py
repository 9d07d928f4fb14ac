# SPDX-License-Identifier: Apache-2.0
"""flash_attn.layers.rotary as xlstm_hip.compat offers it, beside the same rotation of complex numbers in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support.compat_parts import compat_part, findable

rotary = compat_part("rotary")
B, S, H, D, PAIRS = 2, 9, 3, 16, 4
ANGLES = torch.rand(40, PAIRS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
COS, SIN = ANGLES.cos(), ANGLES.sin()
FIRST = torch.tensor([5, 20])


def draw(*shape: int, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_(grad)


def turned(x: Tensor, interleaved: bool, first: Tensor = FIRST, angles: Tensor = ANGLES) -> Tensor:
    pairs = x[..., : 2 * PAIRS].unflatten(-1, (PAIRS, 2)) if interleaved else x[..., : 2 * PAIRS].unflatten(
        -1, (2, PAIRS)
    ).mT  # fmt: skip
    positions = first[:, None] + torch.arange(x.shape[1])
    product = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)[
        positions
    ].unsqueeze(2)
    flat = torch.view_as_real(product)
    flat = flat.flatten(-2) if interleaved else flat.mT.flatten(-2)
    return torch.cat([flat, x[..., 2 * PAIRS :]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_one_tensor(interleaved: bool) -> None:
    x = draw(B, S, H, D, grad=True)
    actual = rotary.apply_rotary_emb(x, COS, SIN, interleaved, seqlen_offsets=FIRST)
    torch.testing.assert_close(actual, turned(x, interleaved))
    # A rotation's gradient is the rotation back, and back again.
    (dx,) = torch.autograd.grad(actual, x, actual.detach())
    torch.testing.assert_close(dx, x.detach())
    assert torch.autograd.gradgradcheck(
        lambda y: rotary.apply_rotary_emb(y, COS, SIN, interleaved, seqlen_offsets=FIRST), draw(2, 2, 1, 8, grad=True)
    )
    back = rotary.apply_rotary(actual, COS, SIN, FIRST, interleaved=interleaved, conjugate=True)
    torch.testing.assert_close(back, x)
    rows = torch.cat([actual[0, :3], actual[1]])
    packed = rotary.apply_rotary_emb(torch.cat([x[0, :3], x[1]]), COS, SIN, interleaved, seqlen_offsets=FIRST,
                                     cu_seqlens=torch.tensor([0, 3, 12]), max_seqlen=9)  # fmt: skip
    assert torch.equal(packed, rows)
    positions = FIRST[:, None] + torch.arange(S)
    torch.testing.assert_close(rotary.apply_rotary_emb_torch(x, COS[positions], SIN[positions], interleaved), actual)
    torch.testing.assert_close(rotary.apply_rotary_emb_torch(x, COS[:S], SIN[:S], interleaved)[..., : 2 * PAIRS],
                               turned(x, interleaved, torch.zeros(B).long())[..., : 2 * PAIRS])  # fmt: skip


def in_place(x: Tensor) -> Tensor:
    return rotary.apply_rotary_emb(x, COS, SIN, inplace=True, seqlen_offsets=FIRST)


def in_place_qkv(x: Tensor) -> Tensor:
    return rotary.apply_rotary_emb_qkv_(x, COS, SIN, SIN, COS, seqlen_offsets=FIRST)


def in_place_gqa(x: Tensor) -> Tensor:
    return rotary.apply_rotary_emb_qkv_(x, COS, SIN, interleaved=True, seqlen_offsets=FIRST, num_heads_q=4)


def in_place_kv(x: Tensor) -> Tensor:
    return rotary.apply_rotary_emb_kv_(x, COS, SIN, seqlen_offsets=FIRST)


def expected_of(call: Callable[..., Tensor], x: Tensor) -> Tensor:
    shifted = torch.pi / 2 - ANGLES  # whose sine is the cosine
    if call is in_place:
        return turned(x, False)
    if call is in_place_qkv:
        return torch.stack([turned(x[:, :, 0], False), turned(x[:, :, 1], False, angles=shifted), x[:, :, 2]], 2)
    if call is in_place_gqa:
        return torch.cat([turned(x[:, :, :6], True), x[:, :, 6:]], 2)
    return torch.stack([turned(x[:, :, 0], False), x[:, :, 1]], 2)


SHAPES = {
    in_place: (B, S, H, D),
    in_place_qkv: (B, S, 3, H, D),
    in_place_gqa: (B, S, 8, D),
    in_place_kv: (B, S, 2, H, D),
}


@pytest.mark.parametrize("variant", ["no gradient", "leaf", "made", "view of one", "view of many"])
@pytest.mark.parametrize("call", SHAPES)
def test_in_place(call: Callable[..., Tensor], variant: str) -> None:
    """What is written is the tensor given, be it a leaf that needs a gradient; the tensor returned has the gradient."""
    many = draw(2, *SHAPES[call], grad=variant != "no gradient")
    views = {"leaf": many[0].detach().requires_grad_(), "made": many[0] * 1}
    x = views.get(
        variant,
        (many * 1)[0]
        if variant == "view of one"
        else many.unbind()[0]
        if variant == "no gradient"
        else (many * 1).unbind()[0],
    )  # noqa: E501
    expected = expected_of(call, x.clone())
    y = call(x)
    assert y.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x.detach(), expected.detach())
    torch.testing.assert_close(y, expected)
    if variant == "no gradient":
        assert y is x
        return
    source, sent = x if variant == "leaf" else many, torch.randn_like(y)
    (actual,) = torch.autograd.grad(y, source, sent, retain_graph=True)
    (should,) = torch.autograd.grad(expected, source, sent, retain_graph=variant != "leaf")
    torch.testing.assert_close(actual, should)
    if variant == "made":  # of which torch knows by itself that it was written
        (actual,) = torch.autograd.grad(x, source, sent)
        torch.testing.assert_close(actual, should)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_in_a_compiled_graph(leaf: bool, inplace: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    findable(monkeypatch, rotary)

    def call(x: Tensor) -> Tensor:
        return rotary.apply_rotary_emb(x if leaf else x * 2, COS, SIN, inplace=inplace, seqlen_offsets=3)

    torch._dynamo.reset()
    compiled, results = torch.compile(call, backend="aot_eager", fullgraph=True), []
    for function in (call, compiled):
        x = draw(B, S, H, D, grad=True)
        y = function(x)
        results.append((y, x.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))))
    torch._dynamo.reset()
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scale_base", [None, 16.0])
def test_the_module(interleaved: bool, scale_base: float | None) -> None:
    module = rotary.RotaryEmbedding(8, base=100.0, interleaved=interleaved, scale_base=scale_base)
    assert module.inv_freq.tolist() == pytest.approx([1, 100**-0.25, 0.1, 100**-0.75]) and not module.state_dict()
    x = draw(B, S, 3, H, D)
    angles = torch.arange(12.0)[:, None] * module.inv_freq
    q, k = (turned(x[:, :, j], interleaved, torch.full((B,), 3), angles.double()) for j in (0, 1))
    if scale_base is not None:
        # The middle of the 12 places has no scale; a query's is the inverse of a key's at the same place.
        shares = (torch.arange(0, 8, 2) + 3.2) / 11.2
        scale = shares ** ((torch.arange(3.0, 12) - 6) / 16)[:, None]
        scale = (scale.repeat_interleave(2, -1) if interleaved else torch.cat([scale, scale], -1))[:, None]
        q[..., :8] *= scale
        k[..., :8] /= scale
    expected = torch.stack([q, k, x[:, :, 2]], 2)
    near: dict[str, Any] = {"atol": 2e-6, "rtol": 2e-6}  # the tables' angles are float32's
    torch.testing.assert_close(module(x.clone(), seqlen_offset=3), expected, **near)
    got_q, got_kv = module(x[:, :, 0].clone(), x[:, :, 1:].clone(), seqlen_offset=3)
    torch.testing.assert_close(got_q, expected[:, :, 0], **near)
    torch.testing.assert_close(got_kv, expected[:, :, 1:], **near)
    offsets = torch.tensor([3, 3])
    torch.testing.assert_close(module(x.clone(), seqlen_offset=offsets, max_seqlen=12), expected, **near)
    grouped = torch.cat([x[:, :, 0], x[:, :, 1], x[:, :, 2]], 2)
    flat = torch.cat([expected[:, :, j] for j in range(3)], 2)
    torch.testing.assert_close(module(grouped, seqlen_offset=3, num_heads_q=H), flat, **near)
    moved = rotary.RotaryEmbedding(8, base=100.0).bfloat16()  # whose positions stay exact
    moved(torch.zeros(1, 300, 3, 1, 8).bfloat16())
    assert moved._tables[0].dtype == torch.bfloat16
    assert torch.equal(moved._tables[0][:, 0], torch.arange(300.0).cos().bfloat16())


X = draw(B, S, H, D)
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("apply_rotary_emb", {"seqlen_offsets": 32}, "seqlen_offsets: a rotary position: expected 0 to 39, got 40"),
    ("apply_rotary_emb", {"seqlen_offsets": -1}, "seqlen_offsets: a rotary position: expected 0 to 39, got -1"),
    ("apply_rotary_emb", {"cos": COS[:, :2]}, "sin: expected shape"),
    ("apply_rotary_emb", {"max_seqlen": 9}, "max_seqlen: expected None without cu_seqlens"),
    ("apply_rotary_emb", {"cu_seqlens": torch.tensor([0, 9])}, "x: expected 3 dimensions"),
    ("apply_rotary_emb", {"interleaved": 1}, "interleaved: expected True or False, got 1"),
    ("apply_rotary_emb", {"inplace": "x"}, "inplace: expected True or False, got 'x'"),
    ("apply_rotary_emb", {"x": X[0], "cu_seqlens": torch.tensor([0, 9]), "max_seqlen": 8}, "has 9 tokens, more than"),
    ("apply_rotary_emb", {"x": X[0], "cu_seqlens": torch.tensor([0, 10]), "max_seqlen": 10}, "cu_seqlens: the last"),
    ("apply_rotary_emb", {"cos": COS.clone().requires_grad_()}, "cos, sin: expected no gradient to be needed"),
    ("apply_rotary_emb_qkv_", {"qkv": X}, "num_heads_q: expected the query heads of qkv's 3, got None"),
    ("apply_rotary_emb_qkv_", {"qkv": X, "num_heads_q": 2}, "num_heads_q: expected to leave as many"),
    ("apply_rotary_emb_qkv_", {"qkv": X[0]}, r"qkv: expected \(B, S, 3, H, D\)"),
    ("apply_rotary_emb_qkv_", {"qkv": draw(B, S, 3, H, D), "sin_k": COS[:9]}, "sin_k: expected shape"),
    ("apply_rotary_emb_kv_", {"kv": draw(B, S, 3, H, D)}, r"kv: expected \(B, S, 2, H, D\)"),
]


@pytest.mark.parametrize("function, wrong, message", WRONG)
def test_wrong(function: str, wrong: dict[str, Any], message: str) -> None:
    base = {"cos": COS, "sin": SIN} | ({"x": X} if function == "apply_rotary_emb" else {})
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(rotary, function)(**base | wrong)


def test_wrong_modules() -> None:
    with pytest.raises(ValueError, match="dim: expected an even number from 2, got 7"):
        rotary.RotaryEmbedding(7)
    module = rotary.RotaryEmbedding(8)
    with pytest.raises(ValueError, match="max_seqlen: expected beside a tensor of offsets"):
        module(draw(B, S, 3, H, D), seqlen_offset=FIRST)
    with pytest.raises(ValueError, match="num_heads_q: expected None beside kv, got 3"):
        module(X, draw(B, S, 2, H, D), num_heads_q=3)
