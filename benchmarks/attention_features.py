# SPDX-License-Identifier: Apache-2.0
"""What features cost attention on a GPU: packed sequences and shared key heads beside dense ones, windows, forward and
backward; decoding against a long cache, flat and in pages, beside what a copy moves; and MLA.

    python benchmarks/attention_features.py            on the GPU; results/attention_features.json, .md and .png
    python benchmarks/attention_features.py --quick    a smoke run at small shapes

The last head of every result, of backward's that of dq, is held to float64 first. The calls of a table take turns, so
ratios to its first row are the medians of the rounds' own. Speed is of the products of the pairs that are seen
(TFLOP/s), for decoding of the keys and values that are read (GB/s).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
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
from xlstm_hip.bench.plot import save as save_figure
from xlstm_hip.bench.plot import subplots
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
PAGES = (1, 16, 64, 256)
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


@dataclass(frozen=True)
class Features:
    """A causal call with as many tokens and heads as the others."""

    name: str
    call: Callable[..., Tensor]  # of q, k, v in rows (B, S, H, D), or packed
    inputs: Sequence[Tensor]
    rules: dict[str, Any]  # of the truth
    pairs: float
    ends: Sequence[int] = ()  # of packed sequences

    def as_rows(self, x: Tensor) -> Tensor:
        """The last sequence."""
        return x[self.ends[-2] :][None] if self.ends else x[-1:]

    def truth(self, sent: Tensor | None = None) -> Tensor:
        """out, or dq of the gradient `sent`, of the last sequence's last head in float64."""
        q, k, v = (self.as_rows(x)[:, :, -1:].detach().double() for x in self.inputs)
        q.requires_grad_(sent is not None)
        out = attention(q, k, v, causal=True, **self.rules)[0]
        if sent is None:
            return out
        return torch.autograd.grad(out, q, self.as_rows(sent)[:, :, -1:].double())[0]


