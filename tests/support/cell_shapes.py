# SPDX-License-Identifier: Apache-2.0
"""The shape of a case of the recurrent cells' table. Nothing here imports the package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    batch: int
    length: int
    heads: int
    units: int
    function: str = "slstm"
    forget_gate: str = "sigmoid"
    states: bool = False
    bias: bool = True
    ends: tuple[int, ...] = ()  # of packed sequences
    layout: str = "dense"  # "strided": gates of one projection with unused memory between heads

    def __str__(self) -> str:
        sequences = f"{len(self.ends)} packed in {self.length}" if self.ends else f"{self.batch}x{self.length}"
        extra = ["states"] * self.states + ["no bias"] * (not self.bias) + ["strided"] * (self.layout == "strided")
        name = self.function + (" exp" if self.forget_gate == "exp" else "")
        return f"{name} {sequences} {self.heads}x{self.units}" + "".join(f", {e}" for e in extra)

    @property
    def sequences(self) -> int:
        return len(self.ends) or self.batch

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("h", "c") if self.function == "lstm" else ("h", "c", "n", "m")
