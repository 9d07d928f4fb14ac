# SPDX-License-Identifier: Apache-2.0
"""torch.compile of whole models: one graph for training and for inference, and lengths that change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.peer_models import hf_model, small_model, tokens

LENGTHS = (40, 33, 17)


def compiled(model: torch.nn.Module) -> Any:
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")


def test_training() -> None:
    model = small_model(mode="train", return_last_states=False).train()
    graph = compiled(model)
    for length in LENGTHS:
        x = tokens(2, length)
        logits = graph(x)
        loss = logits.square().mean()
        actual = torch.autograd.grad(loss, list(model.parameters()))
        expected = model(x)
        want = torch.autograd.grad(expected.square().mean(), list(model.parameters()))
        assert torch.allclose(logits, expected, atol=1e-5)
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(actual, want, strict=True))


@torch.no_grad()
def test_inference_with_a_state() -> None:
    model = small_model(mode="inference", return_last_states=True).eval()
    graph = compiled(model)
    for length in LENGTHS:
        x = tokens(2, length)
        logits, state = graph(x)
        expected, reference = model(x)
        assert torch.allclose(logits, expected, atol=1e-5)
        following, _ = graph(x[:, :1], state)
        assert torch.allclose(following, model(x[:, :1], reference)[0], atol=1e-4)


@pytest.mark.parametrize("train", [pytest.param(True, marks=pytest.mark.rows("ci")), False])
def test_an_accelerated_model_of_transformers(train: bool) -> None:
    pytest.importorskip("transformers")
    from xlstm_hip import hf

    model = hf.accelerate(hf_model()).train(train)
    graph = compiled(model)
    for length in LENGTHS:
        x = tokens(2, length)
        with torch.set_grad_enabled(train):
            actual = graph(x, labels=x, use_cache=False)
            want = model(x, labels=x, use_cache=False)
        assert torch.allclose(actual.logits, want.logits, atol=1e-5)
        if train:
            actual.loss.backward()


@pytest.mark.rows("ci")
def test_packed_sequences_by_their_offsets() -> None:
    ends, x = torch.tensor([0, 7, 28]), tokens(1, 28)
    model = small_model()
    with torch.no_grad():
        assert torch.allclose(compiled(model)(x, cu_seqlens=ends), model(x, cu_seqlens=ends), atol=1e-5)
    hf = pytest.importorskip("xlstm_hip.integrations.hf")
    model = hf.accelerate(hf_model()).train()
    packed = {"cu_seq_lens_q": ends, "labels": x, "use_cache": False}
    loss = compiled(model)(x, **packed).loss
    assert torch.allclose(loss, model(x, **packed).loss)
    loss.backward()
