# SPDX-License-Identifier: Apache-2.0
"""Spaces and searches: what is tried, that nothing is tried twice, and that the genetic search is one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from xlstm_hip._core.plans import CHOICES, Plan
from xlstm_hip.tune import GeneticSearch, Problem, RandomSearch, Search, Space, make_search, space_of
from xlstm_hip.tune.search import BATCH

SPACE = Space({"a": tuple(range(8)), "b": tuple(range(8)), "c": tuple(range(8))})
BEST = {"a": 5, "b": 2, "c": 6}
Landscape = Callable[[Plan], float | None]


def hill(plan: Plan) -> float:
    """Falls with each choice's distance from the best one."""
    return 2 - sum(abs(plan.get(name, 0) - value) for name, value in BEST.items()) / 10


def key(plan: Plan) -> tuple:
    return tuple(sorted(plan.items()))


def tried(search: Search, landscape: Landscape, most: int = 10**6) -> list[Plan]:
    plans: list[Plan] = []
    while len(plans) < most and (batch := search.ask()):
        plans += batch
        search.tell([landscape(plan) for plan in batch])
    return plans


@pytest.mark.parametrize("kind", ["random", "genetic"])
@pytest.mark.parametrize("landscape", [hill, lambda plan: None, lambda plan: 1.0])
def test_every_candidate_once(kind: str, landscape: Landscape) -> None:
    plans = tried(make_search(kind, SPACE, 0), landscape)
    assert len(plans) == len(SPACE.candidates()) == 8**3 - 1
    assert {key(plan) for plan in plans} == {key(plan) for plan in SPACE.candidates()}


@pytest.mark.parametrize("kind", ["random", "genetic"])
def test_the_seed_decides(kind: str) -> None:
    first, again, other_seed = (tried(make_search(kind, SPACE, seed), hill, 40) for seed in (3, 3, 4))
    assert first == again != other_seed


def test_the_genetic_search_learns() -> None:
    """It finds the best of 512 plans far sooner than chance, which needs 256 trials on average."""

    def needed(search: Search) -> int:
        return tried(search, hill).index(BEST)

    genetic = statistics.median(needed(GeneticSearch(SPACE, seed)) for seed in range(15))
    chance = statistics.median(needed(RandomSearch(SPACE, seed)) for seed in range(15))
    assert genetic < 100 < chance


def test_it_learns_from_what_it_is_told_alone() -> None:
    plain = tried(GeneticSearch(SPACE, 0), hill, 40)
    turned = tried(GeneticSearch(SPACE, 0), lambda plan: 4 - hill(plan), 40)
    assert plain[:BATCH] == turned[:BATCH] and plain != turned


def test_failures_have_no_children() -> None:
    def cliff(plan: Plan) -> float | None:
        return None if plan.get("a", 0) > 3 else hill(plan)

    def failed(kind: str) -> int:
        batches = (tried(make_search(kind, SPACE, seed), cliff, 120)[BATCH:] for seed in range(6))
        return sum(cliff(plan) is None for plans in batches for plan in plans)

    assert failed("genetic") < 0.8 * failed("random")


def test_bad_search() -> None:
    with pytest.raises(ValueError, match="search: expected one of 'random', 'genetic', got 'grid'"):
        make_search("grid", SPACE, 0)


@pytest.mark.parametrize("op", list(CHOICES))
def test_spaces_hold_what_a_cpu_has(op: str) -> None:
    space = space_of(Problem(op, length=512, dtype="float32", dqk=64, dhv=64), threads=2)
    assert set(space.values) <= set(CHOICES[op]) - {"walk_chunk", "step_columns", "common_schedule"}
    assert {} not in space.candidates() and space.shipped == {}
    assert all(values[0] == 0 and len(set(values)) == len(values) > 1 for values in space.values.values())
    assert len(space.candidates()) < math.prod(map(len, space.values.values()))
    for plan in space.candidates():
        assert "kernel" not in plan or set(plan) <= {"kernel", "chunk_size"}


