# SPDX-License-Identifier: Apache-2.0
"""Writes down what the table measured: a line of JSON per row, and a summary per kernel and dtype."""

from __future__ import annotations

import json
import math
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from support.accuracy import Measured

ROOT = Path(__file__).resolve().parents[2] / "test_outputs"
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


@dataclass
class Row:
    kernel: str
    dtype: torch.dtype
    case: str
    measured: Measured

    @property
    def ratio(self) -> float:
        ratio = self.measured.ratios[self.measured.worst]
        return math.inf if math.isnan(ratio) else ratio

    @property
    def failed(self) -> bool:
        return not self.ratio <= 1

    def over_one_run(self) -> int:
        return sum(not e <= self.measured.one_run[name] for name, e in self.measured.errors.items())

    def as_json(self) -> dict[str, Any]:
        errors = {name: [e, self.measured.tolerances[name]] for name, e in self.measured.errors.items()}
        return {
            "kernel": self.kernel,
            "dtype": SHORT[self.dtype],
            "case": self.case,
            "worst": self.measured.worst,
            "ratio": self.ratio,
            "error and tolerance": errors,
        }


class Report:
    """The rows of one test session. The folder is made with the first row."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.folder = ROOT / time.strftime("%Y-%m-%d_%H-%M-%S")

    def add(self, kernel: str, dtype: torch.dtype, case: str, measured: Measured) -> None:
        row = Row(kernel, dtype, case, measured)
        self.rows.append(row)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(row.as_json()) + "\n")

    def summary(self) -> list[str]:
        """A markdown table: per kernel and dtype the case and quantity that came closest to its tolerance."""
        table = [("kernel", "dtype", "cases", "failed", "error/tolerance", "quantity", "error", "in the case", "1-run")]
        groups: dict[tuple[str, torch.dtype], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.kernel, row.dtype), []).append(row)
        for (kernel, dtype), rows in groups.items():
            worst = max(rows, key=lambda row: row.ratio)
            name = worst.measured.worst
            single = f"{sum(r.over_one_run() for r in rows)}/{sum(len(r.measured.errors) for r in rows)}"
            failed = str(sum(r.failed for r in rows))
            error = f"{worst.measured.errors[name]:.2g}"
            table.append(
                (kernel, SHORT[dtype], str(len(rows)), failed, f"{worst.ratio:.2f}", name, error, worst.case, single)
            )
        widths = [max(len(line[j]) for line in table) for j in range(len(table[0]))]
        lines = ["| " + " | ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) + " |" for line in table]
        return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]

    def write_summary(self) -> list[str]:
        machine = f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads"
        lines = [
            f"mLSTM kernels against the float64 truth ({machine})",
            "",
            *self.summary(),
            "",
            "error/tolerance: the worst. The tolerance is twice plain torch's own error in that dtype.",
            "1-run: how many quantities, of how many, are above twice one single run of plain torch.",
            "Plain kernels have such too: it is what rounding alone does (tests/support/accuracy.py).",
        ]
        (self.folder / "summary.md").write_text("\n".join(lines) + "\n")
        return lines
