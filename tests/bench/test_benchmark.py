# SPDX-License-Identifier: Apache-2.0
"""The CPU benchmark: it runs, its truth is the tests' truth, a missing peer is said, and its arithmetic is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.benchmark import Session
from harness.sides import ratio_to
from pages import mlstm_cpu as page
from support.reference import truth
from xlstm_hip.bench import memory, timing
from xlstm_hip.bench import mlstm as problem
from xlstm_hip.bench.contest import Contest
from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.memory import MemoryUnknown

pytestmark = pytest.mark.rows("ci")  # runs the script as a user does
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("benchmark") / "made" / "smoke.json"
    command = [sys.executable, str(BENCHMARKS / "mlstm_cpu.py"), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(out.with_suffix(".md").read_text())
    return out


def test_smoke_run_measures_everything(smoke_run: Path) -> None:
    results = json.loads(smoke_run.read_text())
    assert {(cell["work"], cell["dtype"]) for cell in results["cells"]} == {
        (work, dtype) for work in ("forward", "forward+backward", "step") for dtype in ("fp32", "bf16")
    }
    assert results["environment"]["threads"] == 1
    for cell in results["cells"]:
        fused = [kernel for kernel in cell["kernels"] if kernel["side"] == "xlstm_hip"]
        assert len(fused) == (2 if cell["work"] == "step" else 1)
        for kernel in cell["kernels"]:
            if "missing" in kernel:
                continue
            assert len(kernel["ms"]["samples"]) == cell["rounds"]
            assert 0 < kernel["ms"]["min"] <= kernel["ms"]["median"] <= kernel["ms"]["max"]
            expected = {"forward": {"h"}, "forward+backward": {"h", "dq", "dk", "dv", "di", "df"}, "step": {"h", "c"}}
            assert set(kernel["errors"]) == expected[cell["work"]]
        assert all(kernel["inexact"] == [] for kernel in fused)
        for side in {kernel["side"] for kernel in cell["kernels"] if "ms" in kernel} - {"xlstm_hip"}:
            ratio = ratio_to(cell["kernels"], fused[0], side)
            assert ratio is not None and 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    (grown,) = results["memory"]["cells"]
    assert [kernel["name"] for kernel in grown["kernels"]] == ["ours"] and results["ended_early"] is False


def test_smoke_run_is_marked(smoke_run: Path) -> None:
    text = smoke_run.with_suffix(".md").read_text()
    assert "A smoke run" in text
    assert text.count("\n| step, in place") == 2


def test_picture_comes_from_the_file_alone(smoke_run: Path, tmp_path: Path) -> None:
    assert smoke_run.with_suffix(".png").stat().st_size > 10_000
    again = tmp_path / "again.json"
    again.write_text(smoke_run.read_text())
    command = [sys.executable, str(BENCHMARKS / "mlstm_cpu.py"), "--redraw", str(again)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert again.with_suffix(".png").stat().st_size > 10_000
    assert again.with_suffix(".md").read_text() == smoke_run.with_suffix(".md").read_text()
    again.write_text(json.dumps(json.loads(smoke_run.read_text()) | {"benchmark": "layers"}))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--redraw: expected a result file of mlstm_cpu" in done.stderr


def test_missing_peers_are_said(load: Load, smoke_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With neither peer installed there is a table and a picture, with the reasons."""
    mlstm_cpu = load("mlstm_cpu")
    monkeypatch.setitem(sys.modules, "mlstm_kernels", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    pace = timing.Pace(seconds=0.01, least_rounds=2, most_rounds=2, sample_seconds=1e-4)
    cells = [
        problem.Cell(work, "fp32", 1, 1, 1 if work == "step" else 32, 8, 8, 16)
        for work in ("forward", "forward+backward", "step")
    ]
    session = Session(Namespace(quick=True), Machine("cpu"), pace, {})
    measured = [mlstm_cpu.measure(session, cell, lambda fraction: None) for cell in cells]
    assert {k["name"] for cell in measured for k in cell["kernels"] if "ms" in k} == {"ours", "ours, in place"}
    results = {**json.loads(smoke_run.read_text()), "cells": measured}
    text = page.markdown(results)
    assert "mlstm_kernels is not installed" in text
    assert "transformers is not installed" in text
    page.draw(results, tmp_path / "alone.json")


@pytest.mark.parametrize("work", ["forward+backward", "step"])
def test_truth_is_the_reference(work: str) -> None:
    cell = problem.Cell(work, "fp32", 1, 2, 1 if work == "step" else 24, 6, 10, 8)
    inputs = problem.make_inputs(cell)
    actual = problem.true_results(cell, inputs)
    if work == "step":
        token = {name: inputs[name][:, :, None] for name in "qkv"} | {name: inputs[name] for name in "if"}
        h, (c, _, _) = truth(**token, **{f"{name}_initial": inputs[name] for name in "cnm"})
        expected = {"h": h[:, :, 0], "c": c}
    else:
        leaves = {name: inputs[name].double().requires_grad_() for name in "qkvif"}
        h, _ = truth(**leaves)
        gradients = torch.autograd.grad(h, list(leaves.values()), inputs["dh"].double())
        expected = {"h": h[-1, -1], **{f"d{n}": g[-1, -1] for n, g in zip("qkvif", gradients, strict=True)}}
    assert set(actual) == set(expected)
    for name, x in actual.items():
        torch.testing.assert_close(x, expected[name], rtol=1e-10, atol=1e-12)


def test_a_wrong_result_of_ours_ends_the_run(load: Load) -> None:
    operator = load("mlstm_cpu").SEQUENCES
    fused, *_ = operator.implementations
    cell = problem.Cell("forward", "fp32", 1, 1, 32, 8, 8, 16)
    contest = Contest(operator, cell, Machine("cpu"))

    def wrong(cell: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], dict[str, torch.Tensor]]:
        call = fused.prepare(cell, inputs)
        return lambda: {name: 1.01 * x for name, x in call().items()}

    assert contest.enter_or_end(fused)[0]["inexact"] == []
    entry, call = contest.enter_or_end(replace(fused, provider="reference", prepare=wrong))
    assert entry["inexact"] == ["h"] and call is not None
    with pytest.raises(SystemExit, match="ours: wrong: h; not timed; errors: h 0.01; expected at most 0.001"):
        contest.enter_or_end(replace(fused, prepare=wrong))


