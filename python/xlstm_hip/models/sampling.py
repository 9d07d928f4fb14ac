# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: greedy, or sampled with independent random numbers for every row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from .._core.environment import plain_torch_forced
from .._core.ops import OPS, devices_with_kernels
from ..reference import sampling as plain
from ..reference.philox import uniform as plain_uniform
from .transfers import to_device

MOST_ENDS = 64  # as the op has it
_NO_TOKEN = 2**63 - 1  # in place of end tokens where rows end by another rule alone
_DEVICES = devices_with_kernels("draw_tokens_")


@torch.library.register_fake("xlstm_hip::draw_tokens_")
def _(tokens, logits, seeds, numbers, seen, going, ends, weights, pad, temperature, top_k, top_p, penalty):
    return None


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy decoding. top_k 0, top_p 1, repetition_penalty 1 and min_p 0 have no effect.

    They apply in the order of transformers' processors: repetition penalty (divides positive logits of seen tokens,
    multiplies negative ones), temperature, top_k, top_p: the smallest set with that cumulative probability, then min_p:
    the tokens with at least min_p times the probability of the likeliest.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("temperature", 0.0, math.inf),
            ("top_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, math.inf),
            ("min_p", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise ValueError(f"{name}: expected a number from {least} to {most}, got {value!r}")
            if value == math.inf or value == 0 and name not in ("temperature", "min_p"):
                raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k: expected an integer >= 0, got {self.top_k!r}")
        if self.temperature == 0 and (self.top_k or self.top_p < 1 or self.min_p):
            raise ValueError(
                "temperature: expected above 0 with top_k, top_p or min_p, which greedy decoding has no use for"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        """logits (B, V), seen (B, V) bool -> (B, V) float64 probabilities to sample from. Not for greedy decoding."""
        return plain.probabilities(self, logits, seen)


class Drawing:
    """Samples the next tokens of a batch, step by step, with an op that is a single kernel (csrc/engine).

    All inputs and outputs stay in the memory of these tensors, so a call can be captured in a graph. A row's tokens
    depend only on its seed and logits, not on the batch or the device. Call begin() first.

    tokens   (B) int64, each row's last token: overwritten by the next, -1 if NaN leaves nothing to sample
    going    (B) bool, False for rows that sampled a token of `ends`, or were given to end(): they get `pad` from then
             on. None without ends, unless `may_end`: some rows will be given to end()
    seen     (B, V) bool, with a repetition penalty: each step also marks the token before it
    """

    def __init__(
        self,
        sampling: Sampling,
        ends: Sequence[int],
        pad: int,
        rows: int,
        seen: Tensor | None,
        device: torch.device,
        may_end: bool = False,
    ) -> None:
        self.options = (sampling, tuple(ends), pad, may_end)
        ends = ends or ((_NO_TOKEN,) if may_end else ())
        self.sampling, self.pad = sampling, pad
        self.seen = None if sampling.repetition_penalty == 1 else seen
        self.tokens = torch.full((rows,), plain.NOTHING_DRAWN, dtype=torch.int64, device=device)
        self.going = torch.ones(rows, dtype=torch.bool, device=device) if ends else None
        self._ends = torch.tensor(ends, dtype=torch.int64, device=device) if ends else None
        self._seeds = self._numbers = None
        if not sampling.greedy:
            self._seeds = torch.zeros_like(self.tokens)
            self._numbers = torch.zeros_like(self.tokens)
        buffers = (self.tokens, self.going, self.seen, self._ends, self._seeds, self._numbers)
        self.key = (*self.options, *(None if x is None else x.data_ptr() for x in buffers))

    def begin(self, seeds: Sequence[int], numbers: Sequence[int] | None = None) -> None:
        """Resets the batch. Row r's tokens then follow from seeds[r] and from how many it has had, numbers[r] or 0."""
        self.tokens.fill_(plain.NOTHING_DRAWN)
        if self.going is not None:
            self.going.fill_(True)
        if self._seeds is not None and self._numbers is not None:
            device = self.tokens.device
            self._seeds.copy_(to_device(torch.tensor([_signed(seed) for seed in seeds]), device))
            self._numbers.zero_() if numbers is None else self._numbers.copy_(to_device(torch.tensor(numbers), device))

    def __call__(self, logits: Tensor) -> None:
        """Samples a token for each unfinished row; logits (B, V) of any float dtype."""
        options = self.sampling
        if logits.dtype == torch.float64 or logits.device.type not in _DEVICES or plain_torch_forced():
            return self.draw_plainly(logits)
        logits, seen, penalty, applied = logits.float().contiguous(), self.seen, options.repetition_penalty, options
        if options.min_p:
            self._mark_seen()
            logits = self._above_min_p(plain.penalised(logits, seen, penalty))
            seen, penalty, applied = None, 1.0, Sampling(options.temperature)
        OPS.draw_tokens_(
            self.tokens, logits, self._seeds, self._numbers, seen, self.going, self._ends,
            None, self.pad, applied.temperature, applied.top_k, applied.top_p, penalty,
        )  # fmt: skip

    def _above_min_p(self, scores: Tensor) -> Tensor:
        """The scores of the tokens that top_k, top_p and min_p keep, -inf for all others: the op has no min_p. The op
        first decides, by its integer weights, which tokens top_k and top_p keep, so that a token is the same on every
        device.
        """
        options = self.sampling
        dropped = plain.below_min_p(scores.double() / options.temperature, options.min_p)
        if options.top_k or options.top_p < 1:
            assert self._seeds is not None and self._numbers is not None
            weights = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
            OPS.draw_tokens_(
                self.tokens.clone(), scores, self._seeds, self._numbers.clone(), None, None, None,
                weights, self.pad, options.temperature, options.top_k, options.top_p, 1.0,
            )  # fmt: skip
            dropped |= weights == 0
        return scores.masked_fill(dropped, -math.inf)

    def draw_plainly(self, logits: Tensor) -> None:
        """Sampling in plain torch, where there is no kernel."""
        self._mark_seen()
        uniform = None
        if self._seeds is not None and self._numbers is not None:
            uniform = plain_uniform(self._seeds, self._numbers)
            self._numbers += 1
        drawn = plain.pick(self.sampling, logits, self.seen, uniform)
        if self.going is not None and self._ends is not None:
            drawn = drawn.where(self.going, self.pad)
            self.going &= ~torch.isin(drawn, self._ends)
        self.tokens.copy_(drawn)

    def _mark_seen(self) -> None:
        """Marks each row's last token, as the op does before it draws."""
        if self.seen is not None:
            read = self.tokens >= 0 if self.going is None else self.going & (self.tokens >= 0)
            vocabulary = torch.arange(self.seen.shape[1], device=self.seen.device)
            self.seen |= read.unsqueeze(1) & (self.tokens.unsqueeze(1) == vocabulary)

    def end(self, rows: Sequence[int]) -> None:
        """Ends these rows, whatever their last token was."""
        if rows:
            assert self.going is not None
            self.going[list(rows)] = False

    def over(self) -> bool:
        """Whether all rows are finished."""
        return self.going is not None and not any(self.going.tolist())


def check_drawn(tokens: Tensor) -> None:
    """Raises if a row had nothing to sample from."""
    rows = (tokens < 0).nonzero()
    if len(rows):
        raise ValueError(f"logits: expected numbers to draw a token from, got NaN or nothing in row {int(rows[0, 0])}")


def _signed(seed: int) -> int:
    """The low 64 bits of a seed as int64."""
    low = seed & 2**64 - 1
    return low - 2**64 if low >= 2**63 else low


def row_seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    """One seed per row: seed, seed + 1, ... for an int."""
    if isinstance(seed, int) and not isinstance(seed, bool):
        return [seed + row for row in range(rows)]
    if not isinstance(seed, Sequence) or isinstance(seed, str) or len(seed) != rows:
        raise ValueError(f"seed: expected an integer, or one for each of {rows} rows, got {seed!r}")
    for one in seed:
        if not isinstance(one, Integral) or isinstance(one, bool):
            raise TypeError(f"seed: expected integers, got {one!r}")
    return [int(one) for one in seed]
