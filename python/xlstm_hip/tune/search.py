# SPDX-License-Identifier: Apache-2.0
"""The choice and order of the plans that are tried: at random, or by a genetic algorithm.

A search hands out batches and is told their results. Its batches depend only on its seed and on those results,
so an interrupted run continues with the same candidates. No plan is tried twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from .._core.checks import one_of
from .._core.plans import Plan
from .space import Space

BATCH = 8  # candidates at a time: what an engine may measure side by side


class Search(Protocol):
    def ask(self) -> list[Plan]:
        """The next plans, none when all have been tried."""

    def tell(self, speedups: Sequence[float | None]) -> None:
        """Takes the speedups of the last batch of plans, in their order; None for a plan that failed."""


class RandomSearch:
    """All candidates, shuffled."""

    def __init__(self, space: Space, seed: int) -> None:
        self._left = space.candidates()
        random.Random(seed).shuffle(self._left)

    def ask(self) -> list[Plan]:
        batch, self._left = self._left[:BATCH], self._left[BATCH:]
        return batch

    def tell(self, speedups: Sequence[float | None]) -> None:
        """Nothing follows from it."""


class GeneticSearch:
    """A first batch at random; then children of the best so far.

    Parents are the best of three, drawn from the best `POOL` of all that were measured. A child has each choice from
    one of two parents, and changes each with probability `MUTATION`. One that was tried before is changed until it is
    new; where that does not end, a candidate is drawn among those that are left.
    """

    POOL, MUTATION, TRIES = 12, 0.2, 32

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._random = random.Random(seed)
        self._left = {_key(plan): plan for plan in space.candidates()}
        self._proposed: list[Plan] = []
        self._pool: list[tuple[float, Plan]] = [(1.0, space.shipped)]  # which is as fast as itself

    def ask(self) -> list[Plan]:
        first = len(self._pool) == 1 and not self._proposed
        self._proposed = []
        while self._left and len(self._proposed) < BATCH:
            plan = self._drawn() if first else self._child()
            del self._left[_key(plan)]
            self._proposed.append(plan)
        return self._proposed

    def tell(self, speedups: Sequence[float | None]) -> None:
        measured = zip(speedups, self._proposed, strict=True)
        self._pool += [(speedup, plan) for speedup, plan in measured if speedup is not None]
        self._pool.sort(key=lambda one: -one[0])
        del self._pool[self.POOL :]

    def _drawn(self) -> Plan:
        return self._left[self._random.choice(list(self._left))]

    def _parent(self) -> Plan:
        return max(self._random.choices(self._pool, k=3), key=lambda one: one[0])[1]

    def _child(self) -> Plan:
        pair = (self._parent(), self._parent())
        genes = {name: self._random.choice(pair).get(name, 0) for name in self._space.values}
        for _ in range(self.TRIES):
            for name, values in self._space.values.items():
                if self._random.random() < self.MUTATION:
                    genes[name] = self._random.choice(values)
            plan = {name: value for name, value in genes.items() if value}
            if _key(plan) in self._left:
                return plan
        return self._drawn()


SEARCHES: dict[str, Callable[[Space, int], Search]] = {"random": RandomSearch, "genetic": GeneticSearch}


def make_search(name: str, space: Space, seed: int) -> Search:
    one_of("search", name, tuple(SEARCHES))
    return SEARCHES[name](space, seed)


def _key(plan: Plan) -> tuple:
    return tuple(sorted(plan.items()))
