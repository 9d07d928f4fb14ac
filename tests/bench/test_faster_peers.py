# SPDX-License-Identifier: Apache-2.0
"""Where a peer is faster: the page is of the result files, and has what was planted in them and nothing else."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pages import faster_peers as page

Load = Callable[[str], Any]
MS = {"ours": 1.0, "ours, raw ops": 0.1, "ours, common schedule": 2.0, "peer": 1.5, "plain torch": 0.01}


def entry(name: str, ms: float, **facts: Any) -> dict[str, Any]:
    provider = "xlstm_hip" if name.startswith("ours") else "reference" if name == "plain torch" else "mlstm_kernels"
    times = {"median": ms, "min": ms, "max": ms, "samples": [ms] * 3}
    return {"name": name, "provider": provider, "ms": times, "times_ours": {"median": ms}} | facts


def results_of(**changes: float) -> dict[str, Any]:
    entries = [entry(name, ms) for name, ms in (MS | changes).items()]
    return {
        "benchmark": "xlstm-hip bench",
        "settings": {"quick": False, "device": "cpu"},
        "environment": ENVIRONMENT,
        "points": [{"operator": "mlstm", "title": "forward S64", "entries": entries}],
    }


ENVIRONMENT = json.loads(
    (Path(__file__).resolve().parents[2] / "benchmarks/results/attention_cpu.json").read_text(encoding="utf-8")
)["environment"]


def losses(results: dict[str, Any], common: bool = False) -> list[tuple[str, str, float]]:
    found = page.comparisons("planted", results, common)
    return [(x.ours["name"], x.peer["name"], round(x.ratio["median"], 3)) for x in found if x.lost]


def test_the_page_is_of_the_files(load: Load) -> None:
    script = load("faster_peers")
    assert script.PAGE.read_text(encoding="utf-8") == page.markdown(script.files_in(script.HERE / "results"))


def test_what_a_peer_wins() -> None:
    """Bare ops are no answer to a peer, and plain torch is none."""
    assert losses(results_of()) == [] and losses(results_of(), common=True) == [("ours, common schedule", "peer", 0.75)]
    assert losses(results_of(peer=0.9)) == [("ours", "peer", 0.9)]
    assert losses(results_of(peer=0.98)) == []
    text = page.markdown({"planted": results_of(peer=0.98)})
    assert "A peer is faster in none of 1 comparisons; by less than 3% in 1 more." in text
    assert "A peer is faster in 1 of 1 comparisons; by less than 3% in none more." in text  # of the common schedule
    assert "| mlstm: forward S64 | ours, common schedule | peer | 2" in text and "| 0.49x    |" in text


def test_notes() -> None:
    results = results_of(peer=0.5)
    [ours, peer] = (e for e in results["points"][0]["entries"] if e["name"] in ("ours", "peer"))
    assert "inexact" not in page.markdown({"planted": results})
    peer["inexact"] = ["dq"]
    peer["ms"]["samples"] = [0.5, 0.5, 1.1]
    assert "| inexact: dq; within the rounds' spread |" in page.markdown({"planted": results})
    peer |= {"inexact": [], "provider": "FLA"}
    assert "| another function; within the rounds' spread |" in page.markdown({"planted": results})


def test_contenders_one_after_the_other_have_no_rounds_together() -> None:
    """Of decoding: other numbers of samples; int8 of ours is no answer to bf16 of a peer."""
    ours, rounded, peer = entry("ours", 2.0), entry("ours int8", 0.5), entry("xlstm_large", 1.0)
    for each in (ours, rounded, peer):
        del each["times_ours"]
    peer["ms"]["samples"] = [1.0]
    point = {"title": "B4", "contenders": [ours, rounded, peer]}
    results = results_of() | {"benchmark": "decoding", "points": [point]}
    assert losses(results) == [("ours", "xlstm_large", 0.5)]


def test_bad_files(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(ValueError, match="planted: expected a result file of .*, got 'other'"):
        page.markdown({"planted": results_of() | {"benchmark": "other"}})
    quick = copy.deepcopy(results_of())
    quick["settings"]["quick"] = True
    with pytest.raises(ValueError, match="planted.json: expected figures, got a smoke run"):
        page.markdown({"planted": quick})
    monkeypatch.setattr(sys, "argv", ["faster_peers.py", "--results", str(tmp_path)])
    with pytest.raises(SystemExit):
        load("faster_peers").main()
    assert "--results: expected a folder with result files" in capsys.readouterr().err
