# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of a whole model over a grid: smoke runs, what is wrong, what does not fit, and the graph's writer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip.bench import models, readers
from xlstm_hip.bench.schedules import SCHEDULE, common_schedule
from xlstm_hip.models import xLSTMLargeConfig

Load = Callable[[str], Any]
QUICK = ["--quick", "--threads", "1"]
OURS = ["--contenders", "xlstm_hip", "--dtypes", "fp32"]


def run(benchmark: Any, out: Path, *options: str, code: str = "") -> dict[str, Any]:
    """The results; code: what the run ends with."""
    if code:
        with pytest.raises(SystemExit, match=code):
            benchmark.main([*QUICK, "--out", str(out), *options])
    else:
        benchmark.main([*QUICK, "--out", str(out), *options])
    return json.loads(out.read_text())


def entries_of(results: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [e for point in results["points"] for e in point["contenders"] if e["name"] == name]


def test_smoke_run(load: Load, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "made" / "decoding.json"
    results = run(load("decoding").BENCHMARK, out)
    text = out.with_suffix(".md").read_text()
    assert [point["title"] for point in results["points"]] == ["B1", "B2"] and not results["ended_early"]
    for name in ("xlstm_hip", "xlstm_hip int8", "xlstm_hip int4"):
        for entry in entries_of(results, name):
            assert entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"]
            assert max(entry["errors"].values()) <= entry["limit"]
    for name in ("xlstm_hip common", "xlstm_large graph"):
        assert {entry["missing"] for entry in entries_of(results, name)} == {"does not run on the CPU"}
        assert f"| {name} " in text
    assert "A smoke run" in text and out.with_suffix(".png").stat().st_size > 10_000
    first = results["points"][0]
    [entry] = [e for e in first["contenders"] if e["name"] == "xlstm_hip"]
    assert f"| B1 | {first['floors_ms']['fp32'] / entry['ms']['median']:.0%}" in text.replace("  ", " ")


def test_floor_is_weights_once_and_states_in_and_out(load: Load, tmp_path: Path) -> None:
    results = run(load("decoding").BENCHMARK, tmp_path / "d.json", *OURS, "--shape", "64x3x2", "--batches", "5")
    config = xLSTMLargeConfig(**models.SIZES["7b"] | {"embedding_dim": 64, "num_blocks": 3, "num_heads": 2})
    state = 3 * 2 * 4 * (16 * 32 + 16 + 1)
    assert models.state_bytes(config) == state == results["model"]["state_bytes"]
    rate, floors = results["ceilings"]["copy_bytes_per_second"], results["points"][0]["floors_ms"]
    weights = models.weights_in(config)
    for kind, each in (("fp32", 4), ("int8", 1 + 2 / 64), ("int4", 0.5 + 4 / 64)):
        assert floors[kind] == pytest.approx(1e3 * (each * weights + 2 * 5 * state) / rate)


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[readers.Reader, Tensor], readers.Written]) -> None:
    """In the place of ours a reader that does this with it and a prompt."""
    make = models.MAKERS["ours"]

    def maker(weights: models.Weights) -> readers.Reader:
        right = make(weights)
        return lambda x, state=None: change(right, x)

    monkeypatch.setitem(models.MAKERS, "ours", maker)


