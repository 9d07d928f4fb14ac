# SPDX-License-Identifier: Apache-2.0
"""A run: what is recorded, what is refused, and that it goes on where it was interrupted."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from xlstm_hip._core import plans
from xlstm_hip._core.atomic_files import write_atomically
from xlstm_hip._core.plans import Plan
from xlstm_hip.tune import Problem, Tuner, make_search, space_of
from xlstm_hip.tune import problem as problems
from xlstm_hip.tune.engines import LocalEngine, RayEngine, make_engine
from xlstm_hip.tune.measure import FAILED, FINAL_PACE, OK, SEARCH_PACE, WRONG, Pace, Result, measure
from xlstm_hip.tune.runs import BEST, META, SUMMARY, TRIALS, Run, ensure_table, enter

PROBLEM = Problem("mlstm_chunkwise", dtype="float32", heads=2, length=96, dqk=16, dhv=16)
QUICK = Pace(2, 1e-4)
THREADS = 2
Speed = Callable[[Plan, Pace], float]


def result(speedup: float, pace: Pace = SEARCH_PACE, arch: str | None = None) -> Result:
    ms = tuple(1.0 for _ in range(pace.rounds))
    return Result(OK, "", arch or PROBLEM.arch, 0.1, 0.5, ms, tuple(speedup for _ in ms))


class FakeEngine:
    """Trials that take no time. `stop`: Ctrl-C comes instead of that trial."""

    def __init__(self, speed: Speed, stop: int | None = None, backwards: bool = False) -> None:
        self.speed, self.stop, self.backwards, self.runs = speed, stop, backwards, 0

    def run(self, problem: Problem, plans: dict[int, Plan], pace: Pace) -> Iterator[tuple[int, Result]]:
        for number in sorted(plans, reverse=self.backwards):
            if self.stop is not None and self.runs >= self.stop:
                raise KeyboardInterrupt
            self.runs += 1
            yield number, result(self.speed(plans[number], pace), pace)

    def close(self) -> None:
        pass


def as_chunks(plan: Plan, pace: Pace) -> float:
    """Chunks of 32 are the best, more segments the worse, and so is another kernel."""
    if "kernel" in plan:
        return 0.1
    return {32: 1.5, 16: 1.2}.get(plan.get("chunk_size", 64), 0.9) - 0.1 * plan.get("segments", 0)


def new_run(folder: Path, **more: Any) -> Run:
    return Run.create(folder, "cpu", "test", {"arch": PROBLEM.arch, "device": "cpu"} | more)


def tuner(run: Run, engine: Any, judge: Any = None, kind: str = "genetic") -> Tuner:
    return Tuner(PROBLEM, run, engine, make_search(kind, space_of(PROBLEM, THREADS), 5), judge)


def new_table(folder: Path) -> Path:
    ensure_table(folder / "tables" / "plans.json")
    return folder / "tables" / "plans.json"


def test_a_faster_plan_is_entered(tmp_path: Path) -> None:
    run, table = new_run(tmp_path), new_table(tmp_path)
    one = tuner(run, FakeEngine(as_chunks))
    one.explore(20)
    outcome = one.finish(3, table)
    assert outcome.entry is not None and outcome.entry["plan"] == {"chunk_size": 32}
    assert plans.read_table(table) == [outcome.entry] and outcome.entry["speedup"] == 1.5
    assert outcome.entry["class"]["length"] == 128 and outcome.entry["run"] == run.folder.name
    meta = json.loads((run.folder / META).read_text())
    assert meta["settings"]["arch"] == PROBLEM.arch and meta["device"]["kind"] == "cpu"
    lines = [json.loads(line) for line in (run.folder / TRIALS).read_text().splitlines()]
    assert [line["trial"] for line in lines] == list(range(20)) and all(line["status"] == OK for line in lines)
    with (run.folder / SUMMARY).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and rows[0]["speedup"] == str(lines[0]["speedup"])
    best = json.loads((run.folder / BEST).read_text())
    assert best["entry"] == outcome.entry and [row["plan"] for row in best["finalists"]][0] == {"chunk_size": 32}
    assert sorted(p.name for p in run.folder.iterdir()) == sorted((META, TRIALS, SUMMARY, BEST))  # nothing half-written


def test_a_plan_that_is_slower_when_measured_again_is_not_entered(tmp_path: Path) -> None:
    """Planted: trials that looked fast by chance."""
    run, table = new_run(tmp_path), new_table(tmp_path)
    one = tuner(run, FakeEngine(lambda plan, pace: 1.3 if pace is SEARCH_PACE else 0.97))
    one.explore(10)
    outcome = one.finish(3, table)
    assert outcome.entry is None and "the best is 0.970 times as fast as the shipped plan: no gain" in outcome.why_not
    assert plans.read_table(table) == []
    assert json.loads((run.folder / BEST).read_text())["why_not"] == outcome.why_not


def test_no_trial_that_is_faster(tmp_path: Path) -> None:
    run, table = new_run(tmp_path), new_table(tmp_path)
    one = tuner(run, FakeEngine(lambda plan, pace: 0.8))
    one.explore(10)
    assert one.finish(3, table).why_not == "no trial was faster than the shipped plan"


@pytest.mark.parametrize(
    ("ratios", "wins"),
    [([1.1] * 21, True), ([1.015] * 21, False), ([1.2] * 15 + [0.9] * 6, False), ([1.2] * 16 + [0.9] * 5, True)],
)
def test_what_wins(ratios: list[float], wins: bool) -> None:
    assert Result(OK, ms=(1.0,) * 21, shipped_ms=tuple(ratios)).wins == wins
    assert not Result(FAILED, ms=(1.0,) * 21, shipped_ms=(9.0,) * 21).wins
    assert FINAL_PACE.rounds == 21


def test_the_tables_own_plan_is_measured_again(tmp_path: Path) -> None:
    run, table = new_run(tmp_path), new_table(tmp_path)
    call = {"op": PROBLEM.op, "arch": PROBLEM.arch, "class": PROBLEM.shape_class()}
    other_entry = call | {"arch": "avx2/77", "plan": {"segments": 2}}
    old = call | {"plan": {"chunk_size": 32, "walk_chunk": 16}}
    enter(table, call, old)
    enter(table, other_entry, other_entry)
    one = tuner(run, FakeEngine(lambda plan, pace: 2.0 if "walk_chunk" in plan else 1.1))
    one.explore(4)
    outcome = one.finish(2, table)
    assert outcome.entry is not None and outcome.entry["plan"] == old["plan"]
    assert sorted(x["arch"] for x in plans.read_table(table)) == sorted(("avx2/77", PROBLEM.arch))
    one.engine = FakeEngine(lambda plan, pace: 0.9)
    assert one.finish(2, table).entry is None
    assert plans.read_table(table) == [other_entry]  # what no longer wins goes


def test_a_refused_plan_gives_way_to_the_next(tmp_path: Path) -> None:
    run, table = new_run(tmp_path), new_table(tmp_path)

    def judge(trials: dict[int, Plan], folder: Path) -> dict[int, dict[str, Any]]:
        return {n: {"refused": "perplexity" if plan == {"chunk_size": 32} else ""} for n, plan in trials.items()}

    one = tuner(run, FakeEngine(as_chunks), judge)
    one.explore(20)
    entry = one.finish(3, table).entry
    assert entry is not None and entry["plan"] != {"chunk_size": 32}
    one = tuner(run, FakeEngine(as_chunks), lambda trials, folder: {n: {"refused": "all bad"} for n in trials})
    outcome = one.finish(1, table)
    assert outcome.entry is None and outcome.why_not.endswith("is refused: all bad")
    assert plans.read_table(table) == []


# ---- going on


def recorded(run: Run) -> dict[int, Plan]:
    return {number: plan for number, (plan, _) in sorted(Run.open(run.folder).trials.items())}


@pytest.mark.parametrize("kind", ["genetic", "random"])
@pytest.mark.parametrize("stop", [0, 1, 5, 8, 13])
@pytest.mark.parametrize("backwards", [False, True])
def test_an_interrupted_run_goes_on_with_the_same_candidates(
    tmp_path: Path, kind: str, stop: int, backwards: bool
) -> None:
    uninterrupted = new_run(tmp_path / "whole")
    tuner(uninterrupted, FakeEngine(as_chunks), kind=kind).explore(20)
    run = new_run(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        tuner(run, FakeEngine(as_chunks, stop, backwards), kind=kind).explore(20)
    assert len(recorded(run)) == stop
    engine = FakeEngine(as_chunks)
    tuner(Run.open(run.folder), engine, kind=kind).explore(20)
    assert recorded(run) == recorded(uninterrupted) and engine.runs == 20 - stop


def test_a_larger_budget_goes_on(tmp_path: Path) -> None:
    reference_run, run = new_run(tmp_path / "whole"), new_run(tmp_path / "less")
    tuner(reference_run, FakeEngine(as_chunks)).explore(21)
    tuner(run, FakeEngine(as_chunks)).explore(10)
    tuner(Run.open(run.folder), FakeEngine(as_chunks)).explore(21)
    assert recorded(run) == recorded(reference_run)


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    tuner(run, FakeEngine(as_chunks)).explore(6)
    before = recorded(run)
    with (run.folder / TRIALS).open("a") as file:
        file.write('{"trial": 6, "pl')
    assert recorded(run) == before
    tuner(Run.open(run.folder), FakeEngine(as_chunks)).explore(8)
    assert len(recorded(run)) == 8


def test_another_runs_trials_are_an_error(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    tuner(run, FakeEngine(as_chunks)).explore(6)
    path = run.folder / TRIALS
    path.write_text(path.read_text().replace('"trial": 2, "plan": {', '"trial": 2, "plan": {"splits": 7, '))
    with pytest.raises(ValueError, match="trial 2 is of splits=7.*, where its seed and settings give"):
        tuner(Run.open(run.folder), FakeEngine(as_chunks)).explore(8)
    path.write_text('{"trial": 1}\n')
    with pytest.raises(ValueError, match="trials.jsonl: line 1: expected a trial"):
        Run.open(run.folder)
    with pytest.raises(ValueError, match="resume: expected the folder of a run with run_meta.json, got .*nowhere"):
        Run.open(tmp_path / "nowhere")


def test_trials_of_another_machine_do_not_count(tmp_path: Path) -> None:
    run = new_run(tmp_path, arch="gfx942/304")
    tuner(run, FakeEngine(as_chunks)).explore(2)
    assert [r.status for _, r in run.trials.values()] == [FAILED] * 2
    assert f"measured on {PROBLEM.arch}, not on gfx942/304" in run.trials[0][1].error


@pytest.mark.parametrize("tag", ["", "a/b", "a b"])
def test_bad_tag(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ValueError, match="tag: expected letters"):
        Run.create(tmp_path, "cpu", tag, {"device": "cpu"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [lambda t: t.explore(0), lambda t: t.finish(0, Path("x"))])
def test_bad_numbers(tmp_path: Path, call: Callable[[Tuner], Any]) -> None:
    with pytest.raises(ValueError, match="(budget|finalists): expected an integer >= 1, got 0"):
        call(tuner(new_run(tmp_path), FakeEngine(as_chunks)))


def test_files_are_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "before")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "after")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


# ---- trials


@pytest.mark.parametrize("op", problems.OPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_plan_of_the_space_is_right(op: str, dtype: str) -> None:
    """Each is measured; none may be off."""
    length = 1 if op == "mlstm_step" else 80
    problem = Problem(op, dtype=dtype, batch=2, heads=2, length=length, dqk=16, dhv=16 if op == "mla_decode" else 24)
    for plan in [{}, *space_of(problem, THREADS).candidates()]:
        result = measure(problem, plan, Pace(1, 1e-6), THREADS)
        assert result.status == OK, (plan, result.error)
        assert (
            len(result.ms) == len(result.shipped_ms) == 1 and min(result.ms) > 0 and 0 < result.share_of_tolerance <= 1
        )


def test_a_trial_that_raises_is_recorded(tmp_path: Path) -> None:
    result = measure(PROBLEM, {"kernel": "chunkwise--none"}, QUICK, THREADS)
    assert result.status == FAILED and "chunkwise--none" in result.error and result.speedup is None
    run = new_run(tmp_path)
    run.add(0, {"kernel": "chunkwise--none"}, result)
    assert Run.open(run.folder).trials == run.trials
    run.write_summary()
    assert "failed,,,," in (run.folder / SUMMARY).read_text()


def test_a_plan_that_changes_results_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: one that is off by 1 in 1000."""
    right = problems.call_of

    def planted(problem: Problem, x: Any, plan: Plan) -> Callable[[], Any]:
        call = right(problem, x, plan)
        off = 1.001 if plan.get("segments") == 2 else 1.0
        return lambda: (call()[0] * off, *call()[1:])

    monkeypatch.setattr(problems, "call_of", planted)
    assert measure(PROBLEM, {"segments": 1}, QUICK, THREADS).status == OK
    result = measure(PROBLEM, {"segments": 2}, QUICK, THREADS)
    assert result.status == WRONG and "result 0: error 0.001, allowed are" in result.error and not result.wins


