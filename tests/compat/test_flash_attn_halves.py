# SPDX-License-Identifier: Apache-2.0
"""flash_attn.flash_attn_interface's private halves of attention, as ring attention and Megatron call them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.compat_parts import compat_part
from xlstm_hip import attention
from xlstm_hip.reference.attention import attention as reference

halves = compat_part("flash_attn_2")
B, S, H, D, DV = 2, 24, 4, 16, 8
ENDS = torch.tensor([0, 10, 48], dtype=torch.int32)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (5, 2), "softcap": 2.0, "slopes": torch.tensor([0.1, 0.2, 0.3, 0.4])},
]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def inputs(packed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = drawn(B, S, H, D), drawn(B, S, 2, D), drawn(B, S, 2, DV), drawn(B, S, H, DV)
    q, k, v, dout = (x.flatten(0, 1) for x in tensors) if packed else tensors
    return q, k, v, dout


def both(
    packed: bool, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dropout_p: float = 0.0, causal: bool = False,
    window: tuple[int, int] = (-1, -1), softcap: float = 0.0, slopes: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The results of the forward half, then softmax_d, dq, dk and dv."""
    lengths = (ENDS, ENDS, 38, 38) if packed else ()
    rules = (dropout_p, D**-0.5, causal, *window, softcap, slopes)
    name = "_flash_attn_varlen_" if packed else "_flash_attn_"
    out, lse, weights, rng_state = getattr(halves, name + "forward")(q, k, v, *lengths, *rules, dropout_p > 0)
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    softmax_d = getattr(halves, name + "backward")(
        dout, q, k, v, out, lse, *gradients, *lengths, *rules, True, rng_state=rng_state
    )
    return [out, lse, weights, rng_state], [softmax_d, *gradients]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_they_are_the_whole(packed: bool, options: dict[str, Any]) -> None:
    q, k, v, dout = inputs(packed)
    (out, lse, weights, rng_state), (softmax_d, *gradients) = both(packed, q, k, v, dout, **options)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    call = attention.flash_attn_varlen_func if packed else attention.flash_attn_func
    full_out, full_lse, _ = call(
        *leaves, *(ENDS, ENDS, 38, 38) if packed else (), causal=options.get("causal", False),
        window_size=options.get("window", (-1, -1)), softcap=options.get("softcap", 0.0),
        alibi_slopes=options.get("slopes"), return_attn_probs=True,
    )  # fmt: skip
    assert torch.equal(out, full_out) and torch.equal(lse, full_lse) and not out.requires_grad
    assert weights.numel() == 0 and rng_state.tolist() == [0, 0]
    for actual, expected in zip(gradients, torch.autograd.grad(full_out, leaves, dout), strict=True):
        assert torch.equal(actual, expected)
    torch.testing.assert_close(softmax_d, torch.einsum("...shd,...shd->...hs", dout, out))


@pytest.mark.parametrize("packed", [False, True])
def test_dropout(packed: bool) -> None:
    """rng_state is drawn anew each time, and the backward pass drops what its forward pass dropped."""
    q, k, v, dout = inputs(packed)
    (out, lse, weights, rng_state), (softmax_d, *gradients) = both(packed, q, k, v, dout, dropout_p=0.4, causal=True)
    assert not torch.equal(both(packed, q, k, v, dout, dropout_p=0.4)[0][3], rng_state)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    rules: dict[str, Any] = {"causal": True, "dropout_p": 0.4, "rng_state": rng_state}
    ends = ENDS.tolist() if packed else [0, B]
    alone = [
        reference(*(x[None, a:b] if packed else x[a:b] for x in leaves), **rules, first_sequence=n)
        for n, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True))
    ]
    expected = torch.cat([one[0][0] if packed else one[0] for one in alone])
    torch.testing.assert_close(out, expected)
    if not packed:
        assert torch.equal(weights.sign(), alone[0][2].sign())
    for actual, should in zip(gradients, torch.autograd.grad(expected, leaves, dout), strict=True):
        torch.testing.assert_close(actual, should)
    torch.testing.assert_close(softmax_d, 0.6 * torch.einsum("...shd,...shd->...hs", dout, out))


def test_parts_of_a_ring() -> None:
    """Each part of the keys by itself: the merged result, and of it each part's share of the gradients."""
    q, k, v, dout = inputs(packed=False)
    rules = (0.0, D**-0.5, False, -1, -1, 0.0, None)
    parts = [slice(0, 9), slice(9, S)]
    part_outputs = [
        halves._flash_attn_forward(q, k[:, part_lse], v[:, part_lse], *rules, False)[:2] for part_lse in parts
    ]
    lse = torch.stack([one for _, one in part_outputs]).logsumexp(0)
    out = sum(one * (part_lse - lse).exp().transpose(1, 2)[..., None] for one, part_lse in part_outputs)
    dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for part_lse in parts:
        share = torch.empty_like(q)
        halves._flash_attn_backward(
            dout, q, k[:, part_lse], v[:, part_lse], out, lse, share, dk[:, part_lse], dv[:, part_lse], *rules, False
        )
        dq += share
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    full_out = attention.flash_attn_func(*leaves)
    torch.testing.assert_close(out, full_out)
    for actual, expected in zip((dq, dk, dv), torch.autograd.grad(full_out, leaves, dout), strict=True):
        torch.testing.assert_close(actual, expected)


