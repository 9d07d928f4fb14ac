# SPDX-License-Identifier: Apache-2.0
"""What a part of a sequence does to the state of the mLSTM, and the scan of it over ranks.

    C' = e^(decay + m - m') C + e^(own m - m') own C        m' = max(decay + m, own m)

and n likewise, so a part is four things of a head: own C, own n, own m, and decay, the sum of logsigmoid(f). They are
gathered from all ranks, once for all heads, and each rank folds those of the ranks before it. Backward sends each rank
the gradient of what it gave, by one reduce-scatter.

Own C is one matrix product over the part's tokens: K^T diag(w) V, with w = e^(a - m), a_t the input gate and the forget
gates behind t. Sums are float32 (float64 for float64), and products go by pieces, so that no copy of a part is made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .._core import checks
from .._core.ops import OpFunction, first_order
from .collectives import gathered, own_of_sum, sum_of

PIECE = {"cpu": 2048, "cuda": 32768}  # tokens: in a CPU's caches; on a GPU few launches
LEAST_M = -1e30  # of a part whose input gates are all closed: minus infinity less itself is no number


class Part(NamedTuple):
    """c (B, NH, DHQK, DHHV), n (B, NH, DHQK), m and decay (B, NH, 1)."""

    c: Tensor
    n: Tensor
    m: Tensor
    decay: Tensor


def part_of(k: Tensor, v: Tensor, i: Tensor, f: Tensor, gate: str) -> Part:
    """Of tokens (B, NH, S, ...), none before them. The sigmoid gate has no m: it is 0."""
    wide = checks.accumulate_dtype(k.dtype)
    forgets = F.logsigmoid(f.to(wide))
    behind = F.pad(forgets[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    a = behind + (i.to(wide) if gate == "exp" else F.logsigmoid(i.to(wide)))
    m = a.amax(-1, keepdim=True).clamp_min(LEAST_M) if gate == "exp" else torch.zeros_like(a[..., :1])
    c, n = WeightedSums.apply(k, v, (a - m).exp())
    return Part(c, n, m, forgets.sum(-1, keepdim=True))


def after(state: tuple[Tensor, Tensor, Tensor], part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """The state behind a part's tokens."""
    c, n, m = state
    m_next = torch.maximum(part.decay + m, part.m)
    kept, added = (part.decay + m - m_next).exp(), (part.m - m_next).exp()
    return kept[..., None] * c + added[..., None] * part.c, kept * n + added * part.n, m_next


