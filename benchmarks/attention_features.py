# SPDX-License-Identifier: Apache-2.0
"""What features cost attention on a GPU: packed sequences and shared key heads beside dense ones, windows, and decoding
against a long cache, flat and in pages, beside what a copy moves; and MLA.

    python benchmarks/attention_features.py            on the GPU; results/attention_features.json and .md
    python benchmarks/attention_features.py --quick    a smoke run at small shapes

The last head of every result is held to float64 first. The calls of a table take turns, so ratios to its first row are
the medians of the rounds' own. Speed is of the products of the pairs that are seen (TFLOP/s), for decoding of the keys
and values that are read (GB/s).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention import FOLDER, FULL, QUICK
from xlstm_hip.attention import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from xlstm_hip.bench.environment import environment, summary
from xlstm_hip.bench.machine import Machine, ceilings
from xlstm_hip.bench.operators import ATTENTION_EXACT
from xlstm_hip.bench.registry import relative_error
from xlstm_hip.bench.result_files import save
from xlstm_hip.bench.table import lines_of
from xlstm_hip.bench.timing import interleaved, paired_ratio
from xlstm_hip.progress import Tasks
from xlstm_hip.reference.attention import attention
from xlstm_hip.whole_files import write_whole

HEAD_DIM = 128
EXACT = ATTENTION_EXACT["bf16"]
MLA_DIMS = (512, 64)  # of values, and what keys have beyond
UNITS = {"tflops": "TFLOP/s", "gb_per_second": "GB/s"}


@dataclass(frozen=True)
class Row:
    name: str
    call: Callable[[], Tensor]
    truth: Callable[[], Tensor]  # (1, S, 1, D) of the last sequence's last head, in float64
    flops: float = 0.0
    bytes: float = 0.0


def draw(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def of_last_head(q: Tensor, k: Tensor, v: Tensor, **rules: Any) -> Tensor:
    q, k, v = (x[-1:, :, -1:].double() for x in (q, k, v))
    return attention(q, k, v, **rules)[0]


def product_flops(pairs: float) -> float:
    return 4 * HEAD_DIM * pairs


def of_forward(device: torch.device, quick: bool) -> list[Row]:
    """Causal, as many tokens and heads each. The first is what others are held to."""
    length, heads = (512, 4) if quick else (8192, 16)
    q, k, v = (draw(device, 2, length, heads, HEAD_DIM) for _ in range(3))
    few = [x[:, :, : heads // 4].contiguous() for x in (k, v)]
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    ends = torch.tensor([0, length, 2 * length], device=device, dtype=torch.int32)
    flops = product_flops(2 * heads * length**2 / 2)

    def packed() -> Tensor:
        return flash_attn_varlen_func(*flat, ends, ends, length, length, causal=True).unflatten(0, (2, length))

    def dense() -> Tensor:
        return of_last_head(q, k, v, causal=True)

    rows = [
        Row("dense", lambda: flash_attn_func(q, k, v, causal=True), dense, flops),
        Row(
            "a key head for four",
            lambda: flash_attn_func(q, *few, causal=True),
            lambda: of_last_head(q, *few, causal=True),
            flops,
        ),
        Row("packed", packed, dense, flops),
    ]
    for side in (length // 32, length // 8):
        seen = 2 * heads * (length * side - side**2 / 2)

        def windowed(side: int = side) -> Tensor:
            return flash_attn_func(q, k, v, causal=True, window_size=(side, 0))

        def true(side: int = side) -> Tensor:
            return of_last_head(q, k, v, causal=True, window_size=(side, 0))

        rows.append(Row(f"a window of {side}", windowed, true, product_flops(seen)))
    return rows


def of_decoding(device: torch.device, quick: bool) -> list[Row]:
    """One token against a cache of one sequence."""
    keys, heads, key_heads = (2048, 8, 2) if quick else (128 << 10, 32, 8)
    q = draw(device, 1, 1, heads, HEAD_DIM)
    cache = [draw(device, 1, keys, key_heads, HEAD_DIM) for _ in range(2)]
    moved = 2 * cache[0].numel() * cache[0].element_size()

    def true() -> Tensor:
        return of_last_head(q, *cache)

    rows = [Row("flat", lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=keys), true, bytes=moved)]
    for size in (16, 256):
        table = torch.randperm(keys // size, device=device).int()[None]
        pages = [torch.empty_like(x).view(-1, size, key_heads, HEAD_DIM) for x in cache]
        for own, x in zip(pages, cache, strict=True):
            own[table[0].long()] = x.view_as(own)  # the same tokens, elsewhere

        def paged(pages: list[Tensor] = pages, table: Tensor = table) -> Tensor:
            return flash_attn_with_kvcache(q, *pages, cache_seqlens=keys, block_table=table)

        rows.append(Row(f"pages of {size}", paged, true, bytes=moved))
    return rows


def of_mla(device: torch.device, quick: bool) -> list[Row]:
    """Decoding with a latent cache: one token of each sequence, in pages of 64."""
    batch, keys = (2, 256) if quick else (64, 8192)
    cache = draw(device, batch * keys // 64, 64, 1, sum(MLA_DIMS))
    table = torch.arange(batch * keys // 64, device=device, dtype=torch.int32).view(batch, -1)
    lengths = torch.full((batch,), keys, device=device, dtype=torch.int32)
    rows = []
    for heads in (128, 64, 16):
        q = draw(device, batch, 1, heads, sum(MLA_DIMS))
        older = get_mla_metadata(lengths, heads, 1)

        def call(q: Tensor = q, older: tuple[Any, ...] = older) -> Tensor:
            return flash_mla_with_kvcache(q, cache, table, lengths, MLA_DIMS[0], *older)[0]

        def true(q: Tensor = q) -> Tensor:
            own = cache.view(batch, keys, 1, sum(MLA_DIMS))
            return of_last_head(q, own, own[..., : MLA_DIMS[0]])

        flops = 2 * (2 * MLA_DIMS[0] + MLA_DIMS[1]) * batch * heads * keys
        rows.append(Row(f"{heads} heads", call, true, flops, cache.numel() * cache.element_size()))
    return rows


def measure(rows: list[Row], machine: Machine, quick: bool, progress: Tasks) -> list[dict[str, Any]]:
    progress.begin(rows[0].name)
    errors = {row.name: relative_error(row.call()[-1:, :, -1:], row.truth()) for row in rows}
    for name, error in errors.items():
        if not error <= EXACT:
            raise SystemExit(f"{name}: error {error:.3g}, expected at most {EXACT}")
    samples = interleaved(
        {row.name: row.call for row in rows}, QUICK if quick else FULL, progress.advance, machine.seconds
    )
    made = []
    for row in rows:
        ms = samples[row.name].as_json()
        entry = {
            "name": row.name,
            "error": errors[row.name],
            "ms": ms,
            "times_first": paired_ratio(samples[row.name].ms, samples[rows[0].name].ms),
        }
        if row.flops:
            entry["tflops"] = row.flops / ms["median"] / 1e9
        if row.bytes:
            entry["gb_per_second"] = row.bytes / ms["median"] / 1e6
        made.append(entry)
    return made


def markdown(results: dict[str, Any]) -> str:
    lines = ["# What features cost attention", ""]
    if results["settings"]["quick"]:
        lines += ["**A smoke run: its figures mean nothing.**", ""]
    copied = results["ceilings"]["copy_bytes_per_second"] / 1e9
    lines += [f"{summary(results['environment'])}. bfloat16, head dim {HEAD_DIM}; a copy moves {copied:.0f} GB/s.", ""]
    for title, entries in results["tables"].items():
        units = {key: name for key, name in UNITS.items() if key in entries[0]}
        checked = "error" in entries[0]  # older files have none
        columns = ("", "ms", f"times {entries[0]['name']}", *units.values(), *(["error"] if checked else []))
        rows = [
            (
                e["name"],
                f"{e['ms']['median']:.3g}",
                f"{e['times_first']['median']:.2f}",
                *(f"{e[u]:.0f}" for u in units),
                *([f"{e['error']:.1e}"] if checked else []),
            )
            for e in entries
        ]
        lines += [f"## {title}", "", *lines_of(columns, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path, help="JSON; the tables go beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: no figures, a smoke run")
    given = parser.parse_args()
    machine = Machine(given.device)
    tables = {
        "Forward, causal": of_forward(machine.device, given.quick),
        "Decoding one token": of_decoding(machine.device, given.quick),
        "MLA, decoding one token": of_mla(machine.device, given.quick),
    }
    with Tasks(len(tables)) as progress:
        measured = {title: measure(rows, machine, given.quick, progress) for title, rows in tables.items()}
    results = {
        "benchmark": "attention features",
        "environment": environment(given.device),
        "settings": {"quick": given.quick, "device": given.device},
        "ceilings": ceilings(machine, given.quick),
        "tables": measured,
    }
    out: Path = given.out or FOLDER / "attention_features.json"
    save(results, out)
    text = markdown(results)
    write_whole(out.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
