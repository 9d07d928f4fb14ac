# SPDX-License-Identifier: Apache-2.0
"""The Markdown tables of a result file of mlstm_cpu.py; with --short the one that README.md has.

python benchmarks/table.py results/mlstm_cpu.json [--short]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlstm_hip.bench.environment import BUSY, summary
from xlstm_hip.bench.table import lines_of, short, spread_text

Results = dict[str, Any]
MB = 1e6
SIDES = ("mlstm_kernels", "transformers")
ERROR_COLUMNS = ("h", "c", "dq", "dk", "dv", "di", "df")


def least_ratio(cell: Results, ours: str) -> dict[str, Any] | None:
    """Against the fastest peer; None where there is no peer."""
    own = [ratio for ratio in cell["ratios"] if ratio["ours"] == ours]
    return min(own, key=lambda ratio: ratio["median"], default=None)


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def _time_row(results: Results, cell: Results, ours: Results) -> tuple[str, ...]:
    by_side = {ratio["side"]: ratio for ratio in cell["ratios"] if ratio["ours"] == ours["name"]}
    kernels = {kernel["name"]: kernel for kernel in cell["kernels"]}
    peers: list[str] = []
    ratios: list[str] = []
    for side in SIDES:
        ratio = by_side.get(side)
        if ratio is None:
            peers.append("n/a")
            ratios.append("n/a")
        else:
            peers.append(spread_text(kernels[ratio["peer"]]["ms"]) + _variant(ratio["peer"]))
            ratios.append(f"{ratio['median']:.2f}x ({ratio['min']:.2f}..{ratio['max']:.2f})")
    least = least_ratio(cell, ours["name"])
    aim = results["aims"][cell["work"]][cell["dtype"]]
    verdict = "n/a" if least is None else _verdict(least["median"] >= aim)
    share = cell["yardstick"]["share"][ours["name"]]["median"]
    if cell["work"] == "step":
        floor = f"{share:.0%} of copy"
    else:
        floor = f"{share:.0%} ({_verdict(share >= results['aims']['share of matmul'])})"
    work = cell["work"] + (", in place" if "in place" in ours["name"] else "")
    return (work, cell["dtype"], cell["size"], spread_text(ours["ms"]), *peers, *ratios, f"{aim:g}x {verdict}", floor)


def short_table(results: Results) -> list[str]:
    """The README's: medians alone."""
    rows = []
    for cell, kernel in _ours(results):
        by_side = {ratio["side"]: ratio for ratio in cell["ratios"] if ratio["ours"] == kernel["name"]}
        row = _time_row(results, cell, kernel)
        official = by_side.get(SIDES[0])
        peer = next((k for k in cell["kernels"] if official and k["name"] == official["peer"]), None)
        theirs = "n/a" if peer is None else f"{short(peer['ms']['median'])}{_variant(peer['name'])}"
        ratios = (f"{by_side[side]['median']:.2f}x" if side in by_side else "n/a" for side in SIDES)
        rows.append((*row[:3], short(kernel["ms"]["median"]), theirs, *ratios, *row[-2:]))
    return lines_of(
        ("work", "dtype", "size", "ours ms", "mlstm_kernels ms", "to mlstm_kernels", "to HF", "aim", "matmul"), rows
    )


def _ours(results: Results) -> Iterator[tuple[Results, Results]]:
    return ((cell, k) for cell in results["cells"] for k in cell["kernels"] if k["side"] == "xlstm_hip")


def _variant(peer: str) -> str:
    return " " + peer.rpartition("_")[2] if "_" in peer else ""


def _times(results: Results) -> list[str]:
    columns = (
        "work",
        "dtype",
        "size",
        "ours ms",
        "mlstm_kernels ms",
        "HF ms",
        "to mlstm_kernels",
        "to HF",
        "aim",
        "matmul",
    )
    rows = [_time_row(results, cell, kernel) for cell, kernel in _ours(results)]
    return lines_of(columns, rows)