def misbehaves(problem: Problem, plan: Plan, pace: Pace, threads: int) -> Result:
    if plan.get("segments") == 1:
        os._exit(7)
    if plan.get("segments") == 2:
        time.sleep(60)
    return Result(OK, "", problem.arch, 0.0, 0.5, (1.0,), (1.1,))


def test_what_kills_a_trial_does_not_kill_the_run() -> None:
    engine = LocalEngine(THREADS, 30, misbehaves)
    try:
        results = dict(engine.run(PROBLEM, {0: {"segments": 1}, 1: {}}, QUICK))
        engine._seconds = 0.2
        results |= dict(engine.run(PROBLEM, {2: {"segments": 2}}, QUICK))
        engine._seconds = 30
        results |= dict(engine.run(PROBLEM, {3: {}}, QUICK))
    finally:
        engine.close()
    assert [results[n].status for n in range(4)] == [FAILED, OK, FAILED, OK]
    assert results[0].error == "the process ended with code 7" and results[2].error == "no result after 0.2 seconds"


def test_bad_engines() -> None:
    with pytest.raises(ValueError, match="engine: expected one of 'local', 'ray', got 'slurm'"):
        make_engine("slurm", 1, 1.0)
    with pytest.raises(ValueError, match="ray_address: expected none with engine 'local', got 'auto'"):
        make_engine("local", 1, 1.0, "auto")


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install .xlstm_hip\[ray\]"):
        make_engine("ray", 1, 1.0)


