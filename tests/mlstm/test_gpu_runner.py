# SPDX-License-Identifier: Apache-2.0
"""The runner of the GPU's tests, tried on the CPU: it measures, tells failures, keeps its time, and needs no pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import gpu_runner, gpu_table
from support.gpu_checks import CHECKS, HOPPER_CASE
from support.poison import poisoned
from support.shapes import CASES, GATES, GPU_CASES, GPU_STEP_CASES, STEP_CASES, Case
from xlstm_hip import _native

SCRIPT = Path(__file__).resolve().parents[1] / "mlstm" / "test_gpu.py"


def test_it_runs_without_pytest(tmp_path: Path) -> None:
    for name in ("pytest", "hypothesis", "matplotlib", "rich"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here')\n")
    out = tmp_path / "rows.jsonl"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--out", str(out), "2 tokens, states-", "a side stream"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out: a side stream: only on a GPU" in done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["kernel"], row["dtype"]) for row in rows} >= {
        (kernel, dtype) for kernel in gpu_table.SEQUENCE_KERNELS for dtype in ("fp32", "bf16", "fp16")
    }
    last = done.stdout.splitlines()[-1]
    assert f"{len(rows)} done, 0 failed, 1 cannot run here, 0 left out" in last


def test_every_case_has_rows() -> None:
    rows = list(gpu_table.rows())
    assert {row.case for row in rows} == {*CASES, *STEP_CASES, *GPU_CASES, *GPU_STEP_CASES}
    assert len({str(row) for row in rows}) == len(rows)
    assert torch.float64 not in {row.dtype for row in rows}
    assert len({function.__name__ for function in CHECKS}) == len(CHECKS)


def test_hoppers_own_schedule_has_every_kind_of_case() -> None:
    def hopper(case: Case) -> bool:
        shape = (case.sequences, case.heads, case.length, case.dqk, case.dhv)
        cut = _native.plan_mlstm_gpu("H200", *shape, 2, panels=case.layout != "strided")
        return cut["forward"]["schedule"] == "hopper"

    hopper_cases = [case for case in GPU_CASES if hopper(case)]
    assert hopper(HOPPER_CASE) and {case.gates for case in hopper_cases} == set(GATES)
    assert {case.layout for case in hopper_cases} >= {"contiguous", "bshd"} and {
        c.normalizer_grad for c in hopper_cases
    } == {True, False}
    assert (
        {max(case.dqk, case.dhv) > 256 for case in hopper_cases}
        == {case.dqk > 256 for case in hopper_cases}
        == {True, False}
    )
    assert any(case.length % 64 for case in hopper_cases) and any(case.dqk % 16 for case in hopper_cases)


def test_a_failure_is_one_line(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_table.accuracy.mlstm_interface
    calls = []

    def wrong(*args: torch.Tensor, **kwargs: object) -> object:
        """A tenth too large, and by more at every call."""
        h, states = right(*args, **kwargs)  # type: ignore[misc]
        if kwargs["kernel"] != "chunkwise--fused":
            return h, states
        calls.append(h)
        return h * (1 + len(calls) / 10), states

    monkeypatch.setattr(gpu_table.accuracy, "mlstm_interface", wrong)
    assert gpu_runner.main(["--device", "cpu", "1 token-chunkwise--fused-fp32"]) == 1
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("FAILED"))
    assert "1 token-chunkwise--fused-fp32" in line and "h norm: error 0.1, allowed" in line and "other bits" in line


def test_an_exception_is_a_failure(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(gpu_table, "measure", broken)
    assert gpu_runner.main(["--device", "cpu", "1 token-chunkwise--fused-fp32"]) == 1
    assert "RuntimeError in test_gpu_runner.py" in capsys.readouterr().out


def test_it_keeps_its_time(capsys: pytest.CaptureFixture) -> None:
    assert gpu_runner.main(["--device", "cpu", "--seconds", "-1", "1 token-"]) == 0
    message = capsys.readouterr().out
    assert " 0 done, 0 failed, 0 cannot run here, 12 left out for time" in message


def test_a_text_that_fits_nothing(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        gpu_runner.main(["--device", "cpu", "no such row"])
    assert "'no such row'" in capsys.readouterr().err


def test_poison_and_bits() -> None:
    with poisoned():
        assert torch.empty(5).isnan().all() and (torch.empty(5, dtype=torch.uint8) == 255).all()
    assert not torch.are_deterministic_algorithms_enabled()
    x = torch.ones(3)
    gpu_table.same_bits("x", {"x": x}, {"x": x.clone()})
    for different in (x.double(), x[:2], x * torch.tensor([1, 1, 1 + 2**-23]), x * torch.nan):
        with pytest.raises(AssertionError, match="x: "):
            gpu_table.same_bits("x", {"x": different}, {"x": x})


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_runner.main([]) == 0
    assert capsys.readouterr().out == "left out: no GPU that torch can use\n"