def test_where_gradients_go() -> None:
    """Into slices of one tensor, in its dtype; one that is not wanted is not written."""
    qkv, dout = drawn(B, S, 3, H, D), drawn(B, S, H, D)
    rules = (0.0, None, True, -1, -1, 0.0, None)
    out, lse, *_ = halves._flash_attn_forward(*qkv.unbind(2), *rules, False)
    dqkv = torch.full_like(qkv, 7, dtype=torch.float32)
    halves._flash_attn_backward(dout, *qkv.unbind(2), out, lse, dqkv[:, :, 0], None, dqkv[:, :, 2], *rules, False)
    leaf = qkv.clone().requires_grad_()
    (expected,) = torch.autograd.grad(attention.flash_attn_qkvpacked_func(leaf, causal=True), leaf, dout)
    expected[:, :, 1] = 7
    torch.testing.assert_close(dqkv, expected.float())


def test_pages() -> None:
    q, k, v = drawn(3, H, D), drawn(4, 16, 2, D), drawn(4, 16, 2, DV)
    table, lengths = torch.tensor([[3, 1], [0, 2]]), torch.tensor([0, 20, 27])
    ends = torch.tensor([0, 1, 3])
    out, lse, weights, rng_state = halves._flash_attn_varlen_forward(
        q, k, v, ends, lengths, 2, 32, 0.0, None, True, block_table=table, num_splits=2
    )
    expected, expected_lse, _ = attention.flash_attn_varlen_func(
        q, k, v, ends, lengths, 2, 32, causal=True, block_table=table, return_attn_probs=True
    )
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    assert weights.numel() == 0 and rng_state.tolist() == [0, 0]


def test_function_classes() -> None:
    leaf, options = drawn(B, S, 3, H, D).requires_grad_(), (0.0, None, True, (-1, -1), 0.0, None, False)
    packed = halves.FUNCTION_CLASSES["FlashAttnQKVPackedFunc"]
    assert issubclass(packed, torch.autograd.Function)
    out, lse, _ = packed.apply(leaf, *options, True, True)
    expected = halves.FUNCTION_CLASSES["FlashAttnFunc"].apply(*leaf.unbind(2), *options, False, True)
    assert torch.equal(out, expected) and lse.shape == (B, H, S)
    assert torch.equal(*(torch.autograd.grad(x.sum(), leaf)[0] for x in (out, expected)))
    assert not packed.apply(leaf, *options, False, False).requires_grad
    q, k, v, _ = inputs(packed=True)
    varlen = halves.FUNCTION_CLASSES["FlashAttnVarlenFunc"]
    actual = varlen.apply(q, k, v, ENDS, ENDS, 38, 38, *options, False, None, True)
    assert torch.equal(actual, attention.flash_attn_varlen_func(q, k, v, ENDS, ENDS, 38, 38, causal=True))
    assert set(halves.FUNCTION_CLASSES) == {
        f"FlashAttn{kind}Func" for kind in ("", "KVPacked", "QKVPacked", "Varlen", "VarlenKVPacked", "VarlenQKVPacked")
    }


Q, K, V, DOUT = inputs(packed=False)
LSE, RULES = drawn(B, H, S), (0.0, None, False, -1, -1, 0.0, None, False)
GRADIENTS = (torch.empty_like(Q), torch.empty_like(K), torch.empty_like(V))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"dropout_p": 0.3}, "rng_state: expected the tensor that the forward pass returned"),
        ({"dq": torch.zeros(3)}, r"dq: expected shape q's = \(2, 24, 4, 16\), got \(3\)"),
        ({"softmax_lse": drawn(B, S, H)}, r"softmax_lse: expected shape \(B, H, S\)"),
        ({"out": DOUT.float()}, "out: expected torch.float64 as q has"),
        ({"dout": Q}, r"dout: expected shape q's but for v's head dim = \(2, 24, 4, 8\)"),
    ],
)
def test_wrong(wrong: dict[str, Any], message: str) -> None:
    names = "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes deterministic"
    base = dict(zip(names.split(), RULES, strict=True)) | dict(zip(("dq", "dk", "dv"), GRADIENTS, strict=True))
    base |= {"dout": DOUT, "q": Q, "k": K, "v": V, "out": DOUT, "softmax_lse": LSE}
    with pytest.raises((TypeError, ValueError), match=message):
        halves._flash_attn_backward(**base | wrong)


def test_wrong_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="return_softmax: expected False without dropout"):
        halves._flash_attn_forward(Q, K, V, *RULES[:-1], True)
    with pytest.raises(ValueError, match="num_splits: expected 0 or 1 with return_softmax"):
        q, k, v, _ = inputs(packed=True)
        lengths = (ENDS, ENDS, 38, 38)
        halves._flash_attn_varlen_forward(q, k, v, *lengths, 0.3, None, True, return_softmax=True, num_splits=2)
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")
    with pytest.raises(NotImplementedError, match="XLSTM_HIP_BACKEND: expected not to be reference"):
        halves._flash_attn_backward(DOUT, Q, K, V, DOUT, LSE, *GRADIENTS, *RULES)
