# SPDX-License-Identifier: Apache-2.0
"""One token of each row and a sequence in one call: what step and read give by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine_calls import calls_for_graphs, copied
from support.peer_models import relative, small_model, tokens
from xlstm_hip.models import decode_engine, read_graphs, xLSTMLarge
from xlstm_hip.models import xlstm_large as large
from xlstm_hip.models.language_model import State

PADS = 3  # of a chunk's tokens, on the left
Both = tuple[Tensor, Tensor, State, State]


def padded(chunk: Tensor) -> Tensor:
    """Its mask."""
    return (torch.arange(chunk.shape[1]) >= PADS).unsqueeze(0)


def states_of(model: xLSTMLarge, rows: int, seed: int) -> State:
    return model.read(tokens(rows, 7, seed=seed))[1]


def apart(model: xLSTMLarge, x: Tensor, state: State, mask: Tensor | None, chunk: Tensor, of_chunk: State) -> Both:
    """By layers, as the call of both is; without the chunk's padding."""
    state, of_chunk = copied(state), copied(of_chunk)
    logits = model._stepped_by_layers(x, state, mask)
    return logits, model.read(chunk[:, PADS:], of_chunk)[0], state, of_chunk


def together(
    model: xLSTMLarge,
    x: Tensor,
    state: State,
    mask: Tensor | None,
    chunk: Tensor,
    of_chunk: State,
    replay: bool = False,
) -> Both:
    state, of_chunk = copied(state), copied(of_chunk)
    first = {block: layer[0].data_ptr() for block, layer in state.items()}
    logits, read = model.step_and_read(x, state, mask, chunk, of_chunk, padded(chunk), replay)
    assert all(layer[0].data_ptr() == first[block] for block, layer in state.items())  # in place
    return logits, read, state, of_chunk


def flat(both: Both) -> list[Tensor]:
    return [*both[:2], *(x for state in both[2:] for layer in state.values() for x in layer)]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("rows", [1, 2, 9, 65])
@pytest.mark.parametrize("weight_mode", ["single", "fused"])
@torch.no_grad()
def test_the_same_as_apart(rows: int, masked: bool, weight_mode: str) -> None:
    """In float64: sums of more rows may have another order. A masked row keeps its state to the bit."""
    model = small_model(dtype=torch.float64, weight_mode=weight_mode)
    state, of_chunk = states_of(model, rows, 2), states_of(model, 1, 3)
    x, chunk = tokens(rows, 1, seed=4)[:, 0], tokens(1, 20, seed=5)
    mask = torch.arange(rows) % 3 != 1 if masked else None
    actual = together(model, x, state, mask, chunk, of_chunk)
    for one, want in zip(flat(actual), flat(apart(model, x, state, mask, chunk, of_chunk)), strict=True):
        assert relative(one, want) < 1e-12
    if mask is not None:
        for block, layer in state.items():
            assert all(torch.equal(a[~mask], b[~mask]) for a, b in zip(actual[2][block], layer, strict=True))


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
@torch.no_grad()
def test_bfloat16(state_dtype: str) -> None:
    """No further from float64 than twice what apart is."""
    model = small_model(dtype=torch.bfloat16)
    model.config.inference_state_dtype = state_dtype
    true = small_model(dtype=torch.float64)
    true.load_state_dict(model.state_dict())
    state, of_chunk = states_of(model, 9, 2), states_of(model, 1, 3)
    assert state[0][0].dtype == getattr(torch, state_dtype)
    x, chunk = tokens(9, 1, seed=4)[:, 0], tokens(1, 20, seed=5)
    wide = [{b: tuple(part.double() for part in layer) for b, layer in one.items()} for one in (state, of_chunk)]
    want = apart(true, x, wide[0], None, chunk, wide[1])  # type: ignore[arg-type]
    actual, plain = (f(model, x, state, None, chunk, of_chunk) for f in (together, apart))
    for one, other, exact in zip(flat(actual), flat(plain), flat(want), strict=True):
        assert one.dtype == other.dtype
        assert relative(one, exact) <= 2 * relative(other, exact) + torch.finfo(torch.bfloat16).eps / 2


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    results = calls_for_graphs(monkeypatch)
    monkeypatch.setattr(large, "suits_graph", lambda x: x.shape[1] > 1 and x.numel() <= read_graphs.MOST_TOKENS)
    return results


