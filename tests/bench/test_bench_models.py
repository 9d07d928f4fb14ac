# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip bench of whole models: texts are held to the plain model, contexts read once, models made in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip.bench import models, operators, readers, runner
from xlstm_hip.bench.registry import HUGGING_FACE, PLAIN, XLSTM_HIP, Implementation
from xlstm_hip.bench.runner import Settings


class Planted:
    """A reader whose logits are right and whose text is not: what it writes is this."""

    def __init__(self, token: int | None) -> None:
        self.token = token

    def __call__(self, right: readers.Reader) -> readers.Reader:
        def read(x: Tensor, state: Any = None) -> readers.Written:
            result = right(x, state)

            def write(n: int) -> Tensor:
                text = result.write(n)
                if self.token is not None:
                    text[:, n // 2] = self.token
                return text

            return readers.Written(result.logits, write)

        return read


def run_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, **planted: Planted) -> dict[str, Any]:
    """The entries of the first point by name; planted ones stand for ours."""
    makers = {name: (lambda w, p=p: p(models.MAKERS["ours"](w))) for name, p in planted.items()}
    monkeypatch.setattr(models, "MAKERS", models.MAKERS | makers)
    implementations = tuple(x for x in models.IMPLEMENTATIONS if x.provider in (XLSTM_HIP, PLAIN))
    implementations += tuple(Implementation(name, XLSTM_HIP, models._prepared(name)) for name in planted)
    write = operators.OPERATORS["write"]
    points = lambda scale: write.points(scale)[:1]  # noqa: E731
    monkeypatch.setitem(operators.OPERATORS, "write", replace(write, implementations=implementations, points=points))
    settings = Settings(operators=("write",), device="cpu", dtypes=(dtype,), quick=True)
    return {e["name"]: e for e in runner.run(settings, tmp_path / "writing.json")["points"][0]["entries"]}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_text_is_held_to_the_plain_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str) -> None:
    """Planted: right logits after the prompt, then zeros, a token that is none, or one wrong token of all."""
    found = run_writing(
        tmp_path, monkeypatch, dtype, right=Planted(None), zeros=Planted(0), none=Planted(-1), beyond=Planted(1 << 20)
    )
    for name in ("zeros", "none", "beyond"):
        assert found[name]["failed"] == "wrong: text; not timed" and "ms" not in found[name]
    assert found["plain torch"]["errors"] == {"logits": 0, "text": 0}
    for name in ("right", "ours", "ours int8", "ours int4"):
        assert found[name]["inexact"] == [] and "ms" in found[name]


def test_rounded_weights_are_held_to_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planted: weights of 8 bits in the place of 4, and whole ones in the place of 8: nearer the model, and wrong."""
    makers = models.MAKERS | {"ours int8": models.MAKERS["ours"], "ours int4": models.MAKERS["ours int8"]}
    monkeypatch.setattr(models, "MAKERS", makers)
    found = run_writing(tmp_path, monkeypatch, "fp32")
    for name in ("ours int8", "ours int4"):
        assert found[name]["failed"].startswith("wrong: logits") and "ms" not in found[name]


def test_a_text_before_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By ours, for all, who then read its last token; before that each model is made ready with a shorter text."""
    read: list[tuple[str, int]] = []

    def noted(name: str, make: Callable[[models.Weights], readers.Reader]) -> Any:
        def counted_reader(weights: models.Weights) -> readers.Reader:
            original = make(weights)

            def reader(x: Tensor, state: Any = None) -> readers.Written:
                read.append((name, x.shape[1]))
                return original(x, state)

            return reader

        return counted_reader

    monkeypatch.setattr(models, "READY_TOKENS", 8)
    monkeypatch.setattr(models, "MAKERS", {name: noted(name, make) for name, make in models.MAKERS.items()})
    settings = Settings(operators=("write",), device="cpu", dtypes=("fp32",), quick=True)
    points = runner.run(settings, tmp_path / "writing.json")["points"]
    assert [n for name, n in read if name == "ours" and n > 8] == [p["x"] - 1 for p in points]
    assert {n for name, n in read if name != "ours"} == {8, 1}
    entries = [e for p in points for e in p["entries"] if "missing" not in e]
    assert {"ours", "ours int8", "ours int4", "plain torch"} <= {e["name"] for e in entries}
    assert all(e["inexact"] == [] and max(e["errors"].values()) < 1e-3 for e in entries)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_weights_are_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str) -> None:
    """For all points, whatever the device is called: cpu:0 is to the tensors made there cpu, as cuda is cuda:0."""
    results = []
    make = models.random_weights
    monkeypatch.setattr(models, "random_weights", lambda *settings: results.append(settings) or make(*settings))
    settings = Settings(operators=("write",), providers=(XLSTM_HIP,), device=device, dtypes=("fp32",), quick=True)
    points = runner.run(settings, tmp_path / "writing.json")["points"]
    assert len(points) == 2 and all("ms" in entry for point in points for entry in point["entries"])
    assert len(results) == 1


def test_models_of_peers_do_not_eat_the_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planted: the first peer's takes more than its part; ours are measured everywhere, the next peer is left out."""
    write = operators.OPERATORS["write"]
    fused, slow, late = (Implementation(name, provider, models._prepared("ours")) for name, provider in
                        (("ours", XLSTM_HIP), ("slow", HUGGING_FACE), ("late", HUGGING_FACE)))  # fmt: skip

    def ready(name: str, cell: models.Cell, device: torch.device) -> None:
        time.sleep(1.5 * (name == "slow"))

    planted = replace(write, implementations=(slow, late, fused), ready=ready)
    monkeypatch.setitem(operators.OPERATORS, "write", planted)
    settings = Settings(operators=("write",), device="cpu", dtypes=("fp32",), quick=True, seconds=30)
    monkeypatch.setattr(runner, "READY_PART", 0.03)
    for point in runner.run(settings, tmp_path / "writing.json")["points"]:
        entries = {e["name"]: e for e in point["entries"]}
        assert "ms" in entries["ours"] and "ms" in entries["slow"]
        assert entries["late"]["missing"] == "left out for time: its model was not made"
