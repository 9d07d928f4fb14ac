# SPDX-License-Identifier: Apache-2.0
"""Slots: a request's state stays its own through joins, leaves, moves and masks; a step has as few rows as it can."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.serving import serving_model
from xlstm_hip.serving.slots import Slots, state_bytes

COUNT = 9
MODEL = serving_model()
NO_TOKENS = np.zeros(0, dtype=np.int32)


def fill(slots: Slots, id: str, value: float) -> None:
    for layer in slots.state_of(id).values():
        for x in layer:
            x.fill_(value)


def is_filled(slots: Slots, id: str, value: float) -> bool:
    return all(bool((x == value).all()) for layer in slots.state_of(id).values() for x in layer)


def slots_of(count: int = COUNT, graphs: bool = False, fixed: bool = False) -> Slots:
    slots = Slots(MODEL, count, fixed)
    slots._graphs = graphs  # as on a GPU
    return slots


def test_a_step_reads_the_rows_where_they_lie() -> None:
    slots = slots_of()
    for n in range(3):
        slots.claim(str(n)), slots.decode(str(n))
    batch = slots.batch()
    assert batch.ids == ["0", "1", "2"] and batch.mask is None and slots.moves == 3  # up to the bottom, once each
    assert all(x.is_contiguous() and x.shape[0] == 3 for layer in batch.state.values() for x in layer)
    assert batch.state[0][0].data_ptr() == slots._rows[0][0].data_ptr()
    assert state_bytes(batch.state) == 3 * slots.row_bytes


def test_one_that_leaves_costs_one_move_at_most() -> None:
    slots = slots_of()
    for n in range(6):
        slots.claim(str(n)), slots.decode(str(n)), fill(slots, str(n), n + 1)
    moves = slots.moves
    slots.release("5")
    assert slots.batch().ids == ["0", "1", "2", "3", "4"] and slots.moves == moves
    slots.release("1")
    assert slots.batch().ids == ["0", "4", "2", "3"] and slots.moves == moves + 1
    slots.release("0")
    slots.claim("new"), slots.decode("new")  # joins where the other left
    assert slots.batch().ids == ["new", "4", "2", "3"] and slots.moves == moves + 2
    assert all(is_filled(slots, id, int(id) + 1) for id in "432")


def test_on_a_gpu_gaps_are_masked_until_a_smaller_graph_will_do() -> None:
    slots = slots_of(16, graphs=True)
    for n in range(8):
        slots.claim(str(n)), slots.decode(str(n)), fill(slots, str(n), n)
    moves = slots.moves
    for id in ("1", "2"):
        slots.release(id)
    batch = slots.batch()
    assert batch.ids == ["0", None, None, "3", "4", "5", "6", "7"] and slots.moves == moves
    assert batch.mask is not None and batch.mask.tolist() == [id is not None for id in batch.ids]
    slots.release("5"), slots.release("6")
    batch = slots.batch()
    assert batch.ids == ["0", "7", "4", "3"] and all(is_filled(slots, id, int(id)) for id in "0347")
    for n in range(20, 26):
        slots.claim(str(n)), slots.decode(str(n))
    assert len(slots.batch().ids) == 16  # ten rows


def test_fixed_rows() -> None:
    slots = slots_of(fixed=True)
    slots.claim("a"), slots.decode("a")
    assert slots.batch().ids == ["a", *[None] * 8]


def test_a_new_request_has_the_initial_state() -> None:
    slots = slots_of(1)
    slots.claim("a"), fill(slots, "a", float("nan")), slots.release("a"), slots.claim("b")
    assert is_filled(slots, "b", 0.0)


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_kept_state_comes_back(state_dtype: str) -> None:
    model = serving_model(inference_state_dtype=state_dtype)
    slots = Slots(model, 3)
    slots.claim("a")
    logits, _ = model.read(torch.arange(20).unsqueeze(0), slots.state_of("a"))
    kept = slots.keep("a", np.arange(20, dtype=np.int32), logits)
    assert kept.state[0][0].dtype == getattr(torch, state_dtype) and kept.nbytes > slots.row_bytes
    want = {n: [x.clone() for x in layer] for n, layer in slots.state_of("a").items()}
    slots.release("a"), slots.claim("b"), slots.claim("c"), slots.load("c", kept.state)
    actual = slots.state_of("c")
    assert all(torch.equal(x, y) for n in want for x, y in zip(want[n], actual[n], strict=True))
    assert is_filled(slots, "b", 0.0)


class AnyCourse(RuleBasedStateMachine):
    """Each request's state holds its number, whatever rows it comes to lie in."""

    @initialize(graphs=st.booleans())
    def begin(self, graphs: bool) -> None:
        self.slots, self.numbers, self.decoding, self.count = slots_of(graphs=graphs), {}, set(), 0

    @precondition(lambda self: len(self.numbers) < COUNT)
    @rule()
    def claim(self) -> None:
        self.count += 1
        id = str(self.count)
        self.slots.claim(id)
        assert is_filled(self.slots, id, 0.0)
        fill(self.slots, id, self.count)
        self.numbers[id] = self.count

    @precondition(lambda self: set(self.numbers) - self.decoding)
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(set(self.numbers) - self.decoding)))
        self.slots.decode(id)
        self.decoding.add(id)

    @precondition(lambda self: self.numbers)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.numbers)))
        self.slots.release(id)
        del self.numbers[id]
        self.decoding.discard(id)

    @precondition(lambda self: self.decoding)
    @rule()
    def step(self) -> None:
        batch = self.slots.batch()
        assert sorted(id for id in batch.ids if id is not None) == sorted(self.decoding)
        assert self.slots._graphs or len(batch.ids) == len(self.decoding)
        for row, id in enumerate(batch.ids):
            if id is not None:
                assert all(bool((x[row] == self.numbers[id]).all()) for layer in batch.state.values() for x in layer)

    @invariant()
    def all_keep_their_own(self) -> None:
        if hasattr(self, "slots"):
            assert self.slots.used == len(self.numbers) and self.slots.decoding == len(self.decoding)
            assert all(is_filled(self.slots, id, number) for id, number in self.numbers.items())


AnyCourse.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestAnyCourse = AnyCourse.TestCase