@pytest.mark.rows("ci")
def test_ray_spreads_real_trials(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        run = Run.create(tmp_path, "cpu", "ray", {"arch": plans.arch_of("cpu"), "device": "cpu"})
        run.meta["settings"]["arch"] = PROBLEM.arch.rpartition("/")[0] + "/1"
        engine = RayEngine(1, 120)
        tuner(run, engine, kind="random").explore(3)
        assert sorted(run.trials) == [0, 1, 2] and {r.status for _, r in run.trials.values()} == {OK}
        results = dict(engine.run(PROBLEM, {0: {"kernel": "chunkwise--none"}}, QUICK))
        assert results[0].status == FAILED and "chunkwise--none" in results[0].error
        engine._measure = local_death()
        results = dict(engine.run(PROBLEM, {4: {}, 5: {}}, QUICK))
        assert {r.status for r in results.values()} == {FAILED} and sorted(results) == [4, 5]
        with pytest.raises(ValueError, match="device: expected no number with engine 'ray'"):
            dict(engine.run(Problem("mlstm_step", device="cpu:0"), {0: {}}, QUICK))
        engine.close()
        assert ray.is_initialized()  # for it was here before
    finally:
        ray.shutdown()


def local_death() -> Any:
    def dies(problem: Problem, plan: Plan, pace: Pace, threads: int) -> Result:  # local, so that Ray sends it by value
        os._exit(7)

    return dies


def test_a_cpu_with_a_number() -> None:
    assert measure(Problem("mlstm_step", device="cpu:0", dqk=16, dhv=16), {}, Pace(1, 1e-6), 1).status == OK


@pytest.mark.gpu
@pytest.mark.parametrize("op", problems.OPS)
def test_every_plan_of_the_gpus_space_is_right_or_refused(op: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    length = 1 if op == "mlstm_step" else 300
    problem = Problem(op, device="cuda", batch=1, heads=2, length=length, dqk=128, dhv=128)
    plans = (
        plan for plan in space_of(problem, 1).candidates() if "triton" not in str(plan.get("kernel"))
    )  # may end it
    results = [measure(problem, plan, Pace(1, 1e-6), 1) for plan in plans]
    assert {OK} <= {one.status for one in results} <= {OK, FAILED}
    assert not [one.error for one in results if one.status != OK and "no kernel" not in one.error]
