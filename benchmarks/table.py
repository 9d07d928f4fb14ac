# SPDX-License-Identifier: Apache-2.0
"""The Markdown tables of a result file of mlstm_cpu.py; with --short the one in docs/benchmarks.md.

python benchmarks/table.py results/mlstm_cpu.json [--short]
"""

from __future__ import annotations

import sys
from pathlib import Path

from mlstm_cpu import BENCHMARK
from pages.mlstm_cpu import markdown, time_table
from xlstm_hip.bench.result_files import read

if __name__ == "__main__":
    results = read(Path(sys.argv[1]), BENCHMARK.name)
    print("\n".join(time_table(results, brief=True)) if "--short" in sys.argv[2:] else markdown(results))
