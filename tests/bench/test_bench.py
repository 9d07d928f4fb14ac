# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip bench: what it measures is right first, what is missing is said, and its files hang together."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from xlstm_hip import attention as our_attention
from xlstm_hip import cli
from xlstm_hip._core.extras import is_installed
from xlstm_hip.bench import (
    attention,
    contest,
    machine,
    metrics,
    mlstm,
    mlstm_packed,
    mlstm_points,
    models,
    operators,
    pictures,
    report,
    result_files,
    runner,
    selection,
    trial,
)
from xlstm_hip.bench.contest import Contest
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.registry import FLA, FLASH, OFFICIAL, PLAIN, PROVIDERS, XLSTM_HIP, Implementation, Point, Scale
from xlstm_hip.bench.runner import Settings
from xlstm_hip.mlstm import select

MEASURED = ("mlstm-backward", "step", "decode", "layers", "write")
QUICK = ("--quick", "--dtype", "float32", "--threads", "1")


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "xlstm_hip", "bench", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("bench") / "made" / "smoke.json"
    done = command(*MEASURED, "--out", out, "--device", "cpu", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(out.with_suffix(".md").read_text())
    return out


def test_smoke_run(smoke_run: Path) -> None:
    results = json.loads(smoke_run.read_text())
    assert results["ended_early"] is False
    assert tuple(dict.fromkeys(p["operator"] for p in results["points"])) == MEASURED
    assert results["environment"]["packages"]["torch"] and results["environment"]["threads"] == 1
    for point in results["points"]:
        assert {e["name"] for e in point["entries"]} == {
            x.name for x in operators.OPERATORS[point["operator"]].implementations
        }
        for entry in point["entries"]:
            if "missing" in entry:
                continue
            assert 0 < entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"]
            assert set(entry["metrics"]) == set(metrics.METRICS)
            if entry["provider"] in (XLSTM_HIP, PLAIN):
                limits = results["exact"][point["operator"]].get(entry["name"], {"fp32": 1e-3})
                assert entry["inexact"] == [] and max(entry["errors"].values()) < limits["fp32"]
        fused = next(e for e in point["entries"] if e["provider"] == XLSTM_HIP)
        assert fused["metrics"]["times_ours"] == 1 and fused["metrics"]["roofline"] > 0
    (first, *_) = (p for p in results["points"] if p["operator"] == "write")
    assert first["entries"][0]["metrics"]["tokens_per_second"] > 0


def test_what_is_missing_is_said(smoke_run: Path) -> None:
    points = json.loads(smoke_run.read_text())["points"]
    entries = {(e["provider"], e["name"]): e for p in points for e in p["entries"]}
    for provider in (FLA, FLASH):
        if PROVIDERS[provider].missing():
            reasons = [e["missing"] for (provider_of_entry, _), e in entries.items() if provider_of_entry == provider]
            assert reasons == [f"{PROVIDERS[provider].module} is not installed"]
            assert reasons[0] in smoke_run.with_suffix(".md").read_text()
    if PROVIDERS[OFFICIAL].missing() is None:
        assert entries[OFFICIAL, "triton step"]["missing"] == "does not run on the CPU"


def test_tables_and_pictures_come_from_the_file_alone(smoke_run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "other.json"
    copied.write_text(smoke_run.read_text())
    done = command("--redraw", copied)
    assert done.returncode == 0, done.stderr
    assert copied.with_suffix(".md").read_text() == smoke_run.with_suffix(".md").read_text()
    names = {x.name.removeprefix("smoke") for x in smoke_run.parent.glob("*.png")}
    expected = {"length", "head_dim", "chunk_size", "batch", "keys", "context", "layers", "roofline"}
    assert names == {x.name.removeprefix("other") for x in tmp_path.glob("*.png")} == {f"_{x}.png" for x in expected}
    assert all(x.stat().st_size > 8_000 for x in tmp_path.glob("*.png"))
    text = copied.with_suffix(".md").read_text()
    assert "A smoke run" in text and "## mlstm-backward" in text
    results = json.loads(copied.read_text())
    results["points"] = [point for point in results["points"] if point["operator"] == "step"]
    copied.write_text(json.dumps(results))
    few = command("--redraw", copied, "--metrics", "ms")
    assert "of roofline" not in few.stdout and "TFLOP/s  " not in few.stdout and "| ms " in few.stdout


def test_list() -> None:
    done = command("--list", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    for name in (*operators.OPERATORS, *PROVIDERS, *metrics.METRICS, "selection"):
        assert f"  {name}" in done.stdout
    assert "triton step  -- missing: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nosuch",), 2, "operators: expected one of mlstm, "),
        (("--providers", "nosuch"), 2, "expected one of xlstm_hip, reference, "),
        (("--metrics", "speed"), 2, "expected one of ms, "),
        (("--seconds", "0"), 2, "--seconds: expected a number > 0, got '0'"),
        (("--seconds", "nan"), 2, "--seconds: expected a number > 0, got 'nan'"),
        (("--device", "gpu"), 2, "--device: expected cpu, cuda or cuda:N, got 'gpu'"),
        (("--device", "cpu:7"), 2, "--device: expected cpu, cuda or cuda:N, got 'cpu:7'"),
        (("step", "--quick", "--out", f"{__file__}/b.json"), 1, f"--out: '{__file__}/b.json' cannot be written: "),
        (("--out", "results"), 2, "--out: expected a file name that ends in .json, got 'results'"),
        (("--threads", "0"), 2, "--threads: expected a whole number >= 1, got '0'"),
        (("--list", "--quick"), 1, "--list: measures nothing and cannot be combined with --quick"),
        (("--redraw", "a.json", "step"), 1, "--redraw: measures nothing and cannot be combined with operators"),
        (("--redraw", __file__), 1, "is not JSON"),
        (("--peers", __file__), 1, "--peers: expected a folder, got "),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        actual = cli.main(["bench", *arguments])
    except SystemExit as stopped:
        actual = int(stopped.code or 0)
    err = capsys.readouterr().err
    assert actual == code and text in err, err


def test_a_file_of_another_benchmark_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text('{"benchmark": "layers"}')
    assert cli.main(["bench", "--redraw", str(tmp_path / "other.json")]) == 1
    assert "expected a result file of xlstm-hip bench" in capsys.readouterr().err
    assert cli.main(["bench", "--redraw", str(tmp_path / "none.json")]) == 1
    assert "none.json' cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["environment", "points", "settings", "ceilings"])
def test_a_part_of_a_file_is_refused(
    smoke_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    results = json.loads(smoke_run.read_text())
    del results[key]
    (tmp_path / "part.json").write_text(json.dumps(results))
    assert cli.main(["bench", "--redraw", str(tmp_path / "part.json")]) == 1
    message = capsys.readouterr().err
    assert "--redraw: expected a whole result file, got " in message and f"part.json': KeyError: '{key}'" in message
    assert [x.name for x in tmp_path.iterdir()] == ["part.json"]


def test_a_run_that_is_ended_leaves_its_table_and_pictures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: Ctrl-C in the second point."""
    pytest.importorskip("matplotlib")
    measure, out = runner.Run.measure, tmp_path / "ended.json"

    def interrupted(self: runner.Run, *arguments: Any) -> dict[str, Any]:
        if self.results["points"]:
            raise KeyboardInterrupt
        return measure(self, *arguments)

    monkeypatch.setattr(runner.Run, "measure", interrupted)
    assert cli.main(["bench", "step", "--device", "cpu", *QUICK, "--out", str(out)]) == 130
    results = json.loads(out.read_text())
    assert len(results["points"]) == 1 and results["ended_early"]
    assert "**Ended early: not all points are here.**" in out.with_suffix(".md").read_text()
    assert {x.name for x in tmp_path.iterdir()} == {"ended.json", "ended.md", "ended_batch.png", "ended_roofline.png"}
    assert "ended early: what has been measured is written" in capsys.readouterr().err


def test_a_result_file_is_never_half_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result_files.save({"a": 1}, tmp_path / "made" / "x.json")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        result_files.save({"a": 2}, tmp_path / "made" / "x.json")
    assert json.loads((tmp_path / "made" / "x.json").read_text()) == {"a": 1}


# ---- correct before timed


Make = Callable[[Any, dict[str, Tensor]], Callable[[], dict[str, Tensor]]]


def with_step_implementations(monkeypatch: pytest.MonkeyPatch, **makers: tuple[str, Make]) -> None:
    implementations = tuple(Implementation(name, provider, prepare) for name, (provider, prepare) in makers.items())
    monkeypatch.setitem(
        operators.OPERATORS, "step", replace(operators.OPERATORS["step"], implementations=implementations)
    )


def run_steps(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    run_settings = Settings(operators=("step",), device="cpu", dtypes=("fp32",), quick=True, **settings)
    return runner.run(run_settings, tmp_path / "steps.json")


def test_what_would_end_the_process_is_not_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def deadly(*_: Any) -> Any:
        raise SystemExit("the process is over")

    fused = operators.OPERATORS["step"].implementations[0]
    peer = replace(fused, name="deadly", provider=PLAIN, prepare=deadly, beyond=lambda cell: "too far")
    monkeypatch.setitem(
        operators.OPERATORS, "step", replace(operators.OPERATORS["step"], implementations=(fused, peer))
    )
    for point in run_steps(tmp_path)["points"]:
        assert point["entries"][1]["missing"] == "too far" and "ms" in point["entries"][0]


def test_trials_of_peers_take_nothing_of_the_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def slow(*_: Any) -> dict[tuple[str, str], str]:
        time.sleep(9)
        return {}

    (plain,) = (x.prepare for x in operators.STEPS if x.name == "plain torch")
    with_step_implementations(monkeypatch, right=(XLSTM_HIP, plain))
    monkeypatch.setattr(runner, "lost_in_trials", slow)
    results = run_steps(tmp_path, seconds=8)
    assert all("ms" in entry for point in results["points"] for entry in point["entries"])


def test_a_wrong_result_of_ours_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (right,) = (x.prepare for x in operators.STEPS if x.name == "plain torch")

    def wrong(cell: Any, inputs: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
        call = right(cell, inputs)
        return lambda: {name: x * 1.01 for name, x in call().items()}

    def breaks(cell: Any, inputs: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
        raise RuntimeError("no\nsuch kernel")

    with_step_implementations(
        monkeypatch,
        right=(XLSTM_HIP, right),
        wrong=(XLSTM_HIP, wrong),
        breaks=(XLSTM_HIP, breaks),
        peer_wrong=(PLAIN, wrong),
        peer_breaks=(PLAIN, breaks),
    )
    results = run_steps(tmp_path)
    for point in results["points"]:
        entries = {e["name"]: e for e in point["entries"]}
        assert entries["right"]["errors"]["h"] < 1e-5 and "ms" in entries["right"]
        assert entries["wrong"]["failed"] == "wrong: h, c; not timed" and "ms" not in entries["wrong"]
        assert entries["breaks"]["failed"] == "RuntimeError: no"
        assert entries["peer_wrong"]["inexact"] == ["h", "c"] and "ms" in entries["peer_wrong"]
        assert entries["peer_breaks"]["missing"] == "RuntimeError: no"
    assert len(runner.failures(results)) == 2 * len(results["points"])
    text = report.markdown(results)
    assert "FAILED: wrong: h, c; not timed" in text and "inexact: h, c" in text
    assert json.loads((tmp_path / "steps.json").read_text()) == results


@pytest.mark.parametrize(
    "provider, line",
    [
        ("mlstm_kernels", "nothing was measured: of mlstm_kernels there is no implementation of attention"),
        ("flash_attn", "nothing was measured: flash_attn: "),
    ],
)
def test_nothing_measured_is_the_exit_code(
    provider: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--providers", provider, "--device", "cpu", *QUICK, "--out", str(tmp_path / "b.json")]
    assert cli.main(["bench", "attention", *arguments]) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"xlstm-hip bench: {line}"), message


def test_a_failure_of_ours_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(cell: Any, inputs: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
        raise RuntimeError("broken")

    with_step_implementations(monkeypatch, ours=(XLSTM_HIP, breaks))
    assert cli.main(["bench", "step", "--device", "cpu", *QUICK, "--out", str(tmp_path / "b.json")]) == 1


def fails_from_call(number: int, error: type[Exception]) -> Make:
    """Planted: right until that call."""
    (right,) = (x.prepare for x in operators.STEPS if x.name == "plain torch")

    def prepare(cell: Any, inputs: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
        call, calls = right(cell, inputs), itertools.count(1)

        def fails() -> dict[str, Tensor]:
            if next(calls) >= number:
                raise error("gone\nfor ever")
            return call()

        return fails

    return prepare


@pytest.mark.parametrize("number", [3, 4, 5])
def test_a_failure_in_the_rounds_is_a_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    (right,) = (x.prepare for x in operators.STEPS if x.name == "plain torch")
    with_step_implementations(
        monkeypatch,
        right=(XLSTM_HIP, right),
        wrong=(XLSTM_HIP, fails_from_call(number, RuntimeError)),
        peer=(PLAIN, fails_from_call(number, torch.OutOfMemoryError)),
        last=(PLAIN, right),
    )
    results = run_steps(tmp_path)
    for point in results["points"]:
        entries = {e["name"]: e for e in point["entries"]}
        assert entries["wrong"]["failed"] == "RuntimeError: gone" and "ms" not in entries["wrong"]
        assert entries["peer"]["missing"] == "OutOfMemoryError: gone" and "ms" not in entries["peer"]
        for name in ("right", "last"):
            assert len(entries[name]["ms"]["samples"]) >= 2 and "times_ours" in entries[name]
    assert len(runner.failures(results)) == len(results["points"])
    with_step_implementations(monkeypatch, peer=(PLAIN, fails_from_call(number, RuntimeError)))
    assert all(p["entries"][0]["missing"] == "RuntimeError: gone" for p in run_steps(tmp_path)["points"])


def test_what_is_late_is_said(tmp_path: Path) -> None:
    results = run_steps(tmp_path, seconds=1e-6)
    assert [p["missing"] for p in results["points"]] == [runner.LATE] * 2
    assert runner.LATE in report.markdown(results) and pictures.draw(results, tmp_path / "late.json") == []


def test_a_slow_peer_is_not_called_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (right,) = (x.prepare for x in operators.STEPS if x.name == "plain torch")
    called = []

    def slow(cell: Any, inputs: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
        call = right(cell, inputs)

        def slept() -> dict[str, Tensor]:
            called.append(cell.batch)
            time.sleep(0.03)
            return call()

        return slept

    with_step_implementations(monkeypatch, ours=(XLSTM_HIP, right), slow=(PLAIN, slow))
    monkeypatch.setattr(runner, "SLOW_SECONDS", 0.025)
    monkeypatch.setattr(runner, "LONGEST_SHARE", 0.01)
    for point in run_steps(tmp_path)["points"]:
        assert point["entries"][1]["missing"] == "left out for time: too slow" and "ms" in point["entries"][0]
    assert called == [1]


def test_time_is_shared_and_points_stay_in_order(tmp_path: Path) -> None:
    settings = Settings(operators=("step", "layers"), device="cpu", dtypes=("fp32",), quick=True, seconds=1000)
    results = runner.run(settings, tmp_path / "order.json")
    scale = Scale(False, True, ("fp32",))
    want = [(name, p.cell.title) for name in settings.operators for p in operators.OPERATORS[name].points(scale)]
    assert [(p["operator"], p["title"]) for p in results["points"]] == want
    assert all("entries" in p for p in results["points"])


def test_providers_that_are_not_asked_are_not_run(tmp_path: Path) -> None:
    results = run_steps(tmp_path, providers=(PLAIN,))
    assert {e["provider"] for p in results["points"] for e in p["entries"]} == {PLAIN}
    assert list(results["providers"]) == [PLAIN]
    assert all("times_ours" not in e for p in results["points"] for e in p["entries"])


def test_a_peer_that_ends_the_process_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At one of two head dims: the other is timed."""
    (right,) = (x for x in operators.STEPS if x.name == "plain torch")
    dies = replace(right, name="dies", triton=True)
    shapes = [mlstm_points.Cell("step", "fp32", 4, 8, 1, dim, dim, 64) for dim in (16, 32)]
    points = lambda scale: [Point("batch", cell.dqk, cell) for cell in shapes]  # noqa: E731
    step = replace(operators.OPERATORS["step"], implementations=(right, dies), points=points)
    monkeypatch.setitem(operators.OPERATORS, "step", step)
    tried: dict[str, Any] = {}

    def not_survived(command: list[str], environment: Any, tries: dict[str, tuple[str, ...]]) -> dict[Any, str]:
        tried.update(tries)
        return {("dies", tries["dies"][0]): "its trial ended with -6: Assertion"}

    monkeypatch.setattr(trial, "not_survived", not_survived)
    first, second = run_steps(tmp_path)["points"]
    assert tried == {"dies": tuple(f"step step fp32 B1 NH2 {dim}/{dim}" for dim in (16, 32))}
    assert first["entries"][1]["missing"] == "its trial ended with -6: Assertion"
    assert "ms" in first["entries"][0] and "ms" in second["entries"][1]


def test_a_trial_says_what_it_lived_through() -> None:
    line = [sys.executable, "-m", "xlstm_hip.bench.trial", "--device", "cpu", "--dtypes", "fp32", "--quick"]
    line += ["--operators", "step", "layers", "--try", "plain torch"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done step step fp32 B1 NH2 32/64\n"  # layers have no Triton peers
    done = subprocess.run([*line, "--works", "another"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "", done.stderr


@pytest.mark.parametrize("failing", ["always", "once", "never"])
def test_a_lost_gpu_is_told_from_an_error(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    errors = {"always": [RuntimeError("wild")] * 9, "once": [RuntimeError("late"), None], "never": [None]}[failing]
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=errors))
    assert machine.lost(torch.device("cuda")) == (failing == "always") and not machine.lost(torch.device("cpu"))


def test_a_trial_that_loses_the_gpu_is_not_lived_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Planted: a call that fails, and a GPU that is lost with it or is not."""
    step = operators.OPERATORS["step"]
    wild = replace(step.implementations[0], name="wild", prepare=Mock(side_effect=RuntimeError("far away\nand more")))
    monkeypatch.setitem(operators.OPERATORS, "step", replace(step, implementations=(wild,)))
    line = ["trial", "--device", "cpu", "--dtypes", "fp32", "--quick", "--operators", "step", "--try", "wild"]
    monkeypatch.setattr(sys, "argv", line)
    trial.main()
    message = capsys.readouterr()
    assert message.out.startswith("done step ") and message.err.endswith(": RuntimeError: far away\n")
    monkeypatch.setattr(trial, "lost", lambda device: True)
    monkeypatch.setattr(os, "_exit", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trial.main()
    assert capsys.readouterr().out == ""


def test_who_loses_the_gpu_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A peer too: it is named, since what came after it would fail in its place."""
    step = operators.OPERATORS["step"]
    fused, *_, peer = (x for x in step.implementations if x.provider in (XLSTM_HIP, PLAIN))
    wild = replace(peer, name="wild", prepare=Mock(side_effect=RuntimeError("far away")))
    monkeypatch.setitem(operators.OPERATORS, "step", replace(step, implementations=(fused, wild, peer)))
    assert run_steps(tmp_path)["points"][0]["entries"][1]["missing"] == "RuntimeError: far away"
    monkeypatch.setattr(contest, "lost", lambda device: True)
    with pytest.raises(SystemExit, match="wild: RuntimeError: far away; the GPU is lost to this process"):
        run_steps(tmp_path)


# ---- truths and counts


@pytest.mark.parametrize("work", ["forward", "forward+backward"])
def test_the_long_truth_is_the_short_one(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = mlstm_points.Cell(work, "fp32", 1, 2, 200, 16, 32, 64)
    inputs = mlstm.make_inputs(cell)
    want = mlstm.true_results(cell, inputs)
    monkeypatch.setattr(mlstm, "QUADRATIC_LENGTH", 100)
    actual = mlstm.true_results(cell, inputs)
    assert set(actual) == set(want) == ({"h"} if work == "forward" else {"h", "dq", "dk", "dv", "di", "df"})
    for name, x in actual.items():
        torch.testing.assert_close(x, want[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("work", "heads", "key_heads", "causal"),
    [("forward+backward", 2, 2, True), ("backward", 4, 2, False), ("decode", 4, 2, True)],
)
def test_attention_is_held_to_its_definition(
    monkeypatch: pytest.MonkeyPatch, work: str, heads: int, key_heads: int, causal: bool
) -> None:
    """And so are all that run here, the calls of the flash_attn package among them: ours has its functions."""
    monkeypatch.setitem(sys.modules, "flash_attn", our_attention)
    cell = attention.Cell(work, "fp32", 2, heads, key_heads, 24, 8, causal)
    inputs = attention.make_inputs(cell, torch.device("cpu"))
    q, k, v = (inputs[name].double().transpose(1, 2).requires_grad_() for name in "qkv")
    k_all, v_all = (x.repeat_interleave(heads // key_heads, dim=1) for x in (k, v))
    weights = q @ k_all.mT * cell.head_dim**-0.5
    if work != "decode" and causal:
        weights = weights.masked_fill(torch.ones(24, 24).triu(1).bool(), -torch.inf)
    want = {"out": (weights.softmax(-1) @ v_all).transpose(1, 2)}
    if work != "decode":
        gradients = torch.autograd.grad(want["out"], (q, k, v), inputs["dout"].double())
        want |= {name: g.transpose(1, 2) for name, g in zip(attention.GRADIENTS, gradients, strict=True)}
    if work == "backward":
        del want["out"]
    true = attention.truth(cell, inputs)
    for contender in attention.IMPLEMENTATIONS:
        if contender.missing(torch.device("cpu")) is None or contender.provider == FLASH:
            assert max(attention.errors(cell, contender.prepare(cell, inputs)(), true).values()) < 1e-6
    assert max(attention.errors(cell, want, true).values()) < 1e-10
    off = {name: x + 0.1 for name, x in want.items()}
    assert min(attention.errors(cell, off, true).values()) > 1e-3


def test_counts() -> None:
    cell = attention.Cell("forward", "bf16", 2, 3, 3, 100, 8)
    assert cell.flops == 2 * 2 * 8 * 2 * 3 * 100 * 100 / 2  # two products, two operations each, half masked
    assert cell.bytes == 2 * (4 * 2 * 3 * 100 * 8)
    assert replace(cell, work="forward+backward").flops == 3.5 * cell.flops
    assert replace(cell, causal=False).flops == 2 * cell.flops
    decode = attention.Cell("decode", "bf16", 1, 4, 2, 1000, 8)
    assert decode.bytes == 2 * (2 * 4 * 8 + 2 * 2 * 1000 * 8) and decode.flops == 4 * 4 * 1000 * 8
    small, large = (mlstm_points.Cell("forward", "bf16", 1, 1, 64, 8, 16, chunk) for chunk in (16, 256))
    assert small.flops == large.flops == mlstm.Cell("forward", "bf16", 1, 1, 64, 8, 16, 64).flops
    ceilings = {"copy_bytes_per_second": 1e9, "flops_per_second": {"bf16": 1e12}}
    assert metrics.floor_ms(cell, {}, ceilings) == pytest.approx(1e3 * cell.bytes / 1e9)
    ceilings["copy_bytes_per_second"] = math.inf
    assert metrics.floor_ms(cell, {}, ceilings) == pytest.approx(1e3 * cell.flops / 1e12)


def test_weights_of_fewer_bits_are_fewer_bytes() -> None:
    """A contender's own: with 64 of them a scale of two bytes, of four bits an offset beside it."""
    cell = models.Cell("write", "bf16", "tiny", 1, 8)
    weights = models.weights_of("tiny") * models.WRITTEN
    assert cell.bytes == cell.bytes_of("ours") == cell.bytes_of("transformers") == 2 * weights
    assert cell.bytes_of("ours int8") == (1 + 2 / 64) * weights
    assert cell.bytes_of("ours int4") == (0.5 + 4 / 64) * weights
    ceilings = {"copy_bytes_per_second": 1e9, "flops_per_second": {"bf16": math.inf}}
    entry = {"name": "ours int4", "ms": {"median": 2.0}}
    values = metrics.of(cell, entry, ceilings)
    assert values["gb_per_second"] == pytest.approx(cell.bytes_of("ours int4") / 2e6)
    assert values["roofline"] == pytest.approx(cell.bytes_of("ours int4") / 1e6 / 2.0)


def test_every_series_has_a_picture_and_every_cell_a_size() -> None:
    known = {x.name for x in pictures.SERIES} | {name for name, *_ in pictures.BARS} | {"selection"}
    for operator in operators.OPERATORS.values():
        for scale in (Scale(gpu, quick, ("bf16", "fp32")) for gpu in (False, True) for quick in (False, True)):
            points = operator.points(scale)
            assert points and {p.series for p in points} <= known
            assert len({(p.series, p.cell.title) for p in points}) == len(points)
            assert all(p.cell.dtype in operator.exact and p.cell.as_json()["size"] for p in points)


def test_drawing_is_not_in_the_picture_of_a_step() -> None:
    """A title says what all of its panels show."""
    of = {name: {p.series for p in x.points(Scale(False, True, ("fp32",)))} for name, x in operators.OPERATORS.items()}
    assert of["draw"] == of["draw-greedy"] and not of["draw"] & of["step"]
    titles = {x.name: x.title for x in pictures.SERIES}
    assert [titles[x] for x in of["draw"]] == ["drawing a token of each row"]
    assert [titles[x] for x in of["step"]] == ["a step over the batch"]


def test_lengths_have_as_many_tokens() -> None:
    for gpu in (False, True):
        cells = [
            p.cell for p in operators.OPERATORS["mlstm"].points(Scale(gpu, False, ("bf16",))) if p.series == "length"
        ]
        assert {cell.batch * cell.tokens for cell in cells} == {65536} and len(cells) >= 4


# ---- selection


def selection_results(times: dict[str, list[float]], **choices: str) -> dict[str, Any]:
    entries = [{"name": name, "ms": {"median": sorted(ms)[len(ms) // 2], "samples": ms}} for name, ms in times.items()]
    shape = {"dtype": "fp32", "size": "S"}
    point = {"operator": "select-forward", "series": "selection", "shape": shape, "entries": entries}
    return {"points": [point | {"choices": choices}]}


def test_choices_are_held_to_the_fastest() -> None:
    times = {"slow": [1.0, 10.0, 1.1], "fast": [0.9, 9.0, 1.0]}
    found = {x.regime: x for x in selection.choices(selection_results(times, auto="slow", amd="fast", stock="lost"))}
    assert found["auto"].kernel == "slow" and found["auto"].best == "fast"
    assert found["auto"].times_best == pytest.approx(10 / 9) and not found["auto"].near
    assert found["amd"].near and found["amd"].times_best == 1
    assert not found["stock"].near, "a choice that could not be timed is no good one"


def test_a_wrong_kernel_is_not_the_oracle() -> None:
    results = selection_results({"right": [1.0], "wrong": [0.1], "third": [2.0]}, auto="right", amd="wrong")
    results["points"][0]["entries"][1]["inexact"] = ["h"]
    assert [(x.best, x.near) for x in selection.choices(results)] == [("right", True), ("right", False)]
    results["points"][0]["entries"][2]["inexact"] = ["h"]
    assert not list(selection.choices(results)), "one kernel alone proves nothing"


def test_what_a_regime_names_here(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = mlstm_points.Cell("forward", "fp32", 1, 2, 2048, 32, 64, 64)
    cpu = torch.device("cpu")
    found = selection.chosen("forward", cell, cpu)
    assert set(found) == set(select.REGIMES) and found["auto"] == select.FUSED[0]
    assert found["hybrid"] == found["amd"] == select.HYBRID[0]
    assert found["stock"] == select.FUSED[0], "a Triton name is the fused kernel's on the CPU"
    monkeypatch.setattr(Implementation, "missing", lambda self, device: None)
    assert selection.chosen("forward", cell, cpu)["stock"] == select.STOCK[0]


def test_selection_runs(tmp_path: Path) -> None:
    settings = Settings(operators=operators.GROUPS["selection"], device="cpu", dtypes=("fp32",), quick=True)
    results = runner.run(settings, tmp_path / "s.json")
    found = list(selection.choices(results))
    assert {x.operator for x in found} == set(operators.GROUPS["selection"])
    text = report.markdown(results)
    assert "## Selection" in text and "| auto " in text and "| hybrid " in text
    assert not runner.failures(results)


# ---- shapes


def test_shapes_run(tmp_path: Path) -> None:
    """Every point of the group, held to float64; a batch of unlike sequences is not to be had."""
    done = command("shapes", *QUICK, "--device", "cpu", "--out", tmp_path / "shapes.json")
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "shapes.json").read_text())["points"]
    assert tuple(dict.fromkeys(p["operator"] for p in points)) == operators.GROUPS["shapes"]
    for point in points:
        [ours] = [e for e in point["entries"] if e["name"] == "ours"]
        assert ours["inexact"] == [] and max(ours["errors"].values()) < 1e-4
        for entry in (e for e in point["entries"] if e["name"] == "ours, as a batch"):
            unlike = " + " in point["shape"]["size"]
            assert entry.get("missing") == (mlstm_packed.UNLIKE if unlike else None)
    if is_installed("matplotlib"):
        made = {x.name for x in tmp_path.glob("*.png")}
        assert made == {f"shapes_{x}.png" for x in ("shapes", "heads", "packed", "roofline")}


def test_packed_sequences_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is that of each sequence. Planted: a row read as one sequence."""
    cell = mlstm_packed.Cell("forward+backward", "fp32", 1, 2, 24, 8, 12, 64, packs=((3, 4), (1, 12)))
    assert cell.lengths == (4, 4, 4, 12) and cell.title == "forward+backward fp32 3 x 4 + 1 x 12 NH2 8/12"
    inputs = mlstm.make_inputs(cell)
    true = mlstm.true_results(cell, inputs)
    begins = (0, 4, 8, 12, 24)
    for begin, end in itertools.pairwise(begins):
        alone = replace(cell, tokens=end - begin, packs=((1, end - begin),))
        part = mlstm.true_results(alone, {name: x[:, :, begin:end] for name, x in inputs.items()})
        for name, x in part.items():
            torch.testing.assert_close(true[name][begin:end], x, rtol=1e-12, atol=1e-12)
    right, *_ = mlstm_packed.IMPLEMENTATIONS
    contest = Contest(replace(operators.OPERATORS["packed-backward"], exact={"fp32": 1e-4}), cell, Machine("cpu"))
    assert contest.enter(right)[0]["inexact"] == []
    one = replace(right, provider=OFFICIAL, prepare=lambda cell, x: right.prepare(replace(cell, packs=((1, 24),)), x))
    monkeypatch.setattr(Contest, "absent", lambda self, x: None)
    assert contest.enter(one)[0]["inexact"]


def test_products_of_packed_sequences() -> None:
    """A token alone has one pair; a sequence of chunks has half a chunk of pairs for each token."""
    cell = mlstm_packed.Cell("forward", "fp32", 1, 2, 130, 8, 12, 64, packs=((2, 1), (1, 128)))
    state, pair = 4 * 8 * 12, 8 + 12
    assert cell.flops == 2 * (2 * (state + pair) + 128 * (state + 64 * pair))