def features(device: torch.device, quick: bool) -> list[Features]:
    """The first is what others are held to."""
    length, heads = (512, 4) if quick else (8192, 16)
    q, k, v = (draw(device, 2, length, heads, HEAD_DIM) for _ in range(3))
    few = [x[:, :, : heads // 4].contiguous() for x in (k, v)]
    flat = [x.flatten(0, 1) for x in (q, k, v)]

    def packed(name: str, ends: list[int]) -> Features:
        lengths = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
        offsets = torch.tensor(ends, device=device, dtype=torch.int32)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flash_attn_varlen_func(q, k, v, offsets, offsets, max(lengths), max(lengths), causal=True)

        return Features(name, call, flat, {}, heads * sum(n**2 / 2 for n in lengths), ends)

    def windowed(side: int) -> Features:
        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flash_attn_func(q, k, v, causal=True, window_size=(side, 0))

        pairs = 2 * heads * (length * side - side**2 / 2)
        return Features(f"a window of {side}", call, (q, k, v), {"window_size": (side, 0)}, pairs)

    def dense(name: str, *inputs: Tensor) -> Features:
        return Features(name, lambda *x: flash_attn_func(*x, causal=True), inputs, {}, 2 * heads * length**2 / 2)

    return [
        dense("dense", q, k, v),
        dense("a key head for four", q, *few),
        packed("packed", [0, length, 2 * length]),
        packed("packed, unlike lengths", [0, length // 8, length // 2, length // 2 + 3, 2 * length]),
        *(windowed(length // part) for part in (32, 8, 2)),
    ]


def of_forward(device: torch.device, quick: bool) -> list[Row]:
    def row(f: Features) -> Row:
        return Row(f.name, lambda: f.as_rows(f.call(*f.inputs)), f.truth, product_flops(f.pairs))

    return [row(f) for f in features(device, quick)]


def of_backward(device: torch.device, quick: bool) -> list[Row]:
    """Backward alone: its products are two and a half times forward's."""

    def row(f: Features) -> Row:
        leaves = [x.requires_grad_() for x in f.inputs]
        out = f.call(*leaves)
        sent = torch.randn_like(out)

        def call() -> Tensor:
            return f.as_rows(torch.autograd.grad(out, leaves, sent, retain_graph=True)[0])

        return Row(f.name, call, lambda: f.truth(sent), 2.5 * product_flops(f.pairs))

    return [row(f) for f in features(device, quick)]


def of_decoding(device: torch.device, quick: bool) -> list[Row]:
    """One token against a cache of one sequence."""
    keys, heads, key_heads = (2048, 8, 2) if quick else (128 << 10, 32, 8)
    q = draw(device, 1, 1, heads, HEAD_DIM)
    cache = [draw(device, 1, keys, key_heads, HEAD_DIM) for _ in range(2)]
    moved = 2 * cache[0].numel() * cache[0].element_size()

    def true() -> Tensor:
        return of_last_head(q, *cache)

    rows = [Row("flat", lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=keys), true, bytes=moved)]
    for size in PAGES:
        table = torch.randperm(keys // size, device=device).int()[None]
        pages = [torch.empty_like(x).view(-1, size, key_heads, HEAD_DIM) for x in cache]
        for own, x in zip(pages, cache, strict=True):
            own[table[0].long()] = x.view_as(own)  # the same tokens, elsewhere

        def paged(pages: list[Tensor] = pages, table: Tensor = table) -> Tensor:
            return flash_attn_with_kvcache(q, *pages, cache_seqlens=keys, block_table=table)

        rows.append(Row(f"pages of {size}", paged, true, bytes=moved))
    return rows


def of_mla(device: torch.device, quick: bool) -> list[Row]:
    """Decoding with a latent cache: one token of each sequence, in pages of 64 unless a row says otherwise."""
    batch, keys = (2, 256) if quick else (64, 8192)
    cache = draw(device, batch * keys, 1, sum(MLA_DIMS))
    lengths = torch.full((batch,), keys, device=device, dtype=torch.int32)

    def row(name: str, heads: int, page: int) -> Row:
        q = draw(device, batch, 1, heads, sum(MLA_DIMS))
        pages = cache.view(-1, page, 1, sum(MLA_DIMS))
        table = torch.arange(len(pages), device=device, dtype=torch.int32).view(batch, -1)
        older = get_mla_metadata(lengths, heads, 1)

        def call() -> Tensor:
            return flash_mla_with_kvcache(q, pages, table, lengths, MLA_DIMS[0], *older)[0]

        def true() -> Tensor:
            own = cache.view(batch, keys, 1, sum(MLA_DIMS))
            return of_last_head(q, own, own[..., : MLA_DIMS[0]])

        flops = 2 * (2 * MLA_DIMS[0] + MLA_DIMS[1]) * batch * heads * keys
        return Row(name, call, true, flops, cache.numel() * cache.element_size())

    return [
        *(row(f"{heads} heads", heads, 64) for heads in (128, 64, 16)),
        row("128 heads, pages of 1", 128, 1),
        row("128 heads, flat", 128, keys),  # a page for each sequence
    ]


def measure(rows: list[Row], machine: Machine, quick: bool, progress: Tasks) -> list[dict[str, Any]]:
    progress.begin(rows[0].name)
    errors = {row.name: relative_error(row.call()[-1:, :, -1:].detach(), row.truth()) for row in rows}
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


def draw_figure(results: dict[str, Any], path: Path) -> None:
    """Bars of each table's rows, as times of its first."""
    tables = results["tables"]
    figure, panels = subplots(1, len(tables), (4.4 * len(tables), 3.6))
    for axes, (title, entries) in zip(panels, tables.items(), strict=True):
        names = [e["name"] for e in entries][::-1]
        bars = axes.barh(names, [e["times_first"]["median"] for e in entries][::-1], color="#0072B2")
        unit = "tflops" if "tflops" in entries[0] else "gb_per_second"
        axes.bar_label(bars, [f" {e[unit]:.0f}" for e in entries][::-1], fontsize=8)
        axes.set_title(f"{title}\n({UNITS[unit]} beside the bars)", fontsize=9)
        axes.set_xlabel(f"times {entries[0]['name']}")
        axes.margins(x=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    quick = "SMOKE RUN, not to be quoted: " if results["settings"]["quick"] else ""
    figure.suptitle(f"{quick}what features cost attention, {summary(results['environment'])}", fontsize=9)
    save_figure(figure, path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path, help="JSON; the tables go beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: no figures, a smoke run")
    given = parser.parse_args()
    machine = Machine(given.device)
    tables = {
        "Forward, causal": of_forward(machine.device, given.quick),
        "Backward, causal": of_backward(machine.device, given.quick),
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
    draw_figure(results, out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
