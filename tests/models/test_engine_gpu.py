# SPDX-License-Identifier: Apache-2.0
"""The decode engine on a GPU, its second and later steps replayed as a graph, beside the same weights in float64, layer
by layer on the CPU. Without a GPU it is skipped."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from engine_calls import copied, counted, layer_by_layer, state_after, steps
from peer_models import ours, relative, tokens
from test_quantize import widened
from xlstm_hip.models import xLSTMLarge
from xlstm_hip.quantize import quantize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
VOCAB = 700
SPLIT = 2**-17  # matrix units see 16 bits of what weights are multiplied with
FAST = 2**-23  # of exponentials
WEIGHTS = [(dtype, bits) for dtype in (torch.bfloat16, torch.float16, torch.float32) for bits in (0, 8, 4)]


def model_of(dtype: torch.dtype, bits: int) -> xLSTMLarge:
    model = ours(dtype=dtype, embedding_dim=256, num_heads=2, num_blocks=2, vocab_size=VOCAB, weight_mode="fused")
    if bits:
        model, _ = quantize(model, bits, progress=False)
    return model.eval()


def on_gpu(state: dict) -> dict:
    return {n: tuple(x.cuda() for x in own) for n, own in state.items()}


def steps_on_gpu(model: xLSTMLarge, begun: dict, x: Tensor) -> tuple[Tensor, dict]:
    state = on_gpu(copied(begun))
    with counted() as calls:
        got = steps(model, state, x.cuda())
    assert calls == [x.shape[0]] * x.shape[1]
    return got.cpu(), state


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8, 17, 64])
@pytest.mark.parametrize("dtype, bits", WEIGHTS, ids=lambda x: str(x))
def test_error(dtype: torch.dtype, bits: int, batch: int) -> None:
    """No further from float64 than the layers are on the CPU, twice at the most; twice the same bits."""
    model = model_of(dtype, bits)
    begun, x = state_after(model, tokens(batch, 5, VOCAB)), tokens(batch, 4, VOCAB, seed=2)
    true_state = copied(begun, torch.float64)
    true = steps(widened(model), true_state, x)
    with layer_by_layer():
        layer_state = copied(begun)
        layers = steps(model, layer_state, x)
    there = copy.deepcopy(model).cuda()
    got, state = steps_on_gpu(there, begun, x)
    again, _ = steps_on_gpu(there, begun, x)
    assert torch.equal(got, again)
    least = 8 * (FAST if dtype == torch.float32 and not bits else SPLIT)
    assert relative(got, true) <= 2 * relative(layers, true) + least
    for n, own in true_state.items():
        for a, b, c in zip(state[n], layer_state[n], own, strict=True):
            assert relative(a.cpu(), c) <= 2 * relative(b, c) + least


def test_rows_that_are_masked_keep_their_states() -> None:
    model = model_of(torch.bfloat16, 0)
    begun, x = state_after(model, tokens(5, 5, VOCAB)), tokens(5, 3, VOCAB, seed=2).cuda()
    keep = torch.tensor([True, False, True, False, True])
    there, state = copy.deepcopy(model).cuda(), on_gpu(begun)
    for t in range(3):
        there.step(x[:, t], state, keep.cuda())
    for n, own in begun.items():
        for new, old in zip(state[n], own, strict=True):
            assert torch.equal(new[~keep].cpu(), old[~keep]) and not torch.equal(new[keep].cpu(), old[keep])