def test_the_cpu_figures_are_the_files() -> None:
    """The CPU table of docs/benchmarks.md has the figures of the result file; machine and date above it too."""
    results = json.loads((BENCHMARKS / "results" / "mlstm_cpu.json").read_text())
    text = (BENCHMARKS.parent / "docs/benchmarks.md").read_text()
    part = text.partition("<!-- mlstm_cpu:begin -->")[2].partition("<!-- mlstm_cpu:end -->")[0]

    def cells(lines: list[str]) -> list[list[str]]:
        return [[x.strip() for x in line.split("|")] for line in lines if line.startswith("|") and "--" not in line]

    assert cells(part.splitlines()) == cells(page.time_table(results, brief=True))
    command = [sys.executable, str(BENCHMARKS / "table.py"), str(BENCHMARKS / "results" / "mlstm_cpu.json"), "--short"]
    assert subprocess.check_output(command, text=True).splitlines() == page.time_table(results, brief=True)
    assert summary(results["environment"]) in part


def test_the_gpu_figures_are_the_files(load: Load) -> None:
    """The text between the marks, words too, is the script's output; the README's picture shows the same figures."""
    script = load("readme_gpu")
    root, results = BENCHMARKS.parent, BENCHMARKS / "results"
    for name, expected in (("README.md", script.claim(results)), ("docs/benchmarks.md", script.block(results))):
        text = script.between_the_marks((root / name).read_text(encoding="utf-8"))
        assert text and text == expected
    assert figures_in(results / "readme.png") == script.figures(results)


def figures_in(picture: Path) -> Any:
    """The figures of a picture made by readme_gpu.draw, from the PNG's text."""
    image = pytest.importorskip("PIL.Image")
    with image.open(picture) as opened:
        return json.loads(opened.text["Description"])