def test_a_wrong_text_of_ours_is_no_time(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: at a batch of two the last row's text is zeros."""

    def wrong(right: readers.Reader, x: Tensor) -> readers.Written:
        result = right(x)

        def write(n: int) -> Tensor:
            text = result.write(n)
            text[1:] = 0
            return text

        return readers.Written(result.logits, write)

    planted(monkeypatch, wrong)
    results = run(load("decoding").BENCHMARK, tmp_path / "d.json", *OURS, code="B2: xlstm_hip: wrong: text")
    right, failed = entries_of(results, "xlstm_hip")
    assert "ms" in right and "ms" not in failed and failed["errors"]["logits"] < 1e-3 < failed["errors"]["text"]
    assert "| xlstm_hip | B2     | wrong: text |" in (tmp_path / "d.md").read_text()


def test_what_does_not_fit_skips_the_point(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no memory for two sequences; as text, as it comes through the C API. Larger batches are not tried."""
    tried: list[int] = []

    def full(right: readers.Reader, x: Tensor) -> readers.Written:
        tried.append(x.shape[0])
        if x.shape[0] > 1:
            raise RuntimeError("mlstm_chunkwise: CUDA out of memory. Tried to allocate 1 GiB")
        return right(x)

    planted(monkeypatch, full)
    options = ("--contenders", "xlstm_hip", "--dtypes", "fp32", "int8", "--batches", "4", "1", "2")
    results = run(load("decoding").BENCHMARK, tmp_path / "d.json", *options)
    assert tried == [1, 2]
    one, two, four = entries_of(results, "xlstm_hip")
    assert "ms" in one and two["missing"] == "out of memory" and four["missing"] == "out of memory at B2"
    assert all("ms" in entry for entry in entries_of(results, "xlstm_hip int8"))


def test_a_failure_of_ours_is_one_of_the_run(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(weights: models.Weights) -> readers.Reader:
        raise RuntimeError("planted")

    monkeypatch.setitem(models.MAKERS, "ours", broken)
    results = run(load("decoding").BENCHMARK, tmp_path / "d.json", *OURS, code="B1: xlstm_hip: RuntimeError: planted")
    assert entries_of(results, "xlstm_hip")[1]["missing"] == "RuntimeError: planted"


def test_the_time_is_kept(load: Load, tmp_path: Path) -> None:
    results = run(load("decoding").BENCHMARK, tmp_path / "d.json", *OURS, "--seconds", "1e-9")
    assert {e["missing"] for e in entries_of(results, "xlstm_hip")} == {"left out for time"}
    assert "left out for time" in (tmp_path / "d.md").read_text()


def test_other_contenders_are_kept(load: Load, tmp_path: Path) -> None:
    file, benchmark = tmp_path / "d.json", load("decoding").BENCHMARK
    options = ("--contenders", "xlstm_hip", "--shape", "64x1x2")
    run(benchmark, write_text(file, "{}"), *options, "--keep", code="--keep: expected a result file of decoding")
    before = run(benchmark, file, *options, "--dtypes", "fp32", "int8")
    before["environment"]["date"] = "2026-01-02T03:04:05"
    write_text(file, json.dumps(before))
    after = run(benchmark, file, *options, "--dtypes", "int8", "--keep")
    for kept, first in zip(entries_of(after, "xlstm_hip"), entries_of(before, "xlstm_hip"), strict=True):
        assert kept == first | {"date": "2026-01-02T03:04:05"}
    again = entries_of(after, "xlstm_hip int8")
    assert len(again) == 2 and all("date" not in e and "errors" in e for e in again)
    assert "Measured by a run of 2026-01-02: xlstm_hip." in file.with_suffix(".md").read_text()
    for other in (("--shape", "64x1x4"), ("--batches", "1")):
        run(benchmark, file, *options, *other, "--keep", code="--keep: expected a file with (model|points)")


def write_text(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "8b"], "--shape: expected one of demo, tiny, 4m, 7b or FEATURESxBLOCKSxHEADS .* got '8b'"),
        (["--shape", "100x1x3"], "--shape: qk_dim_factor: expected embedding_dim"),
        (["--batches", "0"], "--batches: expected a whole number >= 1, got '0'"),
        (["--dtypes", "int3"], "--dtypes: invalid choice: 'int3'"),
        (["--dtypes", "fp32", "bf16"], "--dtypes: expected at most one of fp32, bf16, fp16, got fp32 bf16"),
        (["--contenders", "vllm"], "--contenders: invalid choice: 'vllm'"),
        (["--seconds", "0"], "--seconds: expected a finite number above 0, got '0'"),
        (["--folder", "no/such"], "--folder: expected a folder, got 'no/such'"),
    ],
)
def test_bad_options(load: Load, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit):
        load("decoding").BENCHMARK.main([*QUICK, *options])
    assert re.search(message, capsys.readouterr().err)


def test_a_graph_writes_what_the_loop_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph's writer with a call in the place of a graph: the same tokens, over calls of write too."""
    pytest.importorskip("xlstm")
    replays: list[int] = []
    monkeypatch.setattr(readers, "captured", lambda call: lambda: (replays.append(1), call()))
    weights = models.random_weights(xLSTMLargeConfig(**models.SIZES["tiny"]), torch.float32, torch.device("cpu"))
    model = readers.official_model(weights.loaded(), torch.float32, torch.device("cpu"))
    x = torch.arange(3, 35).view(2, 16)
    with torch.no_grad():
        loop, graph = readers.of_official(model)(x), readers.of_official_in_graph(model, compile=False)(x)
        texts = [torch.cat((text.write(6), text.write(3)), 1) for text in (loop, graph)]
    assert torch.equal(*texts) and len(replays) == 9 - readers.STEPS_BEFORE_GRAPH


def test_a_text_read_in_parts_is_the_text() -> None:
    weights = models.random_weights(xLSTMLargeConfig(**models.SIZES["tiny"]), torch.float32, torch.device("cpu"))
    x = torch.randint(3, 256, (2, 80), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        read = models.MAKERS["ours"](weights)
        whole, parts = read(x), read(x[:, :32]).read_on(x[:, 32:64]).read_on(x[:, 64:])
        torch.testing.assert_close(parts.logits, whole.logits, rtol=1e-4, atol=1e-4)
        assert torch.equal(parts.write(4), whole.write(4))
        with pytest.raises(ValueError, match="read_on: expected a reader that continues"):
            readers.Written(whole.logits, whole.write).read_on(x)


def test_the_common_schedule_is_of_the_calls_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("auto", None):
        monkeypatch.delenv(SCHEDULE, raising=False)
        if before:
            monkeypatch.setenv(SCHEDULE, before)
        with pytest.raises(KeyError), common_schedule():
            assert os.environ[SCHEDULE] == "common"
            raise KeyError
        assert os.environ.get(SCHEDULE) == before


# ---- prefill


@pytest.mark.rows("everything")  # compiles the official model for each length
def test_prefill_smoke_run(load: Load, tmp_path: Path) -> None:
    """All that run on a CPU, at once and in chunks of which the last is shorter."""
    pytest.importorskip("matplotlib")
    out = tmp_path / "prefill.json"
    options = ("--batches", "2", "--lengths", "32", "80", "--dtypes", "fp32", "int4")
    results = run(load("prefill").BENCHMARK, out, *options)
    one, more = results["points"]
    assert (one["title"], more["title"], results["settings"]["chunk"]) == ("B2 S32", "B2 S80", 32)
    for point, chunks in ((one, False), (more, True)):
        timed = [e for e in point["contenders"] if "ms" in e]
        assert [e["name"] for e in timed][:2] == ["xlstm_hip", "xlstm_hip int4"]
        for entry in timed:
            assert ("in_chunks" in entry) == ("in chunks" in entry["errors"]) == chunks
            assert max(entry["errors"].values()) <= entry["limit"]
    text = out.with_suffix(".md").read_text()
    assert "What reading in chunks of 32 adds" in text and re.search(r"\| xlstm_large compiled +\| all ", text)
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_a_state_that_is_lost_between_chunks_is_wrong(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: each chunk is read from the beginning."""

    def forgets(right: readers.Reader, x: Tensor) -> readers.Written:
        result = right(x)
        return readers.Written(result.logits, result.write, read_on=lambda more: forgets(right, more))

    planted(monkeypatch, forgets)
    options = (*OURS, "--batches", "1", "--lengths", "80")
    results = run(load("prefill").BENCHMARK, tmp_path / "p.json", *options, code="xlstm_hip: wrong: in chunks")
    [entry] = entries_of(results, "xlstm_hip")
    assert entry["errors"]["logits"] < 1e-3 < entry["errors"]["in chunks"] and "ms" not in entry
