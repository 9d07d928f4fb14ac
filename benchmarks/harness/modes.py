# SPDX-License-Identifier: Apache-2.0
"""The same work as a user calls it, in a graph, and as one replay of one call, over inputs that do not stay in L2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xlstm_hip.bench.contest import Advance, Contest, Entry, failure, reason
from xlstm_hip.bench.machine import Machine, taking_turns
from xlstm_hip.bench.registry import Call, Implementation, Tensors
from xlstm_hip.bench.timing import COLD_SAMPLES, Pace, Samples, interleaved, spread
from xlstm_hip.bench.triton_compiler import compiling

EAGER, GRAPH, REPLAY = "eager", "graph", "one replay"
MODES = (EAGER, GRAPH, REPLAY)
Timed = dict[tuple[str, str], Call]  # by whose it is, and the mode


def entered(contest: Contest, x: Implementation, sets: list[Tensors], one_call: bool) -> tuple[Entry, Timed]:
    """The entries as far as they are known before the rounds, and the calls to time. sets: of inputs, the first the
    contest's own; one_call: one replay of a single call counts, not what the host does."""
    machine = contest.machine
    entry, call = contest.enter(x)
    if call is None:
        return entry, {}
    try:
        with compiling(x):
            calls = [call, *(x.prepare(contest.cell, inputs) for inputs in sets[1:])]
            for other_call in calls[1:]:
                other_call()
            machine.synchronize()
    except Exception as error:
        return failure(machine, entry, error), {}
    entry["peak_bytes"] = machine.peak_bytes(calls[0])
    entry["host_ms"] = machine.host_ms(taking_turns(calls))
    timed: Timed = {} if one_call else {(x.name, EAGER): taking_turns(calls)}
    try:
        timed[x.name, GRAPH] = machine.graph_of(calls)  # of all sets: its time is theirs together
        if one_call:
            timed[x.name, REPLAY] = machine.graph_of(calls[:1])
    except Exception as error:
        entry["no graph"] = reason(machine, entry, error)
        timed[x.name, EAGER] = taking_turns(calls)
    return entry, timed


def race(timed: Timed, machine: Machine, pace: Pace, advance: Advance) -> dict[tuple[str, str], Samples]:
    """Samples by whose and mode. A single replay is timed with a cold L2, as a step meets its states; all else back
    to back."""
    samples: dict[tuple[str, str], Samples] = {}
    for cold in (False, True):
        calls = {key: call for key, call in timed.items() if (key[1] == REPLAY) == cold}
        if calls:
            clock = machine.cold_seconds if cold else machine.seconds
            scaled_pace = replace(pace, sample_seconds=pace.sample_seconds / COLD_SAMPLES) if cold else pace
            samples_of = interleaved({"\n".join(key): call for key, call in calls.items()}, scaled_pace, advance, clock)
            samples |= {key: samples_of["\n".join(key)] for key in calls}
    return samples


def compare(
    contest: Contest,
    sets: list[Tensors],
    one_call: bool,
    floors: Mapping[str, Call],  # what one replay of a call cannot be faster than
    pace: Pace,
    advance: Advance,
) -> tuple[list[Entry], dict[str, float]]:
    """All of an operator's implementations, each with its times of one call by mode; and the floors' ms."""
    machine = contest.machine
    entries: list[Entry] = []
    timed: Timed = {}
    for x in contest.operator.implementations:
        entry, calls = entered(contest, x, sets, one_call)
        entries.append(entry)
        timed |= calls
    contest.forget_truth()
    below = {(name, REPLAY): machine.graph_of([call]) for name, call in floors.items()}
    samples = race(timed | below, machine, pace, advance)
    for entry in entries:
        for mode in MODES:
            sample = samples.get((entry["name"], mode))
            if sample is not None:
                ms = [x / (len(sets) if mode == GRAPH else 1) for x in sample.ms]
                entry[mode] = {**spread(ms), "samples": ms}
    return entries, {name: spread(samples[name, mode].ms)["median"] for name, mode in below}
