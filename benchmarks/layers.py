# SPDX-License-Identifier: Apache-2.0
"""The layers around the mLSTM beside plain torch, and beside a copy of as many bytes as each must move.

    python benchmarks/layers.py                 on the CPU; results/layers_cpu.json, .md and .png beside this file
    python benchmarks/layers.py --device cuda   on the GPU
    python benchmarks/layers.py --quick         a smoke run at small shapes
    python benchmarks/layers.py --redraw FILE   the table and the picture of a result file once more

Memory binds these layers, so the copy is the aim: every input read once and every result written once, by torch's own
copy of a tensor of half that many bytes. On a GPU many tokens are the replay of a graph of the call, since a call with
gradients may take the host longer than the GPU; one token shows what a call costs. The calls of a turn, the copy's too,
come back to back, so what fits L2 is read from there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.benchmark import Benchmark, Job, Session, cell_of
from pages.layers import COPY, draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.layers import IMPLEMENTATIONS, LAYERS, WORKS, Cell
from xlstm_hip.bench.machine import copying
from xlstm_hip.bench.operators import OPERATORS
from xlstm_hip.bench.registry import XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import Pace, paired_ratio

OPERATOR = replace(
    OPERATORS["layers"], implementations=(replace(IMPLEMENTATIONS[0], name=XLSTM_HIP), IMPLEMENTATIONS[1])
)


def measure(session: Session, cell: Cell, advance: Advance) -> Results:
    machine, moved = session.machine, cell.bytes
    in_a_graph = machine.gpu and cell.tokens > 1
    entries, samples = session.compare(
        OPERATOR,
        cell,
        advance,
        shown_metrics=("error",),
        unchecked={COPY: copying(machine, moved)},
        as_timed=lambda call: machine.graph_of([call]) if in_a_graph else call,
    )
    copied = samples[COPY]
    ratio = paired_ratio(copied.ms, samples[XLSTM_HIP].ms)
    return cell_of(cell, [*entries, {"name": COPY, "ms": copied.as_json(), "times_ours": ratio}], bytes=moved)


def plan(session: Session) -> list[Job]:
    gpu, results = session.machine.gpu, session.results
    dtypes = ("bf16", "fp16") if gpu else ("fp32", "bf16")
    many = (64, 256) if session.quick else (8192 if gpu else 2048, session.args.width)
    results["settings"] |= {"exact": dict(OPERATOR.exact), "graphs": gpu}
    results["cells"] = []
    cells = [
        Cell(layer.name, work, dtype, tokens, width)
        for work in WORKS
        for dtype in dtypes
        for tokens, width in (many, (1, 128))
        for layer in LAYERS
    ]
    return [Job(cell.title, partial(measure, session, cell), results["cells"].append) for cell in cells]


BENCHMARK = Benchmark(
    "layers", __file__, __doc__ or "", "layers_{device}", Pace(1.5, 5, 21, 0.02), plan, markdown, draw,
    options=lambda parser: parser.add_argument("--width", type=int, default=4096, help="features"),
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