class WeightedSums(OpFunction):
    """K^T diag(w) V and K^T w."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(k, v, w)
        batch, heads, _, dqk = k.shape
        c, n = w.new_zeros(batch * heads, dqk, v.shape[-1]), w.new_zeros(batch, heads, dqk)
        operand = _operand_dtype(k, w)
        with torch.autocast(k.device.type, enabled=False):
            for some in _pieces(k):
                weighted = _scaled(k[:, :, some], w[:, :, some], operand)
                c += _wide_product(weighted.flatten(0, 1).mT, v[:, :, some].to(operand).flatten(0, 1), w.dtype)
                n += weighted.sum(2, dtype=w.dtype)
        return c.unflatten(0, (batch, heads)), n

    @staticmethod
    @first_order
    def backward(ctx: Any, dc: Tensor, dn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v, w = ctx.saved_tensors
        dk, dv, dw = torch.empty_like(k), torch.empty_like(v), torch.empty_like(w)
        operand = _operand_dtype(k, w)
        dc, dn = dc.to(operand), dn.to(operand)
        with torch.autocast(k.device.type, enabled=False):
            for some in _pieces(k):
                own_k, of_token = k[:, :, some].to(operand), w[:, :, some]
                to_k = (v[:, :, some].to(operand) @ dc.mT).add_(dn[:, :, None])
                torch.sum(own_k * to_k, -1, dtype=w.dtype, out=dw[:, :, some])
                torch.mul(to_k, of_token[..., None], out=dk[:, :, some])
                dv[:, :, some] = _scaled(own_k, of_token, operand) @ dc
        return dk, dv, dw


def _operand_dtype(k: Tensor, w: Tensor) -> torch.dtype:
    """In which the products multiply: 16 bits where torch has products of them with wide sums, as the kernels do."""
    narrow = k.dtype in (torch.bfloat16, torch.float16)
    return k.dtype if narrow and k.is_cuda and torch.version.hip is None else w.dtype


def _scaled(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """diag(w) x, rounded once."""
    return torch.mul(x, w[..., None], out=torch.empty(x.shape, dtype=dtype, device=x.device))


def _wide_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.bmm(a, b) if a.dtype == dtype else torch.bmm(a, b, out_dtype=dtype)


def _pieces(x: Tensor) -> list[slice]:
    """Of the tokens of x (B, NH, S, features)."""
    length, piece = x.shape[2], PIECE.get(x.device.type, PIECE["cuda"])
    return [slice(begin, min(begin + piece, length)) for begin in range(0, length, piece)]


def state_before(
    group: dist.ProcessGroup,
    is_continued: bool,
    part: Part,
    start: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor | None, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """The state that this rank's first sequence has before its first token here: of the ranks before if it is
    continued, else `start`.

    Every rank calls it at the same time, and its backward pass, too. inputs: of the whole call. They have no use and
    get no gradient here, but whichever of them a gradient is asked for, autograd comes here on every rank, also on one
    whose part nobody reads.
    """
    c, n, m = _StateBefore.apply(group, is_continued, *part, *start, *inputs)
    return c, n, m


class _StateBefore(OpFunction):
    @staticmethod
    def forward(ctx: Any, group: Any, is_continued: bool, c: Any, n: Any, m: Any, decay: Any, *rest: Any) -> Any:
        rank = dist.get_rank(group)
        given = torch.cat((c.flatten(2), n, m, decay), -1)
        before = gathered(given, group)[:rank].clone()
        ctx.save_for_backward(before)
        ctx.group, ctx.is_continued, ctx.dims, ctx.inputs = group, is_continued, c.shape[2:], len(rest) - 3
        return _folded(before, ctx.dims) if is_continued else tuple(x.clone() for x in rest[:3])

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (before,) = ctx.saved_tensors
        rank, size = before.shape[0], dist.get_world_size(ctx.group)
        sent = gradients[0].new_zeros(size, *gradients[1].shape[:2], _floats(ctx.dims))
        if ctx.is_continued:
            with torch.enable_grad():
                before = before.detach().requires_grad_()
                states = _folded(before, ctx.dims)
                (sent[:rank],) = torch.autograd.grad(states, before, gradients)
        own = own_of_sum(sent, ctx.group)
        starts = (None, None, None) if ctx.is_continued else gradients
        return None, None, *_parted(own, ctx.dims), *starts, *(None,) * ctx.inputs


def _floats(dims: torch.Size) -> int:
    dqk, dhv = dims
    return dqk * dhv + dqk + 2


def _parted(x: Tensor, dims: torch.Size) -> Part:
    dqk, dhv = dims
    c, n, m, decay = x.split((dqk * dhv, dqk, 1, 1), -1)
    return Part(c.unflatten(-1, (dqk, dhv)), n, m, decay)


def _folded(every: Tensor, dims: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """The state behind these parts, of which the first has its start in itself."""
    first, *parts = (_parted(x, dims) for x in every)
    state = first.c, first.n, first.m
    for part in parts:
        state = after(state, part)
    return state


class SumOverRanks(OpFunction):
    """inputs as in state_before."""

    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor, *inputs: Tensor | None) -> Tensor:
        ctx.group, ctx.inputs = group, len(inputs)
        return sum_of(x, group)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, sum_of(gradient, ctx.group), *(None,) * ctx.inputs
