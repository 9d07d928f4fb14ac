# SPDX-License-Identifier: Apache-2.0
"""At which shapes the mLSTM is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import mlstm
from .registry import Point, Scale

CHUNK = 64
WORKS = ("forward", "forward+backward")
# Heads, DHQK and DHHV of models that were trained, and head dims that are no powers of two.
HEADS = ((16, 64, 128), (16, 128, 256), (4, 96, 192), (4, 92, 184), (4, 512, 512))
HEAD_COUNTS = (5, 7, 9, 11, 13)  # which no tile divides


@dataclass(frozen=True)
class Cell(mlstm.Cell):
    """Its operations are counted at one chunk size, whichever it runs with, so that times and shares agree."""

    @property
    def flops(self) -> float:
        return self.flops_in_chunks(CHUNK)

    @property
    def title(self) -> str:
        length = "" if self.work == "step" else f" S{self.tokens}"
        chunk = "" if self.chunk_size == CHUNK else f" chunks of {self.chunk_size}"
        return f"{self.work} {self.dtype} B{self.batch} NH{self.heads}{length} {self.dqk}/{self.dhv}{chunk}"

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"size": self.title.partition(f"{self.dtype} ")[2]}


def trial(cell: Cell) -> Cell:
    """The facts of a cell that compilers see: its work, dtype and head dims."""
    return replace(cell, batch=1, heads=2, tokens=1 if cell.work == "step" else 256, chunk_size=CHUNK)


def sequence_points(scale: Scale, work: str) -> list[Point]:
    """Over the length, with as many tokens in all; over the head dim, as wide in all; over the chunk size."""
    lengths: tuple[int, ...]
    dims: tuple[int, ...]
    chunks: tuple[int, ...]
    if scale.quick:
        tokens, lengths, width, dhv, length, dims, chunks = 256, (64, 128), 64, 64, 64, (32,), (16,)
    elif scale.gpu:
        tokens, lengths, width, dhv = 65536, tuple(1 << n for n in range(9, 17)), 4096, 512
        length, dims, chunks = 8192, (128, 256, 512), (16, 32, 64, 128, 256)
    else:
        tokens, lengths, width, dhv = 65536, (512, 2048, 8192, 65536), 128, 128
        length, dims, chunks = 2048, (32, 64, 128), (16, 32, 64, 128, 256)

    def cell(dtype: str, s: int, dim: int, chunk: int = CHUNK) -> Cell:
        return Cell(work, dtype, tokens // s, width // dim, s, dim // 2, dim, chunk)

    points = []
    for dtype in scale.dtypes:
        points += [Point("length", s, cell(dtype, s, dhv)) for s in lengths]
        points += [Point("head dim", dim, cell(dtype, length, dim)) for dim in dims]
        points += [Point("chunk size", chunk, cell(dtype, length, dhv, chunk)) for chunk in chunks]
    return points


def shape_points(scale: Scale, work: str) -> list[Point]:
    """Heads of models over the length, with as many tokens in all; then over odd numbers of heads."""
    lengths: tuple[int, ...]
    shapes: tuple[tuple[int, int, int], ...]
    counts: tuple[int, ...]
    if scale.quick:
        tokens, lengths, shapes, counts, dqk, dhv = 128, (32, 64), ((2, 16, 32), (1, 12, 24)), (3,), 16, 32
    else:
        tokens, lengths = 16384 if scale.gpu else 4096, (512, 1024, 2048, 4096)
        shapes, counts, dqk, dhv = HEADS, HEAD_COUNTS, 128, 256
    length = lengths[len(lengths) // 2]
    points = []
    for dtype in scale.dtypes:
        for heads, k, v in shapes:
            points += [Point("shapes", s, Cell(work, dtype, tokens // s, heads, s, k, v, CHUNK)) for s in lengths]
        for heads in counts:
            cell = Cell(work, dtype, tokens // length, heads, length, dqk, dhv, CHUNK)
            points.append(Point("heads", heads, cell))
    return points


def step_points(scale: Scale) -> list[Point]:
    heads, dqk, dhv = (2, 32, 64) if scale.quick else (8, 256, 512) if scale.gpu else (4, 128, 256)
    batches = (1, 2) if scale.quick else tuple(1 << n for n in range(0, 9 if scale.gpu else 6))
    return [
        Point("batch", batch, Cell("step", dtype, batch, heads, 1, dqk, dhv, CHUNK))
        for dtype in scale.dtypes
        for batch in batches
    ]