def test_kernels_in_bands_have_a_space_of_their_own() -> None:
    problem = Problem("mlstm_chunkwise", heads=4, length=64, dtype="float32", dqk=16, dhv=16)
    queued = "chunkwise--queued_compiled_steps"
    space = space_of(problem, threads=2, kernel=queued)
    assert space.values == {
        "kernel": (queued,), "chunk_size": (0, 16, 32, 64), "heads_per_band": (0, 1, 2), "workers": (0, 1, 2),
    }  # fmt: skip
    assert len(space.candidates()) == 4 * 3 * 3 and all(plan["kernel"] == queued for plan in space.candidates())
    search = make_search("genetic", space, 0)
    proposed = []
    while batch := search.ask():
        proposed += batch
        search.tell([1.0] * len(batch))
    assert len(proposed) == 36
    for op, kernel in (("mlstm_chunkwise", "chunkwise--fused"), ("mlstm_backward", queued)):
        with pytest.raises(ValueError, match="kernel: expected one of mlstm_chunkwise in bands"):
            space_of(Problem(op, length=64, dqk=16, dhv=16), 2, kernel)
    with pytest.raises(ValueError, match="Unknown mLSTM chunkwise kernel 'foo'"):
        space_of(problem, 2, "foo")


def test_short_sequences_have_few_cuts() -> None:
    space = space_of(Problem("mlstm_backward", length=33), threads=4)
    assert max(space.values["segments"]) == 2 and max(space.values["chunk_size"]) == 32
    assert space_of(Problem("attention_forward", length=40, dqk=64, dhv=64), 2).values["splits"] == (0, 1)


def test_parts_of_rows_are_those_that_have_work() -> None:
    def parts(threads: int, **sizes: int) -> tuple:
        return space_of(Problem("attention_backward", dqk=64, dhv=64, **sizes), threads).values["parts"]

    assert parts(2, heads=2, length=40) == (0, 1, 2)  # 16 rows each
    assert parts(2, heads=2, heads_k=1, length=40) == (0, 1, 2, 3, 4)  # 80 rows
    assert parts(2, heads=2, heads_k=1, length=40, queries=1) == (0, 1)
    assert parts(1, heads=4, length=4000) == (0, 1, 2)  # heads of their own keep a thread busy
    assert parts(1, heads=8, batch=8, length=4000) == (0, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": "mlstm"}, "op: expected one of 'mlstm_chunkwise', .*, got 'mlstm'"),
        ({"dtype": "float64"}, "dtype: expected one of 'float32', 'bfloat16', 'float16', got 'float64'"),
        ({"device": "mps"}, "device: expected one of 'cpu'.*, got 'mps'"),
        ({"batch": 0}, "batch: expected an integer >= 1, got 0"),
        ({"heads": -1}, "heads: expected an integer >= 1, got -1"),
        ({"length": 0}, "length: expected an integer >= 1, got 0"),
        ({"dqk": 0}, "dqk: expected an integer >= 1, got 0"),
        ({"dhv": 0}, "dhv: expected an integer >= 1, got 0"),
        ({"heads_k": 2}, "heads_k: expected none for mlstm_chunkwise, got 2"),
        ({"queries": 2}, "queries: expected none for mlstm_chunkwise, got 2"),
        ({"causal": True}, "causal: expected none for mlstm_chunkwise, got True"),
        ({"op": "attention_forward", "heads_k": 3}, "heads_k: expected a divisor of the 8 heads, got 3"),
        ({"op": "mla_decode", "dqk": 64, "dhv": 65}, "dhv: expected at most dqk = 64 for mla_decode, .*, got 65"),
        ({"op": "attention_forward", "queries": -1}, "queries: expected >= 0, got -1"),
    ],
)
def test_bad_problems(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Problem(**{"op": "mlstm_chunkwise"} | options)
