# SPDX-License-Identifier: Apache-2.0
"""Reading in graphs, which calls made again stand in for; test_models_gpu.py has real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from support.engine_calls import calls_for_graphs, copied
from support.peer_models import small_model, tokens
from xlstm_hip._core.plans import trying
from xlstm_hip.models import Stream, decode_engine, read_graphs, xLSTMLarge
from xlstm_hip.models import xlstm_large as large


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    results = calls_for_graphs(monkeypatch)
    monkeypatch.setattr(large, "suits_graph", lambda x: x.shape[1] > 1 and x.numel() <= read_graphs.MOST_TOKENS)
    return results


def eager(model: xLSTMLarge, x: torch.Tensor, state: dict | None = None) -> tuple:
    with torch.no_grad():
        return model._read(x, None if state is None else copied(state))


def same(actual: tuple, want: tuple) -> None:
    assert torch.equal(actual[0], want[0])
    for n, layer in want[1].items():
        assert all(torch.equal(a, b) for a, b in zip(actual[1][n], layer, strict=True))


def test_chunks(captures: list[Callable]) -> None:
    """A shape's second call is captured, without a state and with one; results are not the graphs' memory."""
    model, x = small_model(), tokens(2, 40)
    chunks = x.split(8, dim=1)
    kept = []
    for _ in range(3):
        state, want_state = None, None
        for chunk in chunks:
            want = eager(model, chunk, want_state)
            given = state
            actual = model.read(chunk, state, replay=True)
            same(actual, want)
            assert given is None or all(actual[1][n][0] is given[n][0] for n in given)  # overwritten
            state, want_state = actual[1], want[1]
            kept.append((actual[0], want[0]))
    assert len(captures) == 2
    assert all(torch.equal(a, b) for a, b in kept)


def test_a_mask_is_an_input(captures: list[Callable]) -> None:
    """Padding on the left, other in each call; without a mask it is another graph."""
    model = small_model()
    _, state = model.read(tokens(2, 5))
    for pads in (0, 3, 7, 1):
        x = tokens(2, 8, seed=pads)
        mask = (torch.arange(8) >= pads).expand(2, 8)
        with torch.no_grad():
            want = model._read(x, copied(state), mask)
        actual = model.read(x, copied(state), mask, replay=True)
        same(actual, want)
        assert not torch.equal(actual[0], model.read(x, copied(state), replay=True)[0]) or not pads
    assert len(captures) == 2
    with pytest.raises(ValueError, match="mask: expected shape"):
        model.read(x, copied(state), mask[:1], replay=True)


def test_a_stream_reads_in_graphs(captures: list[Callable]) -> None:
    model, x = small_model(), tokens(3, 24)
    stream, whole = Stream(model, 3, replay_chunks=True), Stream(model, 3)
    for chunk in x.split(6, dim=1):
        stream.feed(chunk)
    whole.feed(x)
    assert len(captures) == 1 and stream.tokens_read == 24
    assert float((stream.logits - whole.logits).norm() / whole.logits.norm()) < 1e-5


def test_what_no_graph_takes(captures: list[Callable], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small_model(), tokens(2, 8)
    long = tokens(2, read_graphs.MOST_TOKENS // 2 + 1)
    for _ in range(3):
        model.read(x.int(), replay=True)
        model.read(long, replay=True)
        model.read(x, dict.fromkeys(range(model.config.num_blocks)), replay=True)
        model.read(x)
        Stream(model, 2).feed(x)
    hook = model.backbone.register_forward_hook(lambda *_: None)
    for _ in range(3):
        model.read(x, replay=True)
    hook.remove()
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")
    for _ in range(3):
        model.read(x, replay=True)
    assert not captures


def test_what_makes_a_new_graph(captures: list[Callable]) -> None:
    """Weights in place are read anew; a replaced one, other settings of the model and other plans are noticed."""
    model, x = small_model(), tokens(2, 8)

    def thrice(count: int) -> None:
        for _ in range(3):
            same(model.read(x, replay=True), eager(model, x))
        assert len(captures) == count

    thrice(1)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    thrice(1)
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight.detach())
    thrice(2)
    model.config.gate_soft_cap = 2.0
    thrice(3)
    with trying("mlstm_chunkwise", {"chunk_size": 16}):
        thrice(4)


def test_few_graphs_are_kept(captures: list[Callable]) -> None:
    model = small_model()
    shapes = [tokens(1, 2 + n) for n in range(read_graphs.MOST_GRAPHS + 1)]
    for _ in range(3):
        for x in shapes:
            same(model.read(x, replay=True), eager(model, x))
    graphs = read_graphs.read_graphs_of(decode_engine.engine_of(model, model._new_engine))
    assert len(graphs._graphs) == read_graphs.MOST_GRAPHS
    assert len(captures) == 2 * len(shapes)  # in turn, each finds its own gone
    for n in range(2 * read_graphs.MOST_SHAPES):
        model.read(tokens(1, 2 + n), replay=True)
    assert len(graphs._seen) == read_graphs.MOST_SHAPES


def test_bad_input() -> None:
    model, x = small_model(), tokens(2, 8)
    with pytest.raises(ValueError, match=r"x: expected S >= 1"):
        model.read(x[:, :0])
    _, state = model.read(x, replay=True)
    with pytest.raises(ValueError, match=r"state\[0\]: c: expected shape"):
        model.read(x[:1], state, replay=True)