@torch.no_grad()
def test_in_graphs(captures: list[Callable]) -> None:
    """The second call of rows' states and a shape is captured, and later ones have the bits of the first; a graph is
    for any sequence, and as many are kept as there are of steps. Results are not the graphs' memory.
    """
    model = small_model()
    decode_engine.keep_step_graphs(model, 2)
    states = [states_of(model, rows, 2) for rows in (2, 3)]
    kept: list[tuple[Tensor, Tensor]] = []
    for turn in range(4):
        for state in states:
            rows = state[0][0].shape[0]
            x, chunk, of_chunk = tokens(rows, 1, seed=turn)[:, 0], tokens(1, 8, seed=turn), states_of(model, 1, turn)
            mask = torch.arange(rows) != turn % rows
            want = together(model, x, state, mask, chunk, of_chunk)
            logits, read = model.step_and_read(x, state, mask, chunk, of_chunk, padded(chunk), True)
            actual = (logits, read, state, of_chunk)
            assert all(torch.equal(a, b) for a, b in zip(flat(actual), flat(want), strict=True))
            kept.append((logits, want[0]))
    assert len(captures) == 2
    assert all(torch.equal(a, b) for a, b in kept)
    graphs = read_graphs.read_graphs_of(decode_engine.engine_of(model, model._new_engine))
    assert len(graphs._with_steps) == 2
    decode_engine.keep_step_graphs(model, 1)
    x, chunk, of_chunk = tokens(2, 1)[:, 0], tokens(1, 9), states_of(model, 1, 0)
    for _ in range(2):
        model.step_and_read(x, states[0], None, chunk, of_chunk, None, True)
    assert len(graphs._with_steps) == 2  # two lengths beside one kind of step


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tokens": torch.zeros(2, 1, dtype=torch.int64)}, r"tokens: expected 1 dimensions \(B\), got 2"),
    ({"tokens": torch.tensor([0, 97])}, "x: expected token ids from 0 to 96"),
    ({"tokens": torch.zeros(3, dtype=torch.int64)}, "state"),
    ({"mask": torch.ones(3)}, "mask: expected"),
    ({"read_mask": torch.ones(1, 3)}, "read_mask: expected shape"),
    ({"x": torch.zeros(2, 4, dtype=torch.int64)}, "x: expected one sequence, got shape \\(2, 4\\)"),
    ({"state": {}}, "state: expected blocks 0 to 2, got"),
    ({"read_state": dict.fromkeys(range(3))}, "read_state: expected tensors in each block, not None"),
]


@pytest.mark.parametrize(("changes", "words"), BAD, ids=[f"{list(one)[0]} {n}" for n, (one, _) in enumerate(BAD)])
def test_bad_input_leaves_the_states(changes: dict[str, Any], words: str) -> None:
    model = small_model()
    given: dict[str, Any] = {
        "tokens": torch.tensor([1, 2]), "state": states_of(model, 2, 2), "mask": None, "x": tokens(1, 4),
        "read_state": states_of(model, 1, 3),
    }  # fmt: skip
    before = [copied(given[name]) for name in ("state", "read_state")]
    with pytest.raises((ValueError, TypeError, IndexError), match=words):
        model.step_and_read(**{**given, **changes})
    for state, old in zip((given["state"], given["read_state"]), before, strict=True):
        assert all(torch.equal(a, b) for n in old for a, b in zip(state[n], old[n], strict=True))
