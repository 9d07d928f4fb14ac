# SPDX-License-Identifier: Apache-2.0
"""Implementations at one shape: each is checked against the truth, then they are timed in alternating rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from .machine import Machine, lost
from .registry import XLSTM_HIP, Call, Implementation, Operator, Tensors, work_of
from .timing import Clock, Pace, Samples, interleaved, paired_ratio
from .triton_compiler import compiling

Advance = Callable[[float], None]
Entry = dict[str, Any]
Lost = Mapping[tuple[str, str], str]  # (implementation, what its trial is called) to a reason
LATE = "left out for time"
WORDS = 160  # characters of a reason


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:WORDS]


def reason(machine: Machine, entry: Entry, error: Exception) -> str:
    """In words. One that cost the process its GPU ends the run: whatever comes next would be blamed for it."""
    if lost(machine.device):
        raise SystemExit(f"{entry['name']}: {words_of(error)}; the GPU is lost to this process") from error
    return words_of(error)


def failure(machine: Machine, entry: Entry, error: Exception) -> Entry:
    """The entry with it: a failure of ours is one of the run, a peer's is a result."""
    return entry | {"failed" if entry["provider"] == XLSTM_HIP else "missing": reason(machine, entry, error)}


class Contest:
    """The comparison of an operator's implementations at one cell. Inputs and truth are computed at their first use."""

    def __init__(self, operator: Operator, cell: Any, machine: Machine, lost: Lost | None = None) -> None:
        self.operator, self.cell, self.machine, self.lost = operator, cell, machine, lost or {}
        self.first_seconds: dict[str, float] = {}  # of each implementation's first call

    @cached_property
    def inputs(self) -> Tensors:
        return self.operator.inputs(self.cell, self.machine.device)

    @cached_property
    def truth(self) -> Tensors:
        return self.operator.truth(self.cell, self.inputs)

    def forget_truth(self) -> None:
        """Gives back its memory before the rounds."""
        self.__dict__.pop("truth", None)

    def absent(self, x: Implementation) -> str | None:
        """Why it is not begun with."""
        lost = self.lost.get((x.name, work_of(self.operator, self.cell)))
        why = x.missing(self.machine.device) or lost or x.beyond(self.cell) or None
        needs, free = x.needs(self.cell), self.machine.free_bytes()
        if why is None and needs > free:
            why = f"needs {needs / 1e9:.0f} GB of the {free / 1e9:.0f} GB that are free"
        return why

    def enter(self, x: Implementation) -> tuple[Entry, Call | None]:
        """The entry as far as it is known before the rounds, and the call to time; None if there is nothing to time."""
        entry: Entry = {"name": x.name, "provider": x.provider}
        why = self.absent(x)
        if why is not None:
            return entry | {"missing": why}, None
        try:
            with compiling(x):
                call = x.prepare(self.cell, self.inputs)
                begin = time.monotonic()
                results = call()
                self.machine.synchronize()
                self.first_seconds[x.name] = time.monotonic() - begin
            if x.exact:
                entry["errors"] = (x.errors or self.operator.errors)(self.cell, results, self.truth)
                most = self.operator.exact[self.cell.dtype]
                entry["inexact"] = [name for name, error in entry["errors"].items() if not error <= most]
            del results
        except Exception as error:  # a peer's failure is a result, and so is ours
            return failure(self.machine, entry, error), None
        if x.provider == XLSTM_HIP and entry.get("inexact"):
            return entry | {"failed": f"wrong: {', '.join(entry['inexact'])}; not timed"}, None
        return entry, call

    def enter_or_end(self, x: Implementation) -> tuple[Entry, Call | None]:
        """As enter, for benchmarks of this package's results: if one of its implementations is wrong or fails, the run
        ends."""
        entry, call = self.enter(x)
        if "failed" in entry:
            errors = ", ".join(f"{name} {error:.3g}" for name, error in entry.get("errors", {}).items())
            words = f"; errors: {errors}; expected at most {self.operator.exact[self.cell.dtype]}" if errors else ""
            raise SystemExit(f"{self.cell.title}: {x.name}: {entry['failed']}{words}")
        return entry, call


def race(
    entries: Iterable[Entry],
    calls: Mapping[str, Call],
    pace: Pace,
    advance: Advance,
    clock: Clock,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Samples]:
    """The rounds of all the calls. Entries by those names get their times, and beside them how many times as long as
    the first of ours they took, by the rounds' own ratios."""
    samples = interleaved(calls, pace, advance, clock, failed)
    timed = [entry for entry in entries if entry["name"] in samples]
    reference_ms = next((samples[entry["name"]].ms for entry in timed if entry.get("provider") == XLSTM_HIP), None)
    for entry in timed:
        sample = samples[entry["name"]]
        entry["ms"] = sample.as_json()
        if reference_ms is not None:
            entry["times_ours"] = paired_ratio(sample.ms, reference_ms)
    return samples
