# SPDX-License-Identifier: Apache-2.0
"""The decode engine on a GPU, its second and later steps replayed as a graph, beside the same weights in float64, layer
by layer on the CPU; drawing beside the CPU's, bit for bit. Without a GPU it is skipped."""

from __future__ import annotations

import copy

import pytest
import torch
from test_quantize import widened
from test_sampling import SAMPLINGS, call_of, draw, logits_of
from torch import Tensor

from support.engine_calls import copied, counted, layer_by_layer, state_after, steps
from support.peer_models import relative, small_model, tokens
from xlstm_hip.models import Sampling, decode_engine, generate, xLSTMLarge
from xlstm_hip.models.config_files import SpecialTokens
from xlstm_hip.models.quantize import quantize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
VOCAB = 700
SPLIT = 2**-17  # matrix units see 16 bits of what weights are multiplied with
FAST = 2**-23  # of exponentials
WEIGHTS = [(dtype, bits) for dtype in (torch.bfloat16, torch.float16, torch.float32) for bits in (0, 8, 4)]


def model_of(dtype: torch.dtype, bits: int) -> xLSTMLarge:
    model = small_model(
        dtype=dtype, embedding_dim=256, num_heads=2, num_blocks=2, vocab_size=VOCAB, weight_mode="fused"
    )
    if bits:
        model, _ = quantize(model, bits, progress=False)
    return model.eval()


def on_gpu(state: dict) -> dict:
    return {n: tuple(x.cuda() for x in layer) for n, layer in state.items()}


def steps_on_gpu(model: xLSTMLarge, begun: dict, x: Tensor) -> tuple[Tensor, dict]:
    state = on_gpu(copied(begun))
    with counted() as calls:
        actual = steps(model, state, x.cuda())
    assert calls == [x.shape[0]] * x.shape[1]
    return actual.cpu(), state


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8, 9, 17, 31, 64, 65, 200])
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
    gpu_model = copy.deepcopy(model).cuda()
    actual, state = steps_on_gpu(gpu_model, begun, x)
    again, _ = steps_on_gpu(gpu_model, begun, x)
    assert torch.equal(actual, again)
    least = 8 * (FAST if dtype == torch.float32 and not bits else SPLIT)
    assert relative(actual, true) <= 2 * relative(layers, true) + least
    for n, layer in true_state.items():
        for a, b, c in zip(state[n], layer_state[n], layer, strict=True):
            assert relative(a.cpu(), c) <= 2 * relative(b, c) + least


@pytest.mark.parametrize("rows", [5, 17])
def test_rows_that_are_masked_keep_their_states(rows: int) -> None:
    model = model_of(torch.bfloat16, 0)
    begun, x = state_after(model, tokens(rows, 5, VOCAB)), tokens(rows, 3, VOCAB, seed=2).cuda()
    keep = torch.arange(rows) % 2 == 0
    gpu_model, state = copy.deepcopy(model).cuda(), on_gpu(begun)
    for t in range(3):
        gpu_model.step(x[:, t], state, keep.cuda())
    for n, layer in begun.items():
        for new, old in zip(state[n], layer, strict=True):
            assert torch.equal(new[~keep].cpu(), old[~keep]) and not torch.equal(new[keep].cpu(), old[keep])


@pytest.mark.parametrize("rows, vocab, levels", [(1, 7, 0), (3, 700, 2), (64, 5000, 0), (2, 50304, 8), (1, 200001, 0)])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.2), *SAMPLINGS], ids=str)
def test_draws_are_those_of_the_cpu(sampling: Sampling, rows: int, vocab: int, levels: int) -> None:
    """Tokens, weights, counts and flags."""
    logits = logits_of(rows, vocab, levels=levels)
    changes = {"going": torch.arange(rows) % 5 != 3, "ends": torch.arange(0, vocab, 3)[:64], "pad": 5}
    cpu_call = call_of(logits, sampling, **changes)
    gpu_call = {name: x.cuda() if isinstance(x, Tensor) else x for name, x in cpu_call.items()}
    for _ in range(3):
        draw(cpu_call), draw(gpu_call)
        for name, x in cpu_call.items():
            assert not isinstance(x, Tensor) or torch.equal(gpu_call[name].cpu(), x), name


@pytest.mark.parametrize("dtype, bits", [(torch.bfloat16, 0), (torch.float32, 0), (torch.bfloat16, 4)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.2},
        {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2, "min_p": 0.02, "stop": [[7, 8], [9]]},
    ],
)
def test_a_text_is_one_graph(monkeypatch: pytest.MonkeyPatch, options: dict, dtype: torch.dtype, bits: int) -> None:
    """Embedding to drawn token is captured once, and makes the text of steps that were not; streamed too."""
    model = model_of(dtype, bits).cuda()
    model.special_tokens = SpecialTokens(pad=1)
    prompts, captured_calls, original = [[5, 6, 7], [8], [14, 15]], [], decode_engine.captured

    def count(call):
        captured_calls.append(call)
        return original(call)

    with monkeypatch.context() as patch:
        patch.setattr(decode_engine, "captured", lambda call: call)
        want = generate(model, prompts, 40, seed=4, eos=(11, 30), **options)
    monkeypatch.setattr(decode_engine, "captured", count)
    actual = generate(model, prompts, 40, seed=4, eos=(11, 30), **options)
    assert len(captured_calls) == 1
    assert torch.equal(actual.tokens, want.tokens) and torch.equal(actual.lengths, want.lengths)
    for n, state in want.state.items():
        assert all(torch.equal(a, b) for a, b in zip(actual.state[n], state, strict=True))
    streamed: list[int] = []
    alone = generate(
        model, prompts[1:2], 40, seed=5, eos=(), callback=lambda step: streamed.append(int(step)), **options
    )
    assert alone.tokens[0].tolist() == streamed and len(set(streamed)) > 1
