# SPDX-License-Identifier: Apache-2.0
"""The benchmark of whole models: it runs, all contenders write the same, and its files hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness import whole_models
from xlstm_hip.bench.models import Weights, plain_model
from xlstm_hip.bench.readers import Reader, Written, of_package

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_smoke_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    pytest.importorskip("xlstm")
    out = tmp_path / "made" / "smoke.json"
    options = ("--quick", "--size", "demo", "--threads", "1", "--out", str(out))
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "model.py"), *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    text = out.with_suffix(".md").read_text()
    assert done.stdout.startswith(text) and "A smoke run" in text
    assert out.with_suffix(".png").stat().st_size > 10_000

    (size,) = json.loads(out.read_text())["sizes"]
    assert size["weights"] == 923_296
    jobs = {job["job"]: job for job in size["jobs"]}
    assert list(jobs) == ["write B1", "write B8", "read B1 S32", "read B2 S128", "first token after 32"]
    names = [entry["name"] for entry in jobs["write B8"]["contenders"]]
    assert names == ["xlstm_hip", "xlstm_hip int8", "xlstm_hip int4", "transformers", "xlstm_large"]
    for job in size["jobs"]:
        for entry in job["contenders"]:
            assert entry["ms"]["min"] <= entry["ms"]["median"] <= entry["ms"]["max"] and entry["tokens_per_s"] > 0
    assert list(size["errors"]) == names and "Errors to the plain kernels" in text and "INEXACT" not in text
    assert all(max(row["logits"], row["text"]) <= row["limit"] < 1 for row in size["errors"].values())
    assert [row["length"] for row in size["memory"]] == [4, 8] and size["loading"]["load"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_text_of_ours_ends_the_run(dtype: torch.dtype) -> None:
    """Planted: right logits after the prompt, then zeros."""
    plain = plain_model(Weights(BENCHMARKS.parent / "models" / "demo", dtype, torch.device("cpu")))
    right = of_package(plain)

    def zeros(x: Tensor, state: Any = None) -> Written:
        result = right(x, state)
        return Written(result.logits, lambda n: torch.zeros_like(result.write(n)))

    x, name = torch.arange(3, 19)[None], {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]

    def check(**found: Reader) -> Any:
        return whole_models.check(found, lambda bits: plain, x, name)

    with torch.no_grad():
        assert check(xlstm_hip=right)["xlstm_hip"] == {"logits": 0, "text": 0, "limit": whole_models.MODEL_EXACT[name]}
        with pytest.raises(SystemExit, match=r"xlstm_hip: errors 0 \(logits\), .* \(text\), expected at most"):
            check(xlstm_hip=zeros)
        if dtype == torch.float32:
            with pytest.raises(SystemExit, match="transformers writes otherwise than xlstm_hip"):
                check(xlstm_hip=right, transformers=zeros)
        else:
            assert check(xlstm_hip=right, transformers=zeros)["transformers"]["text"] > whole_models.MODEL_EXACT[name]