def test_the_gpu_figures_follow_the_files(load: Load, tmp_path: Path) -> None:
    """With each file's GPU, torch, date and figures changed, none of the old ones is left; no smoke run is taken."""
    script = load("readme_gpu")
    results = BENCHMARKS / "results"
    names = set(re.findall(r"results/(\w+)\.md", script.block(results)))
    assert len(names) == 7

    def changed(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: changed(value) for name, value in x.items()}
        if isinstance(x, list):
            return [changed(value) for value in x]
        if isinstance(x, float):
            return 3.7 * x
        return x.replace("2026-11-", "2031-07-").replace("H200", "X1") if isinstance(x, str) else x

    for name in names:
        facts = changed(json.loads((results / f"{name}.json").read_text()))
        facts["environment"]["packages"]["torch"] = "9.9.9"
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    before, after = (" ".join(script.block(folder).split()) for folder in (results, tmp_path))
    assert "H200" not in after and "2026" not in after and "torch 2." not in after
    claims = [" ".join(script.claim(folder).split()) for folder in (results, tmp_path)]
    assert "H200" in claims[0] and "H200" not in claims[1]
    quoted = [re.findall(r"\b[\d,]+(?:\.\d+)?(?=[;)]|, compiled| tokens/s| with int4| ms)", text) for text in claims]
    assert len(quoted[0]) == len(quoted[1]) == 10
    assert not [x for x, y in zip(*quoted, strict=True) if x == y]
    script.draw(tmp_path, tmp_path / "readme.png")
    assert (tmp_path / "readme.png").stat().st_size > 10_000
    assert figures_in(tmp_path / "readme.png") == script.figures(tmp_path) != script.figures(results)
    assert after.count("NVIDIA X1, torch 9.9.9") == after.count("; 2031-07-") == len(names)

    figure = re.compile(r"(?<=\| )[\d.,]+(?:%| ms)?(?:, (?:n/a|[\d.]+))?(?= +\|)|(?<=takes )[\d.]+(?= s[;.])")
    pairs = list(zip(figure.findall(before), figure.findall(after), strict=True))
    assert len(pairs) > 70
    assert not [x for x, y in pairs if x == y]
    facts["settings"]["quick"] = True
    (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    with pytest.raises(SystemExit, match=f"{name}.json: a smoke run"):
        script.block(tmp_path)


def test_rounds_take_turns() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    fractions: list[float] = []
    # A sample of no length is one call, so that every entry of `order` after the first calls is a sample.
    pace = timing.Pace(seconds=60, least_rounds=1, most_rounds=3, sample_seconds=0.0)
    samples = timing.interleaved(calls, pace, fractions.append)
    assert "".join(order[3:]) == "abc" + "bca" + "cab"
    assert sum(fractions) == pytest.approx(1)
    assert all(len(x.ms) == 3 and x.calls_per_sample == 1 for x in samples.values())


def test_ratios_are_paired() -> None:
    """A machine that slows down by ten in the middle does not change a ratio."""
    ratio = timing.paired_ratio([30.0, 300.0, 33.0], [10.0, 100.0, 11.0])
    assert ratio == {"median": pytest.approx(3), "min": pytest.approx(3), "max": pytest.approx(3)}


def test_operations_are_counted() -> None:
    """Against the matrix products of the quadratic-in-a-chunk form, written out."""
    heads, tokens, dqk, dhv, chunk = 3, 64, 8, 24, 16
    into_and_out_of_the_state = 2 * (2 * tokens * dqk * dhv)
    scores_and_values = 2 * tokens * chunk * (dqk + dhv) / 2  # half of a chunk is in the past
    forward = heads * (into_and_out_of_the_state + scores_and_values)
    assert problem.Cell("forward", "fp32", 1, heads, tokens, dqk, dhv, chunk).flops == forward
    assert problem.Cell("forward+backward", "fp32", 1, heads, tokens, dqk, dhv, chunk).flops == 3 * forward


@pytest.mark.parametrize("flag", ["--threads", "--chunk-size"])
def test_bad_arguments_are_named(flag: str) -> None:
    command = [sys.executable, str(BENCHMARKS / "mlstm_cpu.py"), flag, "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"{flag}: expected a whole number >= 1, got '0'" in done.stderr


def test_memory_grows_by_what_a_kernel_makes() -> None:
    """At least h and the gradients; where the system cannot tell, it says so."""
    cell = problem.Cell("forward+backward", "fp32", 1, 4, 1024, 64, 128, 64)
    try:
        grown = memory.growth_in_new_process("mlstm-backward", "ours", replace(cell, tokens=128), cell, 1)
    except MemoryUnknown as reason:
        pytest.skip(str(reason))
    assert cell.result_bytes * 0.9 < grown < 4 * cell.result_bytes


def test_unknown_memory_says_why() -> None:
    cell = problem.Cell("forward+backward", "fp32", 1, 1, 8, 4, 4, 8)
    with pytest.raises(MemoryUnknown, match="got 'no such kernel'"):
        memory.growth_in_new_process("mlstm-backward", "no such kernel", cell, cell, 1)
