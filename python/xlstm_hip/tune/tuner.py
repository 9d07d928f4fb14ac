# SPDX-License-Identifier: Apache-2.0
"""The run: trials until the budget is spent, then the best are measured again, checked, and written to the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core.checks import positive_int
from .._core.plans import Plan
from .engines import Engine
from .measure import FAILED, FINAL_PACE, OK, SEARCH_PACE, Pace, Result
from .problem import Problem
from .runs import BEST, Run, enter, entered, plan_text, write_json
from .search import Search

Judge = Callable[[dict[int, Plan], Path], dict[int, dict[str, Any]]]  # trials, folder for outputs -> verdicts
OUTPUTS = "outputs"
OLD = -1  # the number of the plan that the table has already


@dataclass(frozen=True)
class Outcome:
    """The entry that was made, or None and why not."""

    entry: dict[str, Any] | None
    why_not: str = ""


class Tuner:
    """A run of one problem. judge: of the winners' outputs; None: their trials are all that is known of them."""

    def __init__(
        self,
        problem: Problem,
        run: Run,
        engine: Engine,
        search: Search,
        judge: Judge | None = None,
        report: Callable[[int, Plan, Result], Any] = lambda number, plan, result: None,
    ) -> None:
        self.problem, self.run, self.engine, self.search = problem, run, engine, search
        self._judge, self._report = judge, report

    def explore(self, budget: int) -> None:
        """Trials up to the budget, those of the run's folder counted; interrupted, it can be called again.

        The search is told a batch when all of it is there, in the batch's order, so that neither an interruption nor
        the engine changes what it asks for next.
        """
        positive_int("budget", budget)
        first = 0
        while first < budget and (batch := self.search.ask()):
            numbered = dict(itertools.islice(enumerate(batch, first), budget - first))
            self._measured(numbered)
            if len(numbered) == len(batch):
                self.search.tell([self.run.trials[number][1].speedup for number in numbered])
            self.run.write_summary()
            first += len(batch)

    def _measured(self, numbered: dict[int, Plan]) -> None:
        for number in numbered.keys() & self.run.trials.keys():
            if self.run.trials[number][0] != numbered[number]:
                raise ValueError(
                    f"{self.run.folder}: trial {number} is of {plan_text(self.run.trials[number][0])}, where its seed "
                    f"and settings give {plan_text(numbered[number])}: the run is of another version, or was changed"
                )
        missing = {number: plan for number, plan in numbered.items() if number not in self.run.trials}
        for number, result in self._trials_of_arch(missing, SEARCH_PACE):
            self.run.add(number, missing[number], result)
            self._report(number, missing[number], result)

    def _trials_of_arch(self, plans: dict[int, Plan], pace: Pace) -> Any:
        """Trials; one that another kind of machine did says nothing of this."""
        for number, result in self.engine.run(self.problem, plans, pace):
            if result.status == OK and result.arch != self.run.meta["settings"]["arch"]:
                text = f"measured on {result.arch}, not on {self.run.meta['settings']['arch']}"
                result = Result(FAILED, text, result.arch)
            yield number, result

    def finish(self, finalists: int, table: Path) -> Outcome:
        """Measures the best again beside the shipped plan, for longer; the fastest that wins and whose outputs hold is
        put into the table. The table's plan for this call is one of those measured, and is removed if it does not
        win."""
        positive_int("finalists", finalists)
        call = {"op": self.problem.op, "arch": self.run.meta["settings"]["arch"], "class": self.problem.shape_class()}
        ranked = sorted(self.run.trials.items(), key=lambda one: (-one[1][1].speedup_or_zero, one[0]))
        plans = {number: plan for number, (plan, result) in ranked[:finalists] if result.speedup_or_zero > 1}
        old = entered(table, call)
        if old is not None and old not in plans.values():
            plans[OLD] = old
        again = dict(self._trials_of_arch(plans, FINAL_PACE))
        winners = sorted((n for n in plans if again[n].wins), key=lambda n: -again[n].speedup_or_zero)
        judged: dict[int, dict[str, Any]] = {}
        if winners and self._judge is not None:
            judged = self._judge({n: plans[n] for n in winners}, self.run.folder / OUTPUTS)
        passed = [n for n in winners if not judged.get(n, {}).get("refused")]
        entry, why_not = None, ""
        if passed:
            speedup = round(again[passed[0]].speedup_or_zero, 4)
            entry = call | {"plan": dict(plans[passed[0]]), "speedup": speedup, "run": self.run.folder.name}
        elif winners:
            why_not = "; ".join(f"trial {n} is refused: {judged[n]['refused']}" for n in winners)
        elif plans:
            most = max(result.speedup_or_zero for result in again.values())
            why_not = f"measured again, the best is {most:.3f} times as fast as the shipped plan: no gain"
        else:
            why_not = "no trial was faster than the shipped plan"
        rows = [{"trial": n, "plan": plans[n], "again": again[n].as_json(), "judged": judged.get(n)} for n in plans]
        write_json(self.run.folder / BEST, {"entry": entry, "why_not": why_not, "finalists": rows})
        enter(table, call, entry)
        return Outcome(entry, why_not)
