# SPDX-License-Identifier: Apache-2.0
"""The cost of attention's features on a GPU: packed sequences and shared key heads beside dense ones, windows, forward
and backward; decoding against a long cache, flat and in pages, beside what a copy moves; and MLA.

    python benchmarks/attention_features.py                on the GPU; results/attention_features.json, .md and .png
    python benchmarks/attention_features.py --quick        a smoke run at small shapes
    python benchmarks/attention_features.py --redraw FILE  tables and picture of a result file once more

The rows of a table take turns, so ratios to its first row are the medians of the rounds' own. Speed is of the products
of the pairs that are seen (TFLOP/s), for decoding of the keys and values that are read (GB/s).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.attention_features import MLA_BEYOND, MLA_VALUES, OPERATOR, Cell
from harness.benchmark import Benchmark, Job, Session
from pages.attention_features import HEAD_DIM, UNITS, draw, markdown
from xlstm_hip.bench import metrics
from xlstm_hip.bench.contest import Advance, Contest, Entry
from xlstm_hip.bench.machine import ceilings
from xlstm_hip.bench.timing import Pace

Rows = dict[str, Cell]  # by what they are called; the first is what others are held to


def sequences(quick: bool, work: str) -> Rows:
    length, heads = (512, 4) if quick else (8192, 16)
    dense = Cell(work, "bf16", 2, heads, heads, length, HEAD_DIM)
    packed = replace(dense, batch=1, tokens=2 * length)
    unlike = (0, length // 8, length // 2, length // 2 + 3, 2 * length)
    return {
        "dense": dense,
        "a key head for four": replace(dense, key_heads=heads // 4),
        "packed": replace(packed, ends=(0, length, 2 * length)),
        "packed, unlike lengths": replace(packed, ends=unlike),
        **{f"a window of {length // part}": replace(dense, window=length // part) for part in (32, 8, 2)},
    }


def decoding(quick: bool) -> Rows:
    keys, heads, key_heads = (2048, 8, 2) if quick else (128 << 10, 32, 8)
    flat = Cell("decode", "bf16", 1, heads, key_heads, keys, HEAD_DIM)
    return {"flat": flat} | {f"pages of {page}": replace(flat, page=page) for page in (1, 16, 64, 256)}


def mla(quick: bool) -> Rows:
    batch, keys = (2, 256) if quick else (64, 8192)
    most = Cell("mla", "bf16", batch, 128, 1, keys, MLA_VALUES + MLA_BEYOND, page=64)
    return {
        **{f"{heads} heads": replace(most, heads=heads) for heads in (128, 64, 16)},
        "128 heads, pages of 1": replace(most, page=1),
        "128 heads, flat": replace(most, page=0),
    }


def measure(session: Session, rows: Rows, columns: tuple[str, ...], advance: Advance) -> list[Entry]:
    (implementation,) = OPERATOR.implementations
    entries, calls = [], {}
    for name, cell in rows.items():
        entry, calls[name] = Contest(OPERATOR, cell, session.machine).enter_or_end(replace(implementation, name=name))
        entries.append(entry)
    session.race(entries, calls, advance)
    for entry in entries:
        metrics.say(rows[entry["name"]], entry, ("error", *columns))
        entry["times_first"] = entry.pop("times_ours")
    return entries


def plan(session: Session) -> list[Job]:
    tables = {
        "Forward, causal": (sequences(session.quick, "forward"), UNITS[:1]),
        "Backward, causal": (sequences(session.quick, "backward"), UNITS[:1]),
        "Decoding one token": (decoding(session.quick), UNITS[1:]),
        "MLA, decoding one token": (mla(session.quick), UNITS),
    }
    session.results |= {"ceilings": ceilings(session.machine, session.quick), "tables": {}}
    tables_out = session.results["tables"]
    return [
        Job(title, partial(measure, session, rows, columns), partial(tables_out.__setitem__, title))
        for title, (rows, columns) in tables.items()
    ]


BENCHMARK = Benchmark(
    "attention features", __file__, __doc__ or "", "attention_features", Pace(4, 5, 21, 0.02), plan, markdown, draw,
    devices=("cuda", "cpu"),
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
