# SPDX-License-Identifier: Apache-2.0
"""Drawing the next token of each row: ours in one op, without a sort, beside the same choice in plain torch.

Seeds and numbers are the same for all, so right is who draws the tokens that float64 draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..models.sampling import Drawing, Sampling
from .registry import DTYPES, PLAIN, XLSTM_HIP, Call, Implementation, Point, Prepare, Scale, Tensors

HOW = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_k=50, top_p=0.95)}


@dataclass(frozen=True)
class Cell:
    dtype: str
    batch: int
    vocab: int
    how: str

    @property
    def title(self) -> str:
        return f"draw {self.dtype} B{self.batch} of {self.vocab}, {self.how}"

    @property
    def flops(self) -> float:
        return 0.0  # no products

    @property
    def bytes(self) -> float:
        return float(DTYPES[self.dtype].itemsize * self.batch * self.vocab)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "size": self.title.partition(f"{self.dtype} ")[2]}


def make_inputs(cell: Cell, device: torch.device) -> Tensors:
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(cell.batch, cell.vocab, generator=rng)
    return {"logits": logits.to(device, DTYPES[cell.dtype])}


def _prepared(draw: Callable[[Drawing, Tensor], None]) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        logits = inputs["logits"]
        drawing = Drawing(HOW[cell.how], (), 0, cell.batch, None, logits.device)
        drawing.begin(range(cell.batch))

        def call() -> Tensors:
            draw(drawing, logits)
            return {"token": drawing.tokens}

        return call

    return prepare


def truth(cell: Cell, inputs: Tensors) -> Tensors:
    return _prepared(Drawing.draw_plainly)(cell, {"logits": inputs["logits"].double()})()


def errors(cell: Cell, results: Tensors, true: Tensors) -> dict[str, float]:
    """The share of rows with another token."""
    return {"token": float((results["token"] != true["token"]).double().mean())}


IMPLEMENTATIONS = (
    Implementation("ours", XLSTM_HIP, _prepared(Drawing.__call__)),
    Implementation("plain torch", PLAIN, _prepared(Drawing.draw_plainly)),
)


def points(scale: Scale, how: str) -> list[Point]:
    batches, vocab = ((1, 3), 300) if scale.quick else ((1, 8, 64), 50304)
    return [Point("rows", batch, Cell(dtype, batch, vocab, how)) for dtype in scale.dtypes for batch in batches]