def _errors(results: Results) -> list[str]:
    rows = []
    for cell in results["cells"]:
        for kernel in cell["kernels"]:
            lead = (cell["work"], cell["dtype"], cell["size"], kernel["name"])
            if "missing" in kernel:
                rows.append((*lead, "n/a", *("" for _ in ERROR_COLUMNS), kernel["missing"]))
                continue
            limit = results["settings"]["exact"][cell["dtype"]]
            errors = kernel["errors"]
            cells = (f"{errors[name]:.1e}" if name in errors else "" for name in ERROR_COLUMNS)
            wrong = [name for name, error in errors.items() if not error <= limit]
            note = f"inexact: {', '.join(wrong)}" if wrong else ""
            rows.append((*lead, spread_text(kernel["ms"]), *cells, note))
    return lines_of(("work", "dtype", "size", "kernel", "ms", *ERROR_COLUMNS, "note"), rows)


def _memory(results: Results) -> list[str]:
    cells = results["memory"]["cells"]
    names = [kernel["name"] for kernel in cells[0]["kernels"]]
    columns = ("dtype", "size", *names, "outputs and gradients", "and a state per segment")
    rows = []
    for cell in cells:
        grown = [f"{k['bytes'] / MB:.0f}" if "bytes" in k else f"n/a: {k['missing']}" for k in cell["kernels"]]
        states = cell["segment_state_bytes"]
        allowed = "n/a" if states is None else f"{(cell['result_bytes'] + states) / MB:.0f}"
        rows.append((cell["dtype"], cell["size"], *grown, f"{cell['result_bytes'] / MB:.0f}", allowed))
    return lines_of(columns, rows)


def markdown(results: Results) -> str:
    facts, first = results["environment"], results["cells"][0]
    rates = {cell["yardstick"]["name"]: cell["yardstick"]["giga_per_second"]["median"] for cell in results["cells"]}
    machine = ", ".join(f"{name} {rate:.0f} {'GB/s' if 'copy' in name else 'GFLOP/s'}" for name, rate in rates.items())
    shape = f"NH{first['heads']}, head dims {first['dqk']}/{first['dhv']}, chunks of {first['chunk_size']}"
    limits = " or ".join(f"{limit:g} in {dtype}" for dtype, limit in results["settings"]["exact"].items())
    warnings = []
    if results["settings"]["quick"]:
        warnings.append("**A smoke run: small shapes and too few rounds to be figures.**")
    if facts["load_before"] > BUSY:
        warnings.append(f"**The machine was busy when this began (load {facts['load_before']:.1f}).**")
    lines = [
        "# mLSTM on the CPU",
        "",
        summary(facts) + ".",
        f"{shape}; B1 where a row does not say.",
        f"{machine}, torch.matmul bf16 {results['bf16_matmul_gflops']:.0f} GFLOP/s.",
        *(x for warning in warnings for x in ("", warning)),
        "",
        "## Times",
        "",
        *_times(results),
        "",
        "Medians in ms (min..max). Of mlstm_kernels the faster of native_autograd and native_custbw stands here.",
        "A ratio is the median of the rounds' own; the aim counts against the fastest peer. matmul: the share of the",
        "rate of torch.matmul in fp32, on the products that the definition needs (a backward pass is two forward",
        "passes); of a step the share of copy bandwidth, which states that fit the cache exceed. A step's states are",
        "float32.",
        "",
        "## Every kernel, and how exact it is",
        "",
        *_errors(results),
        "",
        "Relative errors (2-norm) to a float64 truth, at the shape that was timed (the last head of a sequence);",
        f"inexact means above {limits}. The gradient of native_custbw holds the normaliser constant, which",
        "is not the derivative; its time counts all the same.",
        "",
        "## Memory of forward and backward, MB",
        "",
        *_memory(results),
        "",
        f"Method: {results['memory']['method']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = json.loads(Path(sys.argv[1]).read_text())
    print("\n".join(short_table(made)) if "--short" in sys.argv[2:] else markdown(made))
