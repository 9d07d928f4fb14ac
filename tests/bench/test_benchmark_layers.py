# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the layers: it runs, holds results to the truth, and makes its table and picture from the file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.rows("ci")  # runs the script as a user does
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "layers.py"


def test_smoke_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "made" / "smoke.json"
    command = [sys.executable, str(BENCHMARK), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = out.with_suffix(".md").read_text()
    assert done.stdout.startswith(text) and "A smoke run" in text
    assert out.with_suffix(".png").stat().st_size > 10_000

    results = json.loads(out.read_text())
    assert len({(c["layer"], c["work"], c["dtype"], c["tokens"]) for c in results["cells"]}) == 6 * 2 * 2 * 2
    for cell in results["cells"]:
        assert [entry["name"] for entry in cell["contenders"]] == ["xlstm_hip", "plain torch", "copy"]
        for entry in cell["contenders"]:
            assert entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"] and entry["times_ours"]["min"] > 0


def test_a_run_that_is_ended_leaves_what_it_has(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Planted: Ctrl-C in the eighth job, when some layers have no row of one token yet; or in the first."""
    pytest.importorskip("matplotlib")
    layers, out = load("layers"), tmp_path / "ended.json"
    measure, left = layers.measure, [7]

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(layers, "measure", interrupted)
    with pytest.raises(SystemExit) as ended:
        layers.BENCHMARK.main(["--quick", "--threads", "1", "--out", str(out)])
    assert ended.value.code == 130 and len(json.loads(out.read_text())["cells"]) == 7
    assert "**Ended early: not all points are here.**" in out.with_suffix(".md").read_text()
    assert {x.name for x in tmp_path.iterdir()} == {"ended.json", "ended.md", "ended.png"}
    with pytest.raises(SystemExit, match="ended before anything was measured"):
        layers.BENCHMARK.main(["--quick", "--threads", "1", "--out", str(tmp_path / "none.json")])
    assert not (tmp_path / "none.json").exists()
