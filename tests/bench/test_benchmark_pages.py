# SPDX-License-Identifier: Apache-2.0
"""benchmarks/results: what is shown of each file is made of that file alone, and is what is committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlstm_hip.bench import pictures, report, runner

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = {path.stem: path for path in (BENCHMARKS / "results").glob("*.json") if path.stem != "stream"}
MODULES = (
    "mlstm_cpu",
    "mlstm_gpu",
    "attention",
    "attention_features",
    "layers",
    "model",
    "decoding",
    "prefill",
    "training",
    "serving_http",
    "context_parallel",
    "tensor_parallel",
)


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_results_are_shown_as_committed(load: Callable[[str], Any], tmp_path: Path, name: str) -> None:
    results = json.loads(RESULTS[name].read_text(encoding="utf-8"))
    if results["benchmark"] == runner.BENCHMARK:
        markdown, draw = report.markdown, pictures.draw
    else:
        (benchmark,) = (b for b in (load(module).BENCHMARK for module in MODULES) if b.name == results["benchmark"])
        markdown, draw = benchmark.markdown, benchmark.draw
    assert markdown(results) == RESULTS[name].with_suffix(".md").read_text(encoding="utf-8")
    pytest.importorskip("matplotlib")
    files = draw(results, tmp_path / f"{name}.json")
    assert {path.name for path in files} == {path.name for path in tmp_path.iterdir()}
    assert all(path.stat().st_size > 10_000 for path in files)
