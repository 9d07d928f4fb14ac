# SPDX-License-Identifier: Apache-2.0
"""The mLSTM over packed sequences: one row of many, beside the same sequences as a batch where their lengths agree."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import mlstm_points
from .mlstm import EPS
from .mlstm_contenders import COMMON, GPU, beyond_triton, differentiated, fused, official, on_every_gpu
from .registry import (
    FLA,
    OFFICIAL,
    XLSTM_HIP,
    Call,
    Implementation,
    Point,
    Prepare,
    Scale,
    Tensors,
    relative_error,
)

UNLIKE = "the sequences are of different lengths"


@dataclass(frozen=True)
class Cell(mlstm_points.Cell):
    """A row of so many sequences of a length, and so on; the batch is 1."""

    packs: tuple[tuple[int, int], ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(length for count, length in self.packs for _ in range(count))

    @property
    def flops(self) -> float:
        """A sequence shorter than a chunk has no more scores than its own."""
        return sum(replace(self, tokens=n, packs=()).flops_in_chunks(min(n, mlstm_points.CHUNK)) for n in self.lengths)

    @property
    def title(self) -> str:
        packs = " + ".join(f"{count} x {length}" for count, length in self.packs)
        return f"{self.work} {self.dtype} {packs} NH{self.heads} {self.dqk}/{self.dhv}"


def trial(cell: Cell) -> Cell:
    return replace(cell, heads=2, tokens=256, packs=((4, 64),))


def points(scale: Scale, work: str) -> list[Point]:
    heads, dqk, dhv = (2, 16, 32) if scale.quick else (8, 256, 512) if scale.gpu else (4, 64, 128)
    tokens, short, singles = (256, 64, 32) if scale.quick else (8192, 64, 1024)
    packs = (((1, tokens),), ((tokens // short, short),), ((singles, 1), (1, tokens - singles)))
    cells = [
        Cell(work, dtype, 1, heads, tokens, dqk, dhv, mlstm_points.CHUNK, packs=pack)
        for dtype in scale.dtypes
        for pack in packs
    ]
    return [Point("packed", cell.title.partition(f"{cell.dtype} ")[2].partition(" NH")[0], cell) for cell in cells]


def _ends(cell: Cell, device: torch.device) -> Tensor:
    return F.pad(torch.tensor(cell.lengths).cumsum(0), (1, 0)).to(device)


def _packed(cell: Cell, inputs: Tensors) -> Call:
    from ..mlstm.kernels import mlstm_chunkwise_fused

    ends = _ends(cell, inputs["q"].device)

    def forward(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Any:
        return mlstm_chunkwise_fused(q, k, v, i, f, eps=EPS, chunk_size=cell.chunk_size, cu_seqlens=ends)

    return differentiated(cell, inputs, forward)


def _fla(cell: Cell, inputs: Tensors) -> Call:
    chunk_simple_gla = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    ends = _ends(cell, inputs["q"].device)
    g = F.logsigmoid(inputs["f"].float())
    as_fla = {n: x.transpose(1, 2).contiguous() for n, x in (inputs | {"g": g}).items()}
    leaves = [as_fla[name].requires_grad_(cell.work != "forward") for name in (*"qkv", "g")]

    def call() -> Tensors:
        with torch.set_grad_enabled(cell.work != "forward"):
            h, _ = chunk_simple_gla(*leaves, scale=cell.dqk**-0.5, cu_seqlens=ends)
        if cell.work != "forward":
            torch.autograd.grad(h, leaves, as_fla["dh"])
        return {"h": h}

    return call


def _dense(prepare: Prepare) -> Prepare:
    """The same sequences as a batch, made before anything is timed."""

    def prepare_dense(cell: Cell, inputs: Tensors) -> Call:
        ((count, length),) = cell.packs

        def batch(x: Tensor) -> Tensor:
            return x[0].unflatten(1, (count, length)).transpose(0, 1).contiguous()

        as_batch = replace(cell, batch=count, tokens=length, packs=())
        return prepare(as_batch, {name: batch(x) for name, x in inputs.items()})

    return prepare_dense


def _unlike(cell: Cell) -> str:
    return UNLIKE if len(cell.packs) > 1 else ""


def _beyond(cell: Cell, chunk_size: int) -> str:
    if unlike := _unlike(cell):
        return unlike
    ((count, length),) = cell.packs
    return beyond_triton(replace(cell, batch=count, tokens=length), chunk_size)


def errors_of_batch(cell: Cell, results: Tensors, truth: Tensors) -> dict[str, float]:
    """Of the last head, as the packed row has it."""
    return {name: relative_error(x[:, -1].flatten(0, 1), truth[name]) for name, x in results.items()}


def _dense_official(name: str, kernel: str, chunk_size: int, llvm_opt: bool) -> Implementation:
    return Implementation(
        name, OFFICIAL, _dense(official(kernel, chunk_size)), GPU, triton=True, llvm_opt=llvm_opt,
        errors=errors_of_batch, beyond=partial(_beyond, chunk_size=chunk_size),
    )  # fmt: skip


IMPLEMENTATIONS = (
    Implementation("ours", XLSTM_HIP, _packed),
    Implementation(COMMON, XLSTM_HIP, on_every_gpu(_packed), GPU),
    Implementation("ours, as a batch", XLSTM_HIP, _dense(fused), errors=errors_of_batch, beyond=_unlike),
    _dense_official("xl_chunk, as a batch", "chunkwise--triton_xl_chunk", 64, False),
    _dense_official("limit_chunk, as a batch", "chunkwise--triton_limit_chunk", 64, True),
    Implementation("FLA simple_gla", FLA, _fla, GPU, triton=True, exact=False),
)
