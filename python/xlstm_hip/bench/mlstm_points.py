# SPDX-License-Identifier: Apache-2.0
"""At which shapes the mLSTM is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import mlstm
from .registry import Point, Scale

CHUNK = 64
WORKS = ("forward", "forward+backward")


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


def step_points(scale: Scale) -> list[Point]:
    heads, dqk, dhv = (2, 32, 64) if scale.quick else (8, 256, 512) if scale.gpu else (4, 128, 256)
    batches = (1, 2) if scale.quick else tuple(1 << n for n in range(0, 9 if scale.gpu else 6))
    return [
        Point("batch", batch, Cell("step", dtype, batch, heads, 1, dqk, dhv, CHUNK))
        for dtype in scale.dtypes
        for batch in batches
    ]
